"""Which modules of this project a script stands on."""

import ast
from pathlib import Path


def imported(path: Path, scripts: Path) -> set[Path]:
    """Return the modules under `scripts`/lib that a file imports, through other modules too."""
    found: set[Path] = set()
    queue = [path]
    while queue:
        for node in ast.walk(ast.parse(queue.pop().read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                file = scripts.joinpath(*name.split(".")).with_suffix(".py")
                if name.startswith("lib.") and file.is_file() and file not in found:
                    found.add(file)
                    queue.append(file)
    return found
