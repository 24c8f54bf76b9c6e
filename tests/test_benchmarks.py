"""Benchmarks, at tiny size: that they run, agree with each other on what they train, and say what has failed."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from conftest import ROOT, outside
from openers import Openers
from ruamel.yaml import YAML
from tpulm.specs.training_step import TrainingStep

unit = pytest.mark.unit
long = pytest.mark.long
compiler = pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not to be had here")
BENCHMARKS = ROOT / "benchmarks"


def ran(name, *arguments, folder, code=0):
    """Run a benchmark in a process of its own; return what it printed."""
    command = [sys.executable, str(BENCHMARKS / name), *map(str, arguments)]
    done = subprocess.run(command, env=outside(), cwd=folder, capture_output=True, text=True)
    assert done.returncode == code, done.stderr[-5000:]
    return done.stdout if not code else done.stderr


def cells(row):
    """Return the cells of a row of a table."""
    return [cell.strip() for cell in row.strip("|").split("|")]


# On a TPU


@unit
@pytest.mark.parametrize("devices", [1, 8, 256])
@pytest.mark.parametrize("tiny", [True, False])
def test_what_is_measured_fits_any_slice(devices, tiny):
    from tpu import runs

    for run in runs(devices, tiny).values():
        step = TrainingStep.of(run["stage"], "x", run["recipe"])
        assert step.batch_size % devices == 0 and step.sequence_length % 128 == 0


@compiler
@long  # four processes that import JAX
def test_steps_of_a_tpu_are_trained_and_planned_at_tiny_size(tmp_path):
    path = tmp_path / "steps.yaml"
    ran("tpu.py", "--tiny", "--slice", "v5e-4", "--minutes", "0.1", "--output", path, folder=tmp_path)
    rows = YAML(typ="safe", pure=True).load(path)["rows"]
    assert list(rows) == ["roberta-base-v5e-4", "gemma-2b-lora-v5e-4"]
    assert all(row["device"] == "4 x cpu" and row["planned"]["estimated_seconds"] > 0 for row in rows.values())


@unit
def test_without_a_tpu_or_a_gpu_a_benchmark_says_so(tmp_path):
    assert re.match("error: .*TPU", ran("tpu.py", folder=tmp_path, code=1))
    assert re.match("error: .*GPU", ran("gpu.py", folder=tmp_path, code=1))


# On a GPU


@unit
@pytest.mark.parametrize("tiny", [True, False])
def test_both_ways_train_the_same_model(tiny):
    from gpu import cases

    for case in cases(tiny):
        step = TrainingStep.of(case.stage, "x", case.recipe | {"batch_size": case.batch_size})
        sizes, ours = case.torch["sizes"], step.model.source
        assert sizes["vocab_size"] == ours.vocabulary_size and case.torch["length"] == step.sequence_length
        if step.masking:
            assert step.predictions_per_record == case.torch["predicted"]
            assert all(ours.sizes[key] == sizes[key] for key in ("hidden_size", "num_hidden_layers"))
        else:
            assert ours.sizes["intermediate_dim"] == 2 * sizes["intermediate_size"]  # both halves of the gate
            assert step.model.rank == case.torch["rank"] and step.model.targets == ("query", "value")


@long  # PyTorch compiles
def test_training_on_a_gpu_is_measured_beside_transformers_at_tiny_size(tmp_path):
    python = Openers(tmp_path / "openers").python("transformers 5")
    arguments = ["--tiny", "--rounds", "2", "--seconds", "0.1", "--compile", "aot_eager", "--torch-python", python]
    rows = [cells(line) for line in ran("gpu.py", *arguments, folder=tmp_path).splitlines() if line.startswith("|")]
    assert [row[2] for row in rows[2:]] == ["this workflow", "transformers"] * 2
    for row in rows[2:]:  # both predict as many ids of as many
        assert float(row[7].split()[0]) == pytest.approx(np.log(512), rel=0.2)


# Plans of the recipes


@unit
@pytest.mark.parametrize(("names", "only", "said"), [(["modernbrt"], None, "modernbrt"), ([], "mlm.x", "--only mlm.x")])
def test_what_is_not_there_is_not_planned(names, only, said):
    import recipes

    with pytest.raises(SystemExit, match=f"^error: .*{said}.*modernbert-base"):
        recipes.plan_all(names, only, None)


@unit
def test_recipes_that_changed_since_they_were_planned_are_named(tmp_path, monkeypatch):
    import recipes

    runs = {
        recipes.key_of(run): run
        for path in sorted(recipes.RECIPES.glob("*.yaml"))
        for run, _ in recipes.planned_runs(path)
    }
    of = recipes.origin(runs["base.llama-1b"], "v5e-16")
    assert of != recipes.origin(runs["base.llama-1b"], "v5e-32")
    kept = {
        "fineweb-edu-llama-1b.yaml": {"base.llama-1b": {"v5e-16": {"planned": True, "origin": of}}},
        "wikitext103-roberta-base.yaml": {"mlm.runs.roberta-base": {"v3-8": {"planned": True, "origin": of}}},
    }
    (tmp_path / "plans.json").write_text(json.dumps(kept))
    monkeypatch.setattr(recipes, "PLANS", tmp_path / "plans.json")
    assert recipes.stale() == ["wikitext103-roberta-base"]


@unit
def test_plans_are_of_the_recipes_as_they_are_shipped():
    import recipes

    stale = recipes.stale()
    assert not stale, f"plan again: python benchmarks/recipes.py plan {' '.join(stale)}; then make bench-plan"


@compiler
@long  # half a minute for each program
def test_plans_are_of_the_programs_that_train(tmp_path):
    """Of one recipe; `python benchmarks/recipes.py check` lowers those of all."""
    assert ran("recipes.py", "check", "imdb-gemma-7b", folder=tmp_path) == ""


# Steps on this machine


@long  # processes that import TensorFlow or JAX
def test_steps_are_measured_and_learn_the_same(tmp_path):
    printed = ran("steps.py", "--quick", "--rounds", "1", "--only", "steps", folder=tmp_path)
    rows = [cells(line) for line in printed.splitlines() if line.startswith("| ") and "`" in line]
    assert [re.search("`.*`", row[0])[0] for row in rows] == ["`fit`", "`backend: tensorflow`", "`backend: jax`"]
    losses = [float(row[5]) for row in rows]
    assert max(losses) - min(losses) < 0.1


@long  # the shipped config, at tiny size
def test_the_gap_is_measured(tmp_path):
    printed = ran("steps.py", "--quick", "--only", "gap", folder=tmp_path)
    keys = re.findall(r"^\| `(\S+)` of the shipped config, on (\w+)", printed, re.M)
    assert keys == [("mlm.runs.tiny", "tensorflow"), ("base.small", "jax"), ("finetune.runs.python", "jax")]
