"""Objects of Google Cloud Storage, gs://BUCKET/NAME, read over the network.

A request that fails for a moment (408, 429, 5xx, a reset, no byte for STALLED seconds) is made again by gcsfs after
1, 2, 4, 8 and 16 seconds; what fails six times raises a UserError. STORAGE_EMULATOR_HOST says where else the API is
served, as it does to Google's own clients.
"""

import asyncio
import os
from concurrent.futures import Future
from functools import cache

from lib.errors import UserError

SCHEME = "gs://"
STALLED = 30  # seconds without a byte
AT_ONCE = 16  # requests


def remote(place: str) -> bool:
    """Return whether a place is an object of a bucket and not a file of this machine."""
    return str(place).startswith(SCHEME)


@cache
def connection():
    """Return the file system of gcsfs and what bounds its requests; its event loop is a daemon thread."""
    # gcsfs asks by gRPC for the kind of each bucket, which an emulator lets run into a time-out of minutes.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    import aiohttp
    from gcsfs.core import GCSFileSystem

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=STALLED, sock_read=STALLED)
    token = "anon" if os.environ.get("STORAGE_EMULATOR_HOST") else None
    files = GCSFileSystem(token=token, requests_timeout=timeout, use_listings_cache=False, skip_instance_cache=True)
    return files, asyncio.Semaphore(AT_ONCE)


def request(url: str, start: int | None = None, stop: int | None = None) -> Future:
    """Begin to read bytes `start` to `stop` of an object, by default all; see `result` for how to wait."""
    files, bound = connection()

    async def read() -> bytes:
        async with bound:
            return await files._cat_file(url, start=start, end=stop)

    return asyncio.run_coroutine_threadsafe(read(), files.loop)


def result(future: Future, url: str) -> bytes:
    """Return what a request read. Raises FileNotFoundError where there is no such object, otherwise UserError."""
    try:
        return future.result()
    except FileNotFoundError:
        raise FileNotFoundError(url) from None
    except Exception as error:  # of aiohttp, requests, google.auth, gcsfs: whatever is left after six times
        raise unreachable(url, error) from error


def read(url: str, start: int | None = None, stop: int | None = None) -> bytes:
    """Return bytes `start` to `stop` of an object, by default all. Raises as `result` does."""
    return result(request(url, start, stop), url)


def sizes(folder: str) -> dict[str, int]:
    """Return the size in bytes of every object below gs://BUCKET/FOLDER, by its name in there. Raises UserError."""
    files, _ = connection()
    root = folder.removeprefix(SCHEME).rstrip("/") + "/"
    try:
        found = files.find(root, detail=True)
    except Exception as error:
        raise unreachable(folder, error) from error
    return {name.removeprefix(root): entry["size"] for name, entry in found.items()}


def unreachable(url: str, error: Exception) -> UserError:
    """Return the sentence for what could not be read, or only in part."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return UserError(f"{url} cannot be read, though it was tried six times: {lines[0][:200]}; run again to go on.")
