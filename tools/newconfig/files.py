"""Find the files that the command line names, and the globs that a config names them by."""

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

from tpulm.core.bucket import remote
from tpulm.core.errors import UserError
from tpulm.corpus.sources import ALLOWED, kind_of, packed

SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "dev": "validation", "test": "test"}


def patterns(path: str) -> list[str]:
    """Return the globs that an argument stands for: of a folder, one for each kind of file in it. Raises UserError."""
    if os.path.isfile(path):
        return [glob.escape(path)]
    if os.path.isdir(path):
        inside = map(Path, glob.glob(os.path.join(glob.escape(path), "**", "*"), recursive=True))
        files = [file for file in inside if file.is_file() and kind_of(str(file))]
        ends = {"".join(file.suffixes[-2:] if packed(str(file)) else file.suffixes[-1:]) for file in files}
        if not ends:
            raise UserError(f"{path} is a folder without text; allowed: one with files of {ALLOWED}.")
        return [os.path.join(glob.escape(path), "**", f"*{end}") for end in sorted(ends)]
    if not remote(path) and not glob.glob(path, recursive=True):
        raise UserError(f"{path} does not exist; allowed: a file, a folder or a glob, of {ALLOWED}.")
    return [path]


def by_split(files: Sequence[str]) -> dict[str, list[str]] | None:
    """Return globs by split where each file is named for one, such as train.txt or test-1.txt; None otherwise."""
    found: dict[str | None, list[tuple[str, str]]] = {}
    for file in files:
        word = re.split(r"[-_.]", Path(file).name)[0]
        found.setdefault(SPLITS.get(word.lower()), []).append((file, word))
    if None in found or "train" not in found:
        return None
    return {split: alike(found[split]) for split in ("train", "validation", "test") if split in found}


def alike(files: Sequence[tuple[str, str]]) -> list[str]:
    """Return globs of the files of a split, named with their first words: few ones if these match no other files."""
    names = [file for file, _ in files]
    ends = {os.path.join(glob.escape(os.path.dirname(file)), f"{word}*{Path(file).suffix}") for file, word in files}
    same = sorted(file for end in ends for file in glob.glob(end)) == sorted(names)
    return sorted(ends) if same and len(names) > len(ends) else list(map(glob.escape, names))


def fewer(globs: list[str], files: Sequence[str]) -> list[str]:
    """Return globs of whole folders instead of the many files that a shell makes of *.txt, where both are the same."""
    ends = sorted({os.path.join(glob.escape(os.path.dirname(f)), f"*{os.path.splitext(f)[1]}") for f in files})
    same = len(globs) > 9 >= len(ends) and sorted(f for end in ends for f in glob.glob(end)) == list(files)
    return ends if same else globs
