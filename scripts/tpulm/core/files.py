"""Files: atomic writes, JSON and fingerprints."""

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
    """Yield a temporary path beside `path` and move it there when the block ends without an error.

    A reader of `path` sees either nothing (or the file before) or all of the new file, also
    after a crash: the bytes are on disk before the name is.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    partial.touch()
    mode = partial.stat().st_mode  # of new files by the umask, which no process with threads can ask for
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
    """Write `text` as UTF-8, whole or not at all."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="")


def write_json(path: str | Path, value: object) -> None:
    """Write `value` as indented JSON, whole or not at all. NaN and infinity are refused (they are no JSON)."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


DEEPEST = 500  # lists and objects of a JSON file in each other
STRINGS_AND_VALUES = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[^][{}"]+', re.DOTALL)


def read_json(path: str | Path) -> Any:
    """Read a JSON file. Raises UserError where it is nested deeper than any that has a meaning.

    The depth is counted first: with the recursion limit of Snakemake's long chains, the parser, which is in C, would
    overflow the stack.
    """
    text = Path(path).read_text(encoding="utf-8")
    if depth(text) > DEEPEST:
        raise UserError(f"{path} is nested too deeply; allowed: JSON with at most {DEEPEST} levels.")
    return json.loads(text)


def depth(text: str) -> int:
    """Return at least how deep lists and objects of a JSON text are in each other."""
    if text.count("[") + text.count("{") <= DEEPEST:  # most texts, at once
        return 0
    brackets = STRINGS_AND_VALUES.sub("", text)
    return max(itertools.accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0)


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_each(paths: Iterable[str | Path], known: bool = False) -> list[str]:
    """Return the SHA-256 of each file, in hexadecimal, read side by side: one core hashes slower than disks read.

    known  whether that of a large file is taken from when it was last read, see `known_sha256`
    """
    with ThreadPoolExecutor() as pool:
        return list(pool.map(known_sha256 if known else sha256, paths))


def files_of(path: str | Path) -> list[Path]:
    """Return a file, or the files of a folder, sorted, hidden ones aside; none where nothing is there."""
    path = Path(path)
    if not path.is_dir():
        return [path] if path.is_file() else []
    found = (file for file in sorted(path.rglob("*")) if file.is_file())
    return [file for file in found if not any(part.startswith(".") for part in file.relative_to(path).parts)]


def fingerprints(folder: str | Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder by its path in there, sorted; hidden ones are Snakemake's."""
    return {path.relative_to(folder).as_posix(): sha256(path) for path in files_of(folder)}


SUMS = Path(".snakemake") / "sums"
LARGE = 1 << 20  # bytes


def known_sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal: of a large one from when it was last read, if it is that file.

    Jobs that read parts of a file of gigabytes would take longer to hash all of it than to do their work.
    """
    there = os.stat(path)
    if there.st_size < LARGE:
        return sha256(path)
    kept = SUMS / hashlib.sha256(os.path.abspath(path).encode()).hexdigest()
    version = f"{there.st_size} {there.st_mtime_ns} {there.st_ctime_ns} {there.st_ino} "
    with contextlib.suppress(OSError):
        text = kept.read_text()
        if text.startswith(version):
            return text.removeprefix(version)
    digest = sha256(path)
    with contextlib.suppress(OSError):
        write_text(kept, version + digest)
    return digest
