"""Write files atomically, read and write JSON, and compute SHA-256 sums."""

import contextlib
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tpulm.core.errors import UserError


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`, and move it to `path` when the block ends without an error.

    A reader of `path` sees nothing, the old file, or all of the new file, also after a crash: the bytes are on disk
    before the name is.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    partial.touch()
    mode = partial.stat().st_mode  # set by the umask, which a process with threads cannot read
    partial.unlink()
    try:
        yield partial
        partial.chmod(mode)  # some libraries write files that only their owner can read
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="")


def write_json(path: str | Path, value: object) -> None:
    """Write `value` as indented JSON, atomically. Raises ValueError for NaN and infinity, which JSON lacks."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


DEEPEST = 500  # nested lists and objects of a JSON file
STRINGS_AND_VALUES = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[^][{}"]+', re.DOTALL)


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file. Raises UserError if it is nested too deeply.

    The depth is counted first: with the recursion limit that Snakemake sets, the parser in C would overflow the stack.
    """
    text = Path(path).read_text(encoding="utf-8")
    if depth(text) > DEEPEST:
        raise UserError(f"{path} is nested too deeply; allowed: JSON with at most {DEEPEST} levels.")
    return json.loads(text)


def depth(text: str) -> int:
    """Return the depth of nested lists and objects of a JSON text; 0 if it cannot exceed DEEPEST."""
    if text.count("[") + text.count("{") <= DEEPEST:  # fast, for most texts
        return 0
    brackets = STRINGS_AND_VALUES.sub("", text)
    return max(itertools.accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0)


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_each(paths: Iterable[str | Path], known: bool = False) -> list[str]:
    """Return the SHA-256 of each file, in hexadecimal, in parallel: one core hashes slower than disks read.

    known  whether to use `known_sha256`
    """
    with ThreadPoolExecutor() as pool:
        return list(pool.map(known_sha256 if known else sha256, paths))


def files_of(path: str | Path) -> list[Path]:
    """Return a file, or the sorted files of a folder without hidden ones; none if the path does not exist."""
    path = Path(path)
    if not path.is_dir():
        return [path] if path.is_file() else []
    files = (file for file in sorted(path.rglob("*")) if file.is_file())
    return [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]


def fingerprints(folder: str | Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder by relative path, sorted, without hidden files."""
    return {path.relative_to(folder).as_posix(): sha256(path) for path in files_of(folder)}


SUMS = Path(".snakemake") / "sums"
LARGE = 1 << 20  # bytes of a file whose SHA-256 is cached


def known_sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal; that of a large file is cached, since hashing takes long."""
    status = os.stat(path)
    if status.st_size < LARGE:
        return sha256(path)
    cache = SUMS / hashlib.sha256(os.path.abspath(path).encode()).hexdigest()
    version = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino} "
    with contextlib.suppress(OSError):
        text = cache.read_text()
        if text.startswith(version):
            return text.removeprefix(version)
    digest = sha256(path)
    with contextlib.suppress(OSError):
        write_text(cache, version + digest)
    return digest
