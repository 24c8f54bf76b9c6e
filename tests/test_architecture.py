"""Who may import whom: the contracts of pyproject.toml, held against the package, the rules and the profiles."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[1]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LIGHT = next(contract for contract in CONTRACTS if contract["id"] == "light")


def lint_imports(scripts: Path) -> subprocess.CompletedProcess:
    """Hold the package in the folder `scripts` to the contracts."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--config", ROOT / "pyproject.toml"]
    environment = os.environ | {"PYTHONPATH": str(scripts)}
    return subprocess.run(command, cwd=scripts, env=environment, capture_output=True, text=True)


def imported_by_the_rules() -> set[str]:
    """Return the modules of the package that Snakefile and rules/*.smk import."""
    found = set()
    for path in (ROOT / "Snakefile", *(ROOT / "rules").glob("*.smk")):
        for room, names in re.findall(r"^ *from (tpulm[\w.]*) import (\([^)]*|.*)", path.read_text(), re.M):
            for name in re.findall(r"\w+", names):
                inner = ROOT / "scripts" / room.replace(".", "/") / name
                found.add(f"{room}.{name}" if inner.with_suffix(".py").exists() or inner.is_dir() else room)
        found |= set(re.findall(r"^ *import (tpulm[\w.]*)", path.read_text(), re.M))
    return found


def test_the_package_keeps_to_its_contracts():
    done = lint_imports(ROOT / "scripts")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "line", "named"),
    [
        ("core/files.py", "import tpulm.specs.schedule", "tpulm.core is not allowed to import tpulm.specs"),
        ("records/order.py", "import tpulm.corpus.splits", "tpulm.records is not allowed to import tpulm.corpus"),
        ("training/history.py", "import tpulm.report.charts", "tpulm.training is not allowed to import tpulm.report"),
        ("specs/schedule.py", "import jax", "tpulm.specs is not allowed to import jax"),
        ("core/errors.py", "def f():\n    import keras", "tpulm.workflow is not allowed to import keras"),
    ],
)
def test_an_import_that_is_not_allowed_is_named(tmp_path, file, line, named):
    shutil.copytree(ROOT / "scripts/tpulm", tmp_path / "tpulm", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / "tpulm" / file, "a") as module:
        module.write(f"\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1 and named in " ".join(done.stdout.split()), done.stdout


def test_the_contract_covers_what_the_rules_import():
    covered = LIGHT["source_modules"]
    found = imported_by_the_rules()
    assert "tpulm.config.texts" in found and "tpulm.workflow.paths" in found and len(found) > 5
    inside = {module: [part for part in covered if f"{module}.".startswith(f"{part}.")] for module in found}
    assert [module for module, parts in inside.items() if not parts] == []
    assert {part for parts in inside.values() for part in parts} == set(covered)


def test_nothing_heavy_is_loaded_by_what_the_rules_import():
    code = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]; print(*sys.modules)"
    command = [sys.executable, "-c", code, *sorted(imported_by_the_rules())]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert not set(LIGHT["forbidden_modules"]) & set(done.stdout.split())


@pytest.mark.parametrize("path", sorted((ROOT / "profiles").rglob("*.py")), ids=lambda path: path.stem)
def test_profiles_import_the_core_only(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            assert not name.startswith("tpulm") or name.startswith("tpulm.core."), f"{path} imports {name}"
