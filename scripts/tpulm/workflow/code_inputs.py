"""The modules of this project that a script depends on."""

import re
from functools import cache
from pathlib import Path

# An import statement, as the formatter leaves it. The syntax tree of all modules would take a quarter of a second of
# each start of Snakemake.
IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(tpulm[\w.]*)[ \t]+)?import[ \t]+(\([^)]*\)|[^\n(]*)", re.MULTILINE)
COMMENT = re.compile(r"#[^\n]*")
# What a script does for one backend only, as the formatter leaves it: a statement with the lines under it.
BRANCH = re.compile(r'^( *)if recipe\["backend"\] == "(\w+)":\n(?:\1 +[^\n]*\n|\n)+', re.MULTILINE)


def imported(path: Path, scripts: Path, environment: str = "") -> set[Path]:
    """Return the modules under the package that a file imports, through other modules too.

    environment  of the job; where it is a backend's, without what a script does for the other one
    """
    found: set[Path] = set()
    queue = [*imported_modules(path, scripts, environment)]
    while queue:
        one = queue.pop()
        if one not in found:
            found.add(one)
            queue += imported_modules(one, scripts)
    return found


@cache
def imported_modules(path: Path, scripts: Path, environment: str = "") -> frozenset[Path]:
    """Return the modules under the package that a file itself names; many files name the same, which is read once."""
    source = path.read_text(encoding="utf-8")
    if environment:
        source = BRANCH.sub(lambda branch: branch[0] if branch[2] == environment else "", source)
    files = (scripts.joinpath(*name.split(".")).with_suffix(".py") for name in names(source))
    return frozenset(file for file in files if is_file(file))


def names(source: str) -> set[str]:
    """Return what the import statements of a module of Python name below the package, modules and what is in them."""
    found: set[str] = set()
    for package, listed in IMPORT.findall(source):
        members = [member.split() for member in COMMENT.sub("", listed).strip("()").split(",")]
        first = [member[0] for member in members if member]  # without `as NAME`
        found |= {package, *(f"{package}.{name}" for name in first)} if package else set(first)
    return {name for name in found if name.startswith("tpulm.")}


is_file = cache(Path.is_file)
