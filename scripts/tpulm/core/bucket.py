"""Read, write and list objects in Google Cloud Storage, gs://BUCKET/NAME.

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

from tpulm.core.errors import UserError, first_line

if TYPE_CHECKING:
    import numpy as np
    from gcsfs.core import GCSFileSystem

SCHEME = "gs://"
STALLED = 30  # seconds without a byte
AT_ONCE = 16  # most requests at the same time
BUFFER = 4 << 20  # bytes of a request when an object is read sequentially


def remote(place: str | Path) -> bool:
    """Return whether a path is the URL of an object in a bucket."""
    return str(place).startswith(SCHEME)


@cache
def file_system() -> "GCSFileSystem":
    """Return gcsfs's file system, whose methods block and are thread-safe."""
    # gcsfs would request the kind of each bucket by gRPC, to which an emulator does not answer for a minute.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    import aiohttp
    from gcsfs.core import GCSFileSystem

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=STALLED, sock_read=STALLED)
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it writes tracebacks for errors that `sentences` reports
    token = "anon" if os.environ.get("STORAGE_EMULATOR_HOST") else None
    return GCSFileSystem(token=token, requests_timeout=timeout, use_listings_cache=False, skip_instance_cache=True)


@cache
def readers() -> queue.SimpleQueue:
    """Return the queue of AT_ONCE threads that read.

    They are daemons: threads of concurrent.futures would delay the end of a program until the network has answered.
    """
    waiting: queue.SimpleQueue = queue.SimpleQueue()
    for _ in range(AT_ONCE):
        threading.Thread(target=read_requests, args=(waiting,), daemon=True).start()
    return waiting


def read_requests(waiting: queue.SimpleQueue) -> None:
    """Serve requests for ever: each is a future, and the function that computes its result."""
    while True:
        future, function = waiting.get()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)


def request(url: str, start: int | None = None, stop: int | None = None) -> Future:
    """Begin to read bytes `start` to `stop` of an object, by default all; return the future for `result`."""
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
    """An object as a seekable file: each read requests just its bytes."""

    def __init__(self, url: str):
        """Request the size. Raises as `result` does, here and when bytes are read."""
        super().__init__()
        self.size, _ = state(url)
        self.url, self.place = url, 0

    def readable(self) -> bool:
        """Return True: the bytes can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: any position can be read."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position, relative to the beginning, the current position or the end; return it."""
        self.place = offset + (0, self.place, self.size)[whence]
        return self.place

    def tell(self) -> int:
        """Return the current position."""
        return self.place

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        """Read up to as many bytes as `buffer` takes; return how many."""
        stop = min(self.place + len(buffer), self.size)
        data = read_object(self.url, self.place, stop) if self.place < stop else b""
        buffer[: len(data)] = data
        self.place += len(data)
        return len(data)


def array(place: str | Path) -> "np.ndarray":
    """Return the array of a NumPy file or object; a file is memory-mapped."""
    import numpy as np

    return np.load(io.BytesIO(read_object(str(place)))) if remote(place) else np.load(place, mmap_mode="r")


def opened(place: str | Path) -> io.BufferedReader:
    """Open a file or an object for sequential reading. Raises as `result` does, and OSError."""
    return io.BufferedReader(Object(str(place)), BUFFER) if remote(place) else open(place, "rb")


def state(place: str | Path) -> tuple[int, str]:
    """Return the bytes of a file or an object, and a version that changes when it is written.

    Raises as `result` does, and OSError.
    """
    if not remote(place):
        status = os.stat(place)
        return status.st_size, str(status.st_mtime_ns)
    with sentences(str(place)):
        info = file_system().info(str(place))
    return int(info["size"]), f"{info.get('generation')} {info.get('md5Hash')}"


def objects_matching(pattern: str) -> dict[str, int]:
    """Return the bytes of the objects that match a glob gs://BUCKET/PATTERN, by URL. Raises UserError."""
    with sentences(pattern):
        infos = file_system().glob(pattern, detail=True)
    return {f"{SCHEME}{name}": int(info["size"]) for name, info in infos.items() if info["type"] == "file"}


def read_objects(places: list[str]) -> Iterator[bytes]:
    """Yield the content of files or objects, up to the first absent one; objects are requested ahead."""
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
    """Return whether a file or an object exists. Raises UserError."""
    if not remote(place):
        return Path(place).exists()
    with sentences(place):
        return file_system().exists(place)


class Entry(NamedTuple):
    """The metadata of an object: its size in bytes, its MD5 in base64 ("" of a composite)."""

    size: int
    md5: str


def objects(folder: str) -> dict[str, Entry]:
    """Return the objects below gs://BUCKET/FOLDER by relative name. Raises UserError."""
    root = folder.removeprefix(SCHEME).rstrip("/") + "/"
    with sentences(folder):
        infos = file_system().find(root, detail=True)
    return {name.removeprefix(root): Entry(int(info["size"]), info.get("md5Hash", "")) for name, info in infos.items()}


def sizes(folder: str) -> dict[str, int]:
    """Return the bytes of the objects below gs://BUCKET/FOLDER by relative name. Raises UserError."""
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
    """Delete objects; absent ones are ignored. Raises UserError."""
    for url in urls:
        with sentences(url), contextlib.suppress(FileNotFoundError):
            file_system().rm_file(url)


def check_writable(folder: str) -> None:
    """Raise UserError if the bucket does not exist, or gs://BUCKET/FOLDER cannot be written."""
    probe = f"{folder}/.writable-{secrets.token_hex(8)}"
    try:
        with sentences(folder):
            file_system().pipe_file(probe, b"")
    except FileNotFoundError:
        name = "/".join(folder.split("/")[:3])
        raise UserError(f"there is no bucket {name}; create it with: gcloud storage buckets create {name}") from None
    delete([probe])


def claim(mark: str, identity: str) -> None:
    """Claim the folder of the object `mark` for a working folder; identity  "TOKEN HOST:PATH", compared by TOKEN.

    Raises UserError if another working folder has claimed it: a lock of one machine does not keep them apart.
    """

    def owner() -> str | None:
        try:
            return read_object(mark).decode()
        except FileNotFoundError:
            return None

    if owner() is None:
        with sentences(mark), contextlib.suppress(FileExistsError):  # the first of two at once gets it
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
    """Turn a failure after gcsfs's attempts into a UserError; FileNotFoundError is raised unchanged."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:  # raised by aiohttp, requests, google.auth, gcsfs
        raise UserError(f"{url} cannot be reached: {first_line(error)}; fix this, or wait, and run again.") from error
