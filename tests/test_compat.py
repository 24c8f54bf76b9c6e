"""No library is patched outside of one room, and a library that moves is named."""

import ast
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import ROOT
from tpulm.compat.optional_imports import TABLES, TENSORFLOW, kept_out

ROOM = ROOT / "scripts/tpulm/compat"
SOURCES = [
    path
    for folder in ("scripts", "tools", "profiles")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if ROOM not in path.parents
]


def replaces_a_function(node: ast.AST, functions: set[str]) -> bool:
    """Return whether a statement puts a function of this file, or a lambda, in the place of another object's.

    Those of `sys` are hooks, which its manual has one set.
    """
    if not isinstance(node, ast.Assign):
        return False
    function = isinstance(node.value, ast.Lambda) or ast.unparse(node.value) in functions
    owners = [ast.unparse(one.value) for one in node.targets if isinstance(one, ast.Attribute)]
    return function and not set(owners) <= {"self", "sys"}


@pytest.mark.unit
def test_no_function_of_a_library_is_replaced_outside_of_the_room():
    """Ruff holds the rest: private names (SLF001), and modules named `src` (TID251)."""
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(tree):
            assert not replaces_a_function(node, functions), f"{path}:{node.lineno}: to scripts/tpulm/compat with it"


def importable(name: str) -> bool:
    """Return whether this process can import a package."""
    try:
        return find_spec(name) is not None
    except ValueError:  # None in the place of the module
        return False


def private_names(tree: ast.AST) -> set[str]:
    """Return the private names that a module takes of other objects, but for those that it defines."""
    found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return {name for name in found - own if re.fullmatch("_[a-z]\\w*", name)}


@pytest.mark.unit
@pytest.mark.parametrize("library", ["keras", "keras_hub", "lm_eval", "snakemake", "tf_keras"])
def test_what_the_room_takes_of_a_library_is_in_it(library):
    """A private name that is gone is told; so are the layers of Qwen 3, which the room would do without."""
    modules = [*ROOM.glob(f"{library}.py"), *ROOM.glob(f"{library}_tokenizers.py")]
    names = set().union(*(private_names(ast.parse(path.read_text())) for path in modules))
    names |= {"query_dense_layernorm", "key_dense_layernorm"} if library == "keras_hub" else set()
    words = set()
    for file in Path(find_spec(library).origin).parent.rglob("*.py"):
        words |= names & set(re.findall(r"\w+", file.read_text(errors="replace")))
    assert names and sorted(names - words) == []


@pytest.mark.unit
def test_jobs_import_their_tables_and_no_tensorflow_after_keras(monkeypatch):
    for name in (*TENSORFLOW, *TABLES):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    with kept_out():
        assert not any(importable(name) for name in (*TENSORFLOW, *TABLES))
    assert not any(map(importable, TENSORFLOW)) and all(map(importable, TABLES))
