"""Benchmarks, at tiny size: that they run, agree with each other on what they train, and say what has failed."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
from conftest import ROOT, outside
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


# On a TPU


@compiler
@long  # four processes that import JAX
def test_steps_of_a_tpu_are_trained_and_planned_at_tiny_size(tmp_path):
    path = tmp_path / "steps.yaml"
    ran("tpu.py", "--tiny", "--slice", "v5e-4", "--minutes", "0.1", "--output", path, folder=tmp_path)
    rows = YAML(typ="safe", pure=True).load(path)["rows"]
    assert list(rows) == ["roberta-base-v5e-4", "gemma-2b-lora-v5e-4"]
    assert all(row["device"] == "4 x cpu" and row["planned"]["estimated_seconds"] > 0 for row in rows.values())


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


# Plans of the recipes


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
