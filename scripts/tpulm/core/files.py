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


def sha256_of_each(paths: Iterable[str | Path]) -> list[str]:
    """Return the SHA-256 of each file, in hexadecimal, read side by side: one core hashes slower than disks read."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(sha256, paths))


def fingerprints(folder: str | Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder by its path in there, sorted; hidden ones are Snakemake's."""
    paths = (path for path in sorted(Path(folder).rglob("*")) if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): sha256(path) for path in paths}


def hidden_copy(path: str | Path) -> Path:
    """Return where a copy of a file is kept that Snakemake does not know, and does not delete before a job."""
    return Path(path).with_name(f".{Path(path).name}")
