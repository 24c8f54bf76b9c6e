"""The files that a config names: globs, and what names of files must not have."""

import glob
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator

from tpulm.core import bucket
from tpulm.core.errors import UserError, did_you_mean_path

SLACK = 60  # seconds by which clocks of hosts that share files may differ
SIZES: dict[str, int] = {}  # bytes of the objects that `matching_files` has returned


def matching_files(key: str, pattern: str, example: str = "*") -> list[str]:
    """Return the files, or objects gs://BUCKET/NAME, that a glob matches; `**` matches folders.

    key      of the config, for messages; example  a glob of files in a folder

    A file whose name is the pattern is the only match. Raises UserError without a match, and for names that Snakemake
    cannot read.
    """
    if bucket.remote(pattern):
        SIZES.update(sizes := bucket.objects_matching(pattern))
        paths = list(sizes)
    elif os.path.isfile(pattern):
        paths = [pattern]
    else:
        paths = each_once(filter(os.path.isfile, paths_matching(pattern)))
    if not paths:
        raise UserError(f"{key}: no file matches {pattern}{reason_without_match(pattern, example)}")
    for path in paths:
        check_file(key, path)
    return paths


def reason_without_match(pattern: str, example: str) -> str:
    """Return the end of a sentence on a glob without a match: it is a folder or not expanded, or where it begins."""
    if os.path.isdir(pattern):
        return f", which is a folder; allowed: files, such as {os.path.join(glob.escape(pattern), example)}."
    if re.match(r"[a-z0-9+]+://", pattern):
        return "; allowed: files of this machine, or objects gs://BUCKET/NAME."
    if re.search(r"^~|\$|\{.*\}", pattern):
        return "; ~, $HOME and {a,b} are not expanded; allowed: paths with the wildcards *, ?, [ab] and **."
    here = "" if os.path.isabs(pattern) else f" in {os.getcwd()}"
    return f"{here}{did_you_mean_path(pattern) or '.'}"


def check_file(key: str, path: str) -> None:
    """Raise UserError for a path that Snakemake cannot use: with braces, not in UTF-8, or dated in the future."""
    if {"{", "}"} & {*path}:
        raise UserError(f"{key}: {path} has braces, Snakemake's wildcards; allowed: names without {{ and }}.")
    try:
        path.encode()
    except UnicodeEncodeError:
        name = path.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise UserError(f"{key}: the name {name} is not in UTF-8; allowed: names in UTF-8.") from None
    # Snakemake takes the later date of a symbolic link and of the file that it leads to.
    for option, status in () if bucket.remote(path) else (("", os.stat(path)), ("-h ", os.lstat(path))):
        if status.st_mtime > time.time() + SLACK:
            date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(status.st_mtime))
            raise UserError(
                f"{key}: {path} is dated {date}, so everything that is made from it would be older; to date it today: "
                f"touch {option}{shlex.quote(path)}."
            )


def paths_matching(pattern: str) -> Iterator[str]:
    """Yield the paths that match a glob; `**` enters each folder once, though symbolic links may lead back."""
    pattern = re.sub(r"(^|/)\*\*$", r"\1**/*", pattern)
    if pattern.startswith("**/"):
        yield from (path.removeprefix("./") for path in paths_matching(f"./{pattern}"))
        return
    before, recursive, after = pattern.partition("/**/")
    if not recursive:
        yield from glob.glob(pattern)
    entered = set()
    for root in glob.glob(before or "/") if recursive else []:
        for folder, names, _ in os.walk(root, followlinks=True):
            names[:] = sorted(name for name in names if not name.startswith("."))
            if (real := os.path.realpath(folder)) in entered:
                names.clear()
            else:
                entered.add(real)
                yield from paths_matching(os.path.join(glob.escape(folder), after))


def each_once(paths: Iterable[str]) -> list[str]:
    """Return sorted paths, for each file only the shortest of its paths."""
    first: dict[str, str] = {}
    for path in sorted(paths, key=lambda path: (len(path), path)):
        first.setdefault(path if bucket.remote(path) else os.path.realpath(path), path)
    return sorted(first.values())


def size_of(file: str) -> int:
    """Return the bytes of a file, or of an object that `matching_files` has returned."""
    return SIZES[file] if bucket.remote(file) else os.path.getsize(file)
