"""The source of the workflow as an archive keeps it: the files as they are, their commit, and what differs from it."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from tpulm.core.errors import UserError

# What of the workflow's folder is its source; other files there, such as texts, are the user's.
PARTS = (
    *("Snakefile", "config.yaml", "rules", "scripts", "schemas", "envs", "profiles", "report", "recipes", "tools"),
    *("tests", "benchmarks", ".ci", "Makefile", "pyproject.toml", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"),
    *("CHANGELOG.md", "CITATION.cff", "LICENSE"),
)
ENDINGS = (".pyc", ".pyo", ".partial")
PRIVATE = re.compile(rb"^-----BEGIN [A-Z ]*PRIVATE KEY-----", re.MULTILINE)


def source_files(root: Path) -> dict[str, Path]:
    """Return the files of the workflow's source by their paths in its folder, sorted; in a repository, without ignored.

    Raises UserError where a file is not to be given away: a private key, or a link to what is not in the folder.
    """
    names = listed(root, "--cached", "--others", "--exclude-standard")
    if "Snakefile" not in listed(root, "--cached"):
        places = [root / part for part in PARTS]
        paths = [path for place in places for path in ([place] if place.is_file() else place.rglob("*"))]
        names = [path.relative_to(root).as_posix() for path in paths]
    found = {}
    for name in sorted(set(names)):
        path = root / name
        if not name.endswith(ENDINGS) and (path.is_symlink() or path.is_file()):
            check(name, path, root)
            found[name] = path
    return found


def check(name: str, path: Path, root: Path) -> None:
    """Refuse a file that cannot be in an archive, or must not be. Raises UserError."""
    if not name.isprintable() or "\\" in name:  # as undecodable bytes, too
        raise UserError(f"the workflow's folder has a file named {name!a}; nothing is archived. Rename it.")
    if not path.is_file() or not path.resolve().is_relative_to(root.resolve()):
        raise UserError(
            f"{name} of the workflow's folder is a link to {os.path.realpath(path)}; allowed: links to files in that "
            "folder. Nothing is archived."
        )
    if PRIVATE.search(path.read_bytes()):
        raise UserError(
            f"{name} of the workflow's folder holds a private key, which an archive would give away; nothing is "
            "archived. Move it out of the folders of the source, or have git ignore it."
        )


def listed(root: Path, *which: str) -> list[str]:
    """Return the files of the source that git lists; none where the folder is in no repository."""
    return [name for name in (git(root, "ls-files", "-z", *which, "--", *PARTS) or "").split("\0") if name]


def git(root: Path, *arguments: str) -> str | None:
    """Return what git prints of a folder; None where it cannot say."""
    # Neither the user's settings nor a lock: this only reads. But what the user ignores everywhere is ignored here.
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    if "--exclude-standard" not in arguments:
        environment["GIT_CONFIG_GLOBAL"] = os.devnull
    try:
        command = ["git", "-c", "safe.directory=*", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, env=environment, check=False)
    except OSError:
        return None
    return None if done.returncode else done.stdout.decode("utf-8", "surrogateescape")


def version_of(root: Path) -> tuple[dict[str, Any], str]:
    """Return commit (None where the folder is in no repository of its own) and untracked files; and the diff to it."""
    tracked = listed(root, "--cached")
    if "Snakefile" not in tracked:
        return {"commit": None, "changed": None, "untracked": []}, ""
    commit = (git(root, "rev-parse", "HEAD") or "").strip() or None
    diff = git(root, "diff", "--no-color", "--no-ext-diff", "--binary", "--no-renames", "HEAD", "--", *PARTS) or ""
    untracked = sorted(source_files(root).keys() - set(tracked))
    return {"commit": commit, "changed": bool(diff or untracked), "untracked": untracked}, diff
