"""What starts with Snakemake, and with a profile, is light: what `make lint` looks at is what the rules import."""

import re
import tomllib
from pathlib import Path

import pytest
from tpulm.core.code_digest import imported_files

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


def test_lint_looks_at_all_that_the_rules_import():
    modules = imported_by_the_rules()
    assert "tpulm.specs.texts" in modules and "tpulm.workflow.paths" in modules
    covered = LIGHT["source_modules"]  # which import nothing heavy, nor what imports it
    assert [one for one in modules if not any(f"{one}.".startswith(f"{part}.") for part in covered)] == []


def test_profiles_import_the_core_only():
    for path in (ROOT / "profiles").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) tpulm(?!\.core\b)", path.read_text(), re.M), path


def test_no_script_that_makes_an_artifact_reads_the_config():
    scripts = ROOT / "scripts"
    paths = [path.relative_to(scripts).as_posix() for path in scripts.glob("*/*.py") if path.parent.name != "tpulm"]
    found = {Path(path).stem for path in paths if any("tpulm/config/" in file for file in imported_files(path))}
    assert found == {"plan"}  # which prints
