"""Objects in Google Cloud Storage, gs://BUCKET/NAME, accessed over the network.

A request that fails temporarily (408, 429, 5xx, a reset, no byte for STALLED seconds) is retried by gcsfs after 1, 2,
4, 8 and 16 seconds; after six failures it ends in a UserError. STORAGE_EMULATOR_HOST sets another host of the API, as
for Google's own clients.
"""

import contextlib
import io
import logging
import os
import queue
import secrets
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tpulm.core.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from gcsfs.core import GCSFileSystem

SCHEME = "gs://"
STALLED = 30  # seconds without a byte
AT_ONCE = 16  # requests
BUFFER = 4 << 20  # bytes that are requested at once of an object that is read from the beginning on


def remote(place: str | Path) -> bool:
    """Return whether a place is in a bucket and not on this machine."""
    return str(place).startswith(SCHEME)


@cache
def file_system() -> "GCSFileSystem":
    """Return gcsfs's file system: its methods wait for the network, and may be called by several threads at once."""
    # gcsfs would ask for the kind of each bucket by gRPC, which an emulator leaves unanswered for a minute.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    import aiohttp
    from gcsfs.core import GCSFileSystem

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=STALLED, sock_read=STALLED)
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it writes a traceback for what ends in a sentence here
    token = "anon" if os.environ.get("STORAGE_EMULATOR_HOST") else None
    return GCSFileSystem(token=token, requests_timeout=timeout, use_listings_cache=False, skip_instance_cache=True)


@cache
def readers() -> queue.SimpleQueue:
    """Return the queue of the threads that read: AT_ONCE of them.

    They are daemons, where those of concurrent.futures would keep a program that ends until the network has answered.
    """
    waiting: queue.SimpleQueue = queue.SimpleQueue()
    for _ in range(AT_ONCE):
        threading.Thread(target=read_requests, args=(waiting,), daemon=True).start()
    return waiting


def read_requests(waiting: queue.SimpleQueue) -> None:
    """Serve requests for ever: each a future, and the function whose result it is for."""
    while True:
        future, function = waiting.get()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)


def request(url: str, start: int | None = None, stop: int | None = None) -> Future:
    """Begin to read bytes `start` to `stop` of an object, by default all; `result` waits for them."""
    future: Future = Future()
    readers().put((future, partial(file_system().cat_file, url, start=start, end=stop)))
    return future


def result(future: Future, url: str) -> bytes:
    """Return the bytes that a request read. Raises FileNotFoundError for an absent object, otherwise UserError."""
    with sentences(url):
        return future.result()


def read_object(place: str, start: int | None = None, stop: int | None = None) -> bytes:
    """Return bytes `start` to `stop` of an object, by default all. Raises as `result` does."""
    return result(request(place, start, stop), place)


class Object(io.RawIOBase):
    """An object as a file that is read at any place: each read is a request for just its bytes."""

    def __init__(self, url: str):
        """Ask for the size. Raises as `result` does, here and wherever bytes are read."""
        super().__init__()
        self.size, _ = state(url)
        self.url, self.place = url, 0

    def readable(self) -> bool:
        """Return True: the bytes can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: they can be read at any place."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, counted from the beginning, the present place or the end; return it."""
        self.place = offset + (0, self.place, self.size)[whence]
        return self.place

    def tell(self) -> int:
        """Return the present place."""
        return self.place

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        """Read as many bytes as `buffer` takes, if there are so many; return how many."""
        stop = min(self.place + len(buffer), self.size)
        data = read_object(self.url, self.place, stop) if self.place < stop else b""
        buffer[: len(data)] = data
        self.place += len(data)
        return len(data)


def array(place: str | Path) -> "np.ndarray":
    """Return the array of a NumPy file; what is on this machine is read as it is used."""
    import numpy as np

    return np.load(io.BytesIO(read_object(str(place)))) if remote(place) else np.load(place, mmap_mode="r")


def opened(place: str | Path) -> io.BufferedReader:
    """Open a file or an object for reading from the beginning on. Raises as `result` does, and OSError."""
    return io.BufferedReader(Object(str(place)), BUFFER) if remote(place) else open(place, "rb")


def state(place: str | Path) -> tuple[int, str]:
    """Return the size of a file or an object in bytes, and what changes when it is written: a date or a generation.

    Raises as `result` does, and OSError.
    """
    if not remote(place):
        found = os.stat(place)
        return found.st_size, str(found.st_mtime_ns)
    with sentences(str(place)):
        info = file_system().info(str(place))
    return int(info["size"]), f"{info.get('generation')} {info.get('md5Hash')}"


def objects_matching(pattern: str) -> dict[str, int]:
    """Return the URLs of the objects that a glob gs://BUCKET/PATTERN stands for, and their sizes. Raises UserError."""
    with sentences(pattern):
        found = file_system().glob(pattern, detail=True)
    return {f"{SCHEME}{name}": int(info["size"]) for name, info in found.items() if info["type"] == "file"}


def read_objects(places: list[str]) -> Iterator[bytes]:
    """Yield the content of files or objects, up to the first that is not there; objects are requested ahead."""
    requests = [request(place) if remote(place) else None for place in places]
    try:
        for future, place in zip(requests, places, strict=True):
            yield result(future, place) if future else Path(place).read_bytes()
    except OSError:
        return
    finally:
        for future in filter(None, requests):
            future.cancel()


def exists(place: str) -> bool:
    """Return whether there is such a file or object. Raises UserError."""
    if not remote(place):
        return Path(place).exists()
    with sentences(place):
        return file_system().exists(place)


class Entry(NamedTuple):
    """What a bucket says of an object: its size in bytes, its MD5 in base64 ("" of a composite)."""

    size: int
    md5: str


def objects(folder: str) -> dict[str, Entry]:
    """Return every object below gs://BUCKET/FOLDER, by its name in there. Raises UserError."""
    root = folder.removeprefix(SCHEME).rstrip("/") + "/"
    with sentences(folder):
        found = file_system().find(root, detail=True)
    return {name.removeprefix(root): Entry(int(info["size"]), info.get("md5Hash", "")) for name, info in found.items()}


def sizes(folder: str) -> dict[str, int]:
    """Return the size in bytes of every object below gs://BUCKET/FOLDER, by its name in there. Raises UserError."""
    return {name: entry.size for name, entry in objects(folder).items()}


def copy(folder: str, target: Path) -> None:
    """Copy every object below gs://BUCKET/FOLDER to a folder of this machine. Raises UserError."""
    for name in sizes(folder):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with sentences(f"{folder}/{name}"):
            file_system().get_file(f"{folder}/{name}", str(target / name))


def upload(path: Path, url: str) -> None:
    """Write a file of this machine as an object. Raises UserError."""
    with sentences(url):
        file_system().put_file(str(path), url)


def delete(urls: Iterable[str]) -> None:
    """Delete objects; one that is not there is no mistake. Raises UserError."""
    for url in urls:
        with sentences(url), contextlib.suppress(FileNotFoundError):
            file_system().rm_file(url)


def check_writable(folder: str) -> None:
    """Raise UserError when there is no such bucket, or no object can be made or deleted below gs://BUCKET/FOLDER."""
    probe = f"{folder}/.writable-{secrets.token_hex(8)}"
    try:
        with sentences(folder):
            file_system().pipe_file(probe, b"")
    except FileNotFoundError:
        name = "/".join(folder.split("/")[:3])
        raise UserError(f"there is no bucket {name}; create it with: gcloud storage buckets create {name}") from None
    delete([probe])


def claim(mark: str, identity: str) -> None:
    """Note in the object `mark` which working folder writes beside it: "TOKEN HOST:PATH", of which TOKEN is compared.

    Raises UserError where another one does: no lock of one machine keeps two of them apart.
    """

    def owner() -> str | None:
        try:
            return read_object(mark).decode()
        except FileNotFoundError:
            return None

    if owner() is None:
        with sentences(mark), contextlib.suppress(FileExistsError):  # of two at once, the first has it
            file_system().pipe_file(mark, identity.encode(), mode="create")
    token, _, place = (owner() or "").partition(" ")
    if token != identity.partition(" ")[0]:
        raise UserError(
            f"{mark.rpartition('/')[0]} belongs to the working folder {place}; use another prefix here, such as "
            f"--default-storage-prefix {mark.rsplit('/', 2)[0]}/{Path.cwd().name}, or, if that folder is no longer "
            f"used, take it over: gcloud storage rm {mark}"
        )


@contextlib.contextmanager
def sentences(url: str) -> Iterator[None]:
    """Turn what is left of a failure after gcsfs's attempts into a UserError; FileNotFoundError stays what it is."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:  # of aiohttp, requests, google.auth, gcsfs
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{url} cannot be reached: {lines[0][:200]}; fix this, or wait, and run again.") from error
