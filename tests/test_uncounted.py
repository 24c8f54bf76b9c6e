"""Modules that do not count for the code of a job: without them, each stage writes the same bytes."""

import subprocess
import sys

import pytest
from conftest import copied

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
    def __iter__(self): return iter(())

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
