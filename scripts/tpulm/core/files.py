"""Files: atomic writes, fingerprints, and folders from untrusted sources."""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tpulm.core.errors import UserError

UMASK = os.umask(0)
os.umask(UMASK)


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` and move it there when the block ends without an error.

    A reader of `path` sees either nothing (or the file before) or all of the new file, also
    after a crash: the bytes are on disk before the name is.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.chmod(0o666 & ~UMASK)  # some libraries write files that only their owner can read
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


NESTED = 5_000  # lists and objects of a JSON file in each other, about, at most


def read_json(path: str | Path) -> Any:
    """Read a JSON file. Raises UserError where it is nested deeper than any that has a meaning."""
    text, limit = Path(path).read_text(encoding="utf-8"), sys.getrecursionlimit()
    # Snakemake follows chains of checkpoints with a limit at which the parser, which is in C, would break the stack.
    with contextlib.suppress(RecursionError):  # deep in such a chain
        sys.setrecursionlimit(min(limit, NESTED))
    try:
        return json.loads(text)
    except RecursionError:
        raise UserError(f"{path} is nested too deeply; allowed: JSON with at most {NESTED:,} levels.") from None
    finally:
        sys.setrecursionlimit(limit)


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


NO_CODE = "code from data is never run"
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy"}
HDF5 = b"\x89HDF\r\n\x1a\n"
TRUSTED = ("keras", "keras_hub", "keras_nlp", "builtins")


def refuse_code(folder: Path, given: str) -> None:
    """Raise UserError where a JSON file of `folder` asks for code beside it; `given` opens the sentence."""
    for path in sorted(folder.glob("*.json")):
        described = read(path)
        if isinstance(described, dict) and described.get("auto_map"):
            raise UserError(f"{given}, where {path.name} requires custom code (auto_map); {NO_CODE}.")


def refuse_unsafe_preset(folder: Path, given: str) -> None:
    """Raise UserError where a preset folder would run code or open a pickle when it is loaded."""
    refuse_code(folder, given)
    for path in sorted(folder.rglob("*.json")):
        for module, name in named_classes(read(path)):
            if module.split(".")[0] not in TRUSTED or name in ("Lambda", "__lambda__"):
                raise UserError(
                    f"{given}, where {path.name} names {module}.{name}, which is not a class of Keras; {NO_CODE}."
                )
    for path in sorted(folder.rglob("*.h5")):
        with open(path, "rb") as file:
            if file.read(len(HDF5)) != HDF5:
                raise UserError(
                    f"{given}, where {path.name} is not an HDF5 file; allowed: weights in HDF5 or safetensors."
                )
    weights = {path for end in ("*.h5", "*.safetensors") for path in folder.rglob(end)}
    pickles = sorted(path for path in folder.rglob("*") if path.suffix in PICKLES)
    if pickles and not weights:
        raise UserError(
            f"{given}, whose weights are in {pickles[0].name}, a pickle, which can run code when it is loaded; "
            "allowed: weights in HDF5 or safetensors."
        )


def read(path: Path) -> object:
    """Return what a JSON file holds, None where it is none: whoever needs it will say so."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None


def named_classes(value: object) -> Iterator[tuple[str, str]]:
    """Yield module and name of every class that a description by Keras names."""
    if isinstance(value, dict):
        if isinstance(value.get("class_name"), str) and value.get("module") is not None:
            yield str(value["module"]), value["class_name"]
        elif value.get("class_name") in ("Lambda", "__lambda__"):
            yield "keras", value["class_name"]
        for part in value.values():
            yield from named_classes(part)
    elif isinstance(value, list):
        for part in value:
            yield from named_classes(part)
