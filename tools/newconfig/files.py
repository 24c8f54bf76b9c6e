"""Find the files that the command line names, and the globs that a config names them by."""

import glob
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpulm.core.bucket import remote
from tpulm.core.errors import UserError, did_you_mean_path
from tpulm.core.user_files import each_once, paths_matching, size_of
from tpulm.corpus.sources import ALLOWED, expand, format_of, gzipped

SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "dev": "validation", "test": "test"}


def find_files(paths: Sequence[str]) -> tuple[dict[str, list[str]], int]:
    """Return the files of arguments by glob, each once, and how many other names lead to one. Raises UserError."""
    by_glob, names = dict[str, list[str]](), list[str]()
    for path in paths:
        patterns, inside = [glob.escape(path) if os.path.isfile(path) else path], list[str]()
        if os.path.isdir(path):  # a glob for each kind of file in it
            inside = [path, *paths_matching(os.path.join(glob.escape(path), "**", "*"))]
            files = [Path(file) for file in inside if os.path.isfile(file) and format_of(file)]
            ends = {"".join(file.suffixes[-2:] if gzipped(str(file)) else file.suffixes[-1:]) for file in files}
            if not ends:
                raise UserError(f"{path} is a folder without text; allowed: one with files of {ALLOWED}.")
            patterns = [os.path.join(glob.escape(path), "**", f"*{end}") for end in sorted(ends)]
        elif not remote(path) and not os.path.exists(path) and not glob.glob(path, recursive=True):
            meant = did_you_mean_path(path) or f"; allowed: a file, a folder or a glob, of {ALLOWED}."
            raise UserError(f"{path} does not exist{meant}")
        expanded = {pattern: expand("corpus", pattern) for pattern in patterns}
        names += inside or [file for some in expanded.values() for file in some]
        by_glob |= expanded
    once = set(each_once(file for files in by_glob.values() for file in files))
    by_glob = {pattern: [file for file in files if file in once] for pattern, files in by_glob.items()}
    return by_glob, len(names) - len(set(map(os.path.realpath, names)))


def text_size(file: str) -> int:
    """Return the bytes of a file without compression, about."""
    size = told = size_of(file)
    if gzipped(file) and not remote(file):
        with open(file, "rb") as data:  # gzip ends with the size, of several members with that of the last one
            data.seek(max(0, size - 4))
            told = int.from_bytes(data.read(), "little")
    return told if told > size else size * (3 if gzipped(file) or format_of(file) == "parquet" else 1)


def globs_of(by_glob: Mapping[str, list[str]], chosen: Sequence[str]) -> dict[str, list[str]] | list[str]:
    """Return the globs of the chosen files; by split where each is named for one, such as train.txt or test-1.txt."""
    words = {file: re.split(r"[-_.]", Path(file).name)[0] for file in chosen}
    named = {file: SPLITS.get(word.lower(), "") for file, word in words.items()}
    if "train" in named.values() and "" not in named.values():
        splits = [split for split in ("train", "validation", "test") if split in named.values()]
        return {split: few_globs({file: words[file] for file in chosen if named[file] == split}) for split in splits}
    globs = [pattern for pattern, files in by_glob.items() if files and set(files) <= set(chosen)]
    matched = {file for pattern in globs for file in by_glob[pattern]}
    globs += [glob.escape(file) for file in chosen if file not in matched]
    return few_globs(dict.fromkeys(chosen, "")) if len(globs) > 9 else globs


def few_globs(words: Mapping[str, str]) -> list[str]:
    """Return globs by the first words of the names of files, or the files where these match others or are not fewer."""
    ends = {os.path.join(glob.escape(os.path.dirname(f)), f"{words[f]}*{os.path.splitext(f)[1]}") for f in words}
    same = sorted(file for end in ends for file in glob.glob(end)) == sorted(words)
    return sorted(ends) if same and len(ends) < len(words) else list(map(glob.escape, words))
