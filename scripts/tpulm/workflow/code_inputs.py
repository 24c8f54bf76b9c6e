"""The modules of this project that a script depends on."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# Where a statement has others: in a function, `with`, `if`, `else`, `try`, `except`, `finally`, `case`.
BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")


def imported(path: Path, scripts: Path) -> set[Path]:
    """Return the modules under the package that a file imports, through other modules too."""
    found: set[Path] = set()
    queue = [path]
    while queue:
        new = named(queue.pop(), scripts) - found
        found |= new
        queue += new
    return found


@cache
def named(path: Path, scripts: Path) -> frozenset[Path]:
    """Return the modules under the package that a file itself names; many files name the same, which is read once."""
    found: set[Path] = set()
    for node in statements(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        files = [scripts.joinpath(*name.split(".")).with_suffix(".py") for name in names if name.startswith("tpulm.")]
        found.update(file for file in files if file.is_file())
    return frozenset(found)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements and those within them; not the expressions, which are most of a tree."""
    for node in body:
        yield node
        for block in BLOCKS:
            inner = getattr(node, block, None)
            if isinstance(inner, list):
                yield from statements(inner)
