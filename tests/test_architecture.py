"""What starts with Snakemake, and with a profile, is light: tests of what `make lint` does not see."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[1]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LIGHT = next(contract for contract in CONTRACTS if contract["id"] == "light")


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


def test_nothing_heavy_is_loaded_by_what_the_rules_import():
    modules = imported_by_the_rules()
    assert "tpulm.config.texts" in modules and "tpulm.workflow.paths" in modules
    covered = LIGHT["source_modules"]  # of what these import in functions, `make lint` says the same
    assert [one for one in modules if not any(f"{one}.".startswith(f"{part}.") for part in covered)] == []
    code = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]; print(*sys.modules)"
    command = [sys.executable, "-c", code, *sorted(modules)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert not set(LIGHT["forbidden_modules"]) & set(done.stdout.split())


def test_profiles_import_the_core_only():
    for path in (ROOT / "profiles").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) tpulm(?!\.core\b)", path.read_text(), re.M), path
