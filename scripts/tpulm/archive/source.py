"""The source of the workflow as an archive keeps it: the files as they are, their commit, and what differs from it."""

import os
import subprocess
from pathlib import Path
from typing import Any

# What of the workflow's folder is its source; other files there, such as texts, are the user's.
PARTS = (
    *("Snakefile", "config.yaml", "rules", "scripts", "schemas", "envs", "profiles", "report", "recipes", "tools"),
    *("tests", "benchmarks", ".ci", "Makefile", "pyproject.toml", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"),
    *("CHANGELOG.md", "CITATION.cff", "LICENSE"),
)
ENDINGS = (".pyc", ".pyo", ".partial")


def source_files(root: Path) -> dict[str, Path]:
    """Return the files of the workflow's source by their paths in its folder, sorted."""
    found = {}
    for part in PARTS:
        place = root / part
        paths = [place] if place.is_file() else place.rglob("*")
        for path in paths:
            name = path.relative_to(root).as_posix()
            if path.is_file() and not name.endswith(ENDINGS) and name.isascii():
                found[name] = path
    return dict(sorted(found.items()))


def git(root: Path, *arguments: str) -> str | None:
    """Return what git prints of a folder; None where it cannot say."""
    # Neither the user's settings nor a lock: this only reads.
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    try:
        command = ["git", "-c", "safe.directory=*", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, env=environment, check=False)
    except OSError:
        return None
    return None if done.returncode else done.stdout.decode("utf-8", "replace")


def version_of(root: Path) -> tuple[dict[str, Any], str]:
    """Return commit (None where the folder is in no repository of its own) and untracked files; and the diff to it."""
    tracked = git(root, "ls-files", "--", *PARTS)
    if not tracked or "Snakefile" not in tracked.splitlines():
        return {"commit": None, "changed": None, "untracked": []}, ""
    commit = (git(root, "rev-parse", "HEAD") or "").strip() or None
    diff = git(root, "diff", "--no-color", "--no-ext-diff", "--binary", "--no-renames", "HEAD", "--", *PARTS) or ""
    untracked = sorted(source_files(root).keys() - set(tracked.splitlines()))
    return {"commit": commit, "changed": bool(diff or untracked), "untracked": untracked}, diff
