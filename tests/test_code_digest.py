"""The digest of code: equal where nothing that computes has changed, another one where something has."""

import ast
import hashlib

import pytest
from tpulm.core import code_digest
from tpulm.core.code_digest import Computing, code_of, serialized

pytestmark = pytest.mark.unit

SAMPLE = '''
"""A module."""
from __future__ import annotations
from typing import TYPE_CHECKING, NamedTuple
from dataclasses import dataclass
if TYPE_CHECKING:
    import jax

# A comment.
RATE = 1e-4

@dataclass
class Step:
    """A step."""
    size: int
    rate: float = RATE

def scaled(value: float, by: float = 2.0) -> float:
    """Return it scaled."""
    assert by, "nothing"
    if value < 0:
        raise ValueError(f"{value!r:>8} is negative") from None
    return value * by + len(b"\\xff") + len(f"{value:{8}}")
'''
EQUAL = [
    ('"""A step."""', '"""One step of training."""'), ('    """Return it scaled."""\n', ""), ("# A comment.", ""),
    ("# A comment.\n", "# A comment (more).\n\n\n"), ("size: int", "size: Annotated[int, 'bytes']"),
    ("value: float, by: float = 2.0) -> float", "value, by=2.0)"), ("is negative", "is below zero"),
    (" from None", ""), (', "nothing"', ""), ("    import jax\n", "    import jax, keras\n"),
    ("by: float", 'by: "float"'),
]  # fmt: skip
DIFFERENT = [
    ("1e-4", "2e-4"), ("value * by", "value + by"), ("2.0", "2"), ("size: int", "count: int"),
    ("    size: int\n    rate: float = RATE", "    rate: float = RATE\n    size: int = 0"), ("ValueError", "KeyError"),
    ("value < 0", "value <= 0"), ('b"\\xff"', 'b"\\xfe"'), ("{8}", "{9}"),
    ("@dataclass\n", "@dataclass(frozen=True)\n"),
]  # fmt: skip


def digest_of(source: str) -> str:
    return hashlib.sha256(serialized(Computing("").visit(ast.parse(source))).encode()).hexdigest()


def test_a_digest_is_the_same_under_every_python():
    assert digest_of(SAMPLE).startswith("96fe40336dcdb981")


@pytest.mark.parametrize(("old", "new"), EQUAL)
def test_what_cannot_change_a_number_leaves_the_digest(old, new):
    assert old in SAMPLE and digest_of(SAMPLE.replace(old, new)) == digest_of(SAMPLE)


@pytest.mark.parametrize(("old", "new"), DIFFERENT)
def test_what_computes_changes_the_digest(old, new):
    assert old in SAMPLE and digest_of(SAMPLE.replace(old, new)) != digest_of(SAMPLE)


SCRIPT = """
from tpulm.room import a, nothing
if recipe['backend'] == 'jax':
    from tpulm.room import on_jax
else:
    from tpulm.room import on_tensorflow
"""
LOCK = "idna==3.11\njax==0.10.2\njaxlib==0.10.2\nkeras==3.15.1\ntensorflow==2.21.0\n"
MODULES = {
    "a": "import os\nfrom tpulm.room.b import x\n",
    "b": "def f():\n    from tpulm.room import (  # several :)\n        c as d,  # one\n        e,\n    )\n",
    "c": "if True:\n    import tpulm.room.d\n",
    "d": "import jax.numpy\nimport idna\n",
    "e": "",
    "on_jax": "",
    "on_tensorflow": "from tensorflow.io import gfile\n",
    "unused": "import keras\n",
}


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A script with modules, and locks; a function that replaces a module's text and returns the code of the script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(code_digest, "SCRIPTS", tmp_path)
    monkeypatch.setattr(code_digest, "LOCKS", tmp_path)
    (tmp_path / "tpulm/room").mkdir(parents=True)
    (tmp_path / "script.py").write_text(SCRIPT)
    for name in ("jax", "tensorflow"):
        (tmp_path / f"{name}.txt").write_text(LOCK)
    for name, text in MODULES.items():
        (tmp_path / f"tpulm/room/{name}.py").write_text(text)

    def code(environment="jax", path=None, text=None):
        if path:
            (tmp_path / path).write_text(text)
        for cached in (code_of, code_digest.read_source, code_digest.cached_sources, code_digest.pinned):
            cached.cache_clear()
        return code_of("scripts/script.py", environment)

    yield code
    for cached in (code_of, code_digest.read_source, code_digest.cached_sources, code_digest.pinned):
        cached.cache_clear()


def modules_of(code):
    return {path.rpartition("/")[2].removesuffix(".py") for path in code.modules} - {"script"}


def test_imports_are_followed_through_modules_and_functions(room):
    assert modules_of(room()) == {"a", "b", "c", "d", "e", "on_jax"}
    assert modules_of(room("tensorflow")) == {"a", "b", "c", "d", "e", "on_tensorflow"}


def test_only_packages_that_the_code_imports_and_that_compute_count(room, tmp_path):
    assert room().packages == {"jax": "0.10.2", "jaxlib": "0.10.2"}
    assert room("tensorflow").packages == {"jax": "0.10.2", "jaxlib": "0.10.2", "tensorflow": "2.21.0"}
    before = room().param()
    lock = (tmp_path / "jax.txt").read_text()
    assert room(path="jax.txt", text=lock.replace("idna==3.11", "idna==3.12")).param() == before
    assert room(path="jax.txt", text=lock.replace("keras==3.15.1", "keras==3.16.0")).param() == before
    assert room(path="jax.txt", text=lock.replace("jaxlib==0.10.2", "jaxlib==0.10.3")).param() != before


def test_the_param_follows_every_module_that_is_imported_and_no_other(room):
    before = room().param()
    assert before.startswith("scripts/script.py jax ") and room().param() == before
    for name in MODULES:
        changed = room(path=f"tpulm/room/{name}.py", text=MODULES[name] + "EDITED = 1\n").param() != before
        assert changed == (name not in ("unused", "on_tensorflow")), name
        room(path=f"tpulm/room/{name}.py", text=MODULES[name] + "# edited\n")
        assert room().param() == before


def test_a_second_start_reads_the_cache_and_a_damaged_one_is_read_as_none(room, monkeypatch):
    before = room().param()
    code_digest.write_cache(code_digest.CACHE, code_digest.cached_sources(), 0)
    with monkeypatch.context() as patch:
        patch.setattr(ast, "parse", pytest.fail)
        assert room().param() == before
    for damaged in ("{", "[]"):
        code_digest.CACHE.write_text(damaged)
        assert room().param() == before
