"""The digest of code: equal where nothing that computes has changed, another one where something has."""

import ast
import hashlib
import subprocess
import sys

import pytest
from conftest import copied
from tpulm.core import code_digest
from tpulm.core.code_digest import Computing, code_of, serialized

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
    assert digest_of(SAMPLE).startswith("619f5f01bd202b87")


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
        (tmp_path / f"{name}.txt").write_text(
            "idna==3.11\njax==0.10.2\njaxlib==0.10.2\nkeras==3.15.1\ntensorflow==2.21.0\n"
        )
    for name, text in MODULES.items():
        (tmp_path / f"tpulm/room/{name}.py").write_text(text)

    def code(environment="jax", path=None, text=None):
        if path:
            (tmp_path / path).write_text(text)
        for cached in (code_of, code_digest.source_of, code_digest.cached_sources, code_digest.pinned):
            cached.cache_clear()
        return code_of("scripts/script.py", environment)

    yield code
    for cached in (code_of, code_digest.source_of, code_digest.cached_sources, code_digest.pinned):
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


def test_a_damaged_cache_is_read_as_none(room):
    before = room().param()
    code_digest.CACHE.write_text("{")
    assert room().param() == before


# Prints a job's `snakemake` object and script, see tools/debug.py; then runs the script with stubs for UNCOUNTED.
DESCRIBE = """
import os, pickle, sys
sys.path[:0] = ["tools", "scripts"]
import debug
from snakemake.api import OutputSettings, SnakemakeApi
from snakemake.settings.types import Quietness
with SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as api:
    workflow = debug.workflow_of(api, debug.ROOT / "Snakefile", [], 1)
    for number, file in enumerate(sys.argv[1:]):
        job = debug.job_of(workflow, file)
        with open(f"job-{number}.pickle", "wb") as opened:
            pickle.dump((debug.script_object(job, debug.beside), str(debug.script_of(job))), opened)
"""
RUN = """
import pickle, runpy, sys, types
sys.path.insert(0, "scripts")

class Stub:
    def __init__(self, *arguments, **more): pass
    def __call__(self, *arguments, **more): return self
    def __getattr__(self, name): return self
    def __enter__(self): return self
    def __exit__(self, *error): return None
    def __bool__(self): return False

class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name.isupper():
            return ""
        return type(name, (Exception,), {}) if name == "UserError" else Stub()

from tpulm.core.code_digest import UNCOUNTED
names = [name.removesuffix(".py").replace("/", ".") for name in UNCOUNTED]
for name in list(sys.modules):
    if name.startswith("tpulm"):
        del sys.modules[name]
import tpulm.core, tpulm.training
for name in names:
    sys.modules[name] = Module(name)
    package, _, last = name.rpartition(".")
    setattr(sys.modules[package], last, sys.modules[name])
described, script = pickle.load(open(sys.argv[1], "rb"))
runpy.run_path(script, init_globals={"snakemake": described})
"""
MADE = (
    "results/corpus/parts/00000.parquet", "results/corpus/train.parquet", "results/tokenizer/tokenizer.json",
    "results/tfrecords/train/00000-of-00004.tfrecord", "results/tfrecords/manifest.json",
    "results/tokens/small/corpus/concat-64/train/00000-of-00001.tfrecord",
    "results/mlm/tiny/checkpoints/00000010/weights.safetensors", "results/mlm/tiny/model/model.safetensors",
    "results/mlm/tiny/metrics.json", "results/base/small/checkpoints/00000010/optimizer.safetensors",
    "results/finetune/python/checkpoints/00000005/weights.safetensors", "results/finetune/python/generations.json",
    "results/evaluation/base/small/scores.json",
)  # fmt: skip


@pytest.mark.long
def test_without_the_modules_that_do_not_count_each_stage_writes_the_same_bytes(trained, tmp_path):
    workflow = copied(trained, tmp_path)
    (workflow / "debug").mkdir()
    subprocess.run([sys.executable, "-c", DESCRIBE, *MADE], cwd=workflow.folder, check=True)
    for number, file in enumerate(MADE):
        subprocess.run([sys.executable, "-c", RUN, f"job-{number}.pickle"], cwd=workflow.folder, check=True)
        assert (workflow / "debug" / file).read_bytes() == (workflow / file).read_bytes(), file
