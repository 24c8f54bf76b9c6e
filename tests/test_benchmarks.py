"""Benchmarks, at tiny size: that they run, agree with each other on what they train, and say what has failed."""

import importlib
import json
import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import warm
from conftest import ROOT, outside
from openers import Openers
from ruamel.yaml import YAML
from tpulm.config.reading import read_config
from tpulm.config.runs import runs_of
from tpulm.core.accelerators import topology
from tpulm.core.errors import UserError
from tpulm.specs.training_step import TrainingStep

unit = pytest.mark.unit
long = pytest.mark.long
compiler = pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not to be had here")
BENCHMARKS = ROOT / "benchmarks"


def module(name):
    """Return a benchmark as a module."""
    if str(BENCHMARKS) not in sys.path:
        sys.path.insert(0, str(BENCHMARKS))
    return importlib.import_module(name)


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
def test_a_slice_is_named_by_what_jax_sees():
    tpu = module("tpu")
    seen = {"TPU v3": (8, "v3-8"), "TPU v4": (4, "v4-8"), "TPU v5 lite": (8, "v5e-8"), "TPU v6 lite": (1, "v6e-1")}
    for device, (devices, name) in seen.items():
        assert tpu.slice_of(device, devices) == name and topology(name).devices == devices
    with pytest.raises(UserError, match='^the device here is "cpu", no TPU; to try this without one: python bench'):
        tpu.slice_of("cpu", 1)


@unit
@pytest.mark.parametrize("devices", [1, 8, 256])
@pytest.mark.parametrize("tiny", [True, False])
def test_what_is_measured_fits_any_slice(devices, tiny):
    for run in module("tpu").runs(devices, tiny).values():
        step = TrainingStep.of(run["stage"], "x", run["recipe"])
        assert step.batch_size % devices == 0 and step.sequence_length % 128 == 0


TRAINED = f"""
import json, sys
sys.path[:0] = [{str(BENCHMARKS)!r}]
from jax_worker import Training
training = Training(json.loads(sys.argv[1]))
print("RESULT" + json.dumps([training.about(), *(training.train("3") for _ in range(2)), training.fill("2")]))
"""


@pytest.mark.parametrize("name", ["roberta-base", "gemma-2b-lora"])
def test_a_worker_trains_on_random_records(tmp_path, name):
    run = module("tpu").runs(2, tiny=True)[name]
    job = json.dumps({"stage": run["stage"], "recipe": run["recipe"], "threads": 1, "devices": 2})
    about, first, then, fill = warm.result(warm.run("jax", TRAINED, job, folder=tmp_path))
    assert about["devices"] == 2 and about["tokens"] == 4 * 128 and about["model_flops"] > 0
    assert then["loss"] == pytest.approx(np.log(512), rel=0.2)  # nothing can be learned of random ids but their number
    assert first["seconds"] > then["seconds"] > 0 and fill["steps"] == max(1, round(6 / then["seconds"]))


PLANNED = f"""
import json, sys
from pathlib import Path
sys.path[:0] = [{str(BENCHMARKS)!r}]
import tpu
path = Path(sys.argv[1])
tpu.plan(path)
print("RESULT" + json.dumps([tpu.read(path), tpu.table(tpu.read(path))]))
"""


def measured_row(tpu, name, seconds, kept):
    """Return the row of a tiny run as if it had been measured on a v5e."""
    run = tpu.runs(1, tiny=True)[name]
    found = {"seconds": seconds, "devices": 1, "device": "TPU v5 lite", "peak_bytes": 2**30}
    return tpu.row_of(run, "v5e-1", found, kept)


@compiler
def test_a_measured_step_is_planned_and_shown_beside_its_plan(tmp_path, monkeypatch):
    tpu, path = module("tpu"), tmp_path / "steps.yaml"
    row = measured_row(tpu, "gemma-2b-lora", [0.3, 0.1, 0.2], {"fit": True})
    tpu.write(path, {"gemma-2b-lora-v5e-1": row})
    rows, lines = warm.result(warm.run("tpu", PLANNED, str(path), folder=tmp_path))
    (found,) = rows.values()
    assert found["fit"] is True and found["seconds"] == 0.2 and found["spread"] == [0.1, 0.3]
    assert 0 < found["planned"]["lower_bound_seconds"] <= found["planned"]["estimated_seconds"] < 0.01
    assert cells(lines[2])[:4] == [row["title"], "v5e-1", "200.0", "100.0, 300.0"]
    # As the table of plans and measurements takes it.
    table = module("plan_table")
    monkeypatch.setattr(table, "OWN", path)
    monkeypatch.setattr(table, "STEPS", tmp_path / "steps")
    assert table.rows()["gemma-2b-lora-v5e-1"]["run"] == row["run"] and "bert-large-v3-32" in table.rows()
    assert list(table.steps()) == ["gemma-2b-lora-v5e-1"] and table.source(row) == "measured here"


@compiler
@long  # four processes that import JAX
def test_steps_of_a_tpu_are_trained_and_planned_at_tiny_size(tmp_path):
    path = tmp_path / "steps.yaml"
    printed = ran("tpu.py", "--tiny", "--slice", "v5e-4", "--minutes", "0.1", "--output", path, folder=tmp_path)
    rows = YAML(typ="safe", pure=True).load(path)["rows"]
    assert list(rows) == ["roberta-base-v5e-4", "gemma-2b-lora-v5e-4"]
    assert all(row["device"] == "4 x cpu" and row["planned"]["estimated_seconds"] > 0 for row in rows.values())
    assert [cells(line)[1] for line in printed.splitlines() if line.startswith("| tiny")] == ["v5e-4"] * 2
    assert {file.stem for file in (tmp_path / "steps").iterdir()} == set(rows)


@unit
def test_without_a_tpu_or_a_gpu_a_benchmark_says_so(tmp_path):
    assert re.match("error: there is no TPU here; to try", ran("tpu.py", folder=tmp_path, code=1))
    assert re.match("error: there is no NVIDIA GPU here; to try", ran("gpu.py", folder=tmp_path, code=1))


# On a GPU


@unit
@pytest.mark.parametrize("tiny", [True, False])
def test_both_ways_train_the_same_model(tiny):
    for case in module("gpu").cases(tiny):
        step = TrainingStep.of(case.stage, "x", case.recipe | {"batch_size": case.batch_size})
        sizes, ours = case.torch["sizes"], step.model.architecture
        assert sizes["vocab_size"] == ours.vocabulary_size and case.torch["length"] == step.sequence_length
        if step.task == "masked":
            assert step.predictions_per_record == case.torch["predicted"]
            assert all(ours.sizes[key] == sizes[key] for key in ("hidden_size", "num_hidden_layers"))
        else:
            assert ours.sizes["intermediate_dim"] == 2 * sizes["intermediate_size"]  # both halves of the gate
            assert step.model.rank == case.torch["rank"] and step.model.targets == ("query", "value")


@unit
def test_a_batch_that_the_card_cannot_hold_is_halved(monkeypatch, capsys):
    gpu = module("gpu")
    case = gpu.cases(tiny=True)[0]

    def measured(case, batch_size, arguments, folder):
        if batch_size > 1:
            raise gpu.Ended("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
        return batch_size

    monkeypatch.setattr(gpu, "measured", measured)
    assert gpu.fitting(case, None, None) == 1 and "too large for the card; 2 records" in capsys.readouterr().err
    monkeypatch.setattr(gpu, "measured", lambda *_: (_ for _ in ()).throw(gpu.Ended("no module named peft")))
    with pytest.raises(gpu.Ended, match="peft"):
        gpu.fitting(case, None, None)


@unit
def test_ratios_are_those_of_rounds_in_turn():
    gpu = module("gpu")
    about = {"device": "NVIDIA H100 80GB HBM3", "tokens": 1000, "model_flops": 989e12 * 0.5}
    ours = [{"seconds": 2 * s, "loss": 7.0, "peak_bytes": 2**30} for s in (1, 1.25, 2)]
    other = [{"seconds": 2 * s, "loss": 7.1, "peak_bytes": None} for s in (2, 2, 2)]
    rounds = dict(zip(gpu.WAYS, (ours, other), strict=True))
    rows = gpu.rows("M", {"abouts": {gpu.WAYS[0]: about}, "steps": 2, "rounds": rounds, "batch_size": 4})
    assert cells(rows[0]) == [
        "M", "4", "this workflow", "800 (500 to 1,000)", "40.0%", "1.60 (1.00 to 2.00)", "1.3; 50%", "7.00 7.00", "1.0"
    ]  # fmt: skip
    assert cells(rows[1])[2:6] == ["transformers", "500 (500 to 500)", "25.0%", "1"]


@long  # PyTorch compiles
def test_training_on_a_gpu_is_measured_beside_transformers_at_tiny_size(tmp_path):
    python = Openers(tmp_path / "openers").python("transformers 5")
    arguments = ["--tiny", "--rounds", "2", "--seconds", "0.1", "--compile", "aot_eager", "--torch-python", python]
    rows = [cells(line) for line in ran("gpu.py", *arguments, folder=tmp_path).splitlines() if line.startswith("|")]
    assert [row[2] for row in rows[2:]] == ["this workflow", "transformers"] * 2
    for row in rows[2:]:  # both predict as many ids of as many
        assert float(row[7].split()[0]) == pytest.approx(np.log(512), rel=0.2)


# Packing


@unit
def test_packed_documents_leave_no_padding(tmp_path):
    packing = module("packing")
    drawn = packing.shares(packing.lengths_of(None))
    assert drawn["segments"] == 1 and drawn["pad"] == pytest.approx(0.552, abs=0.001)
    texts = tmp_path / "reviews.jsonl"
    texts.write_text("".join(json.dumps({"text": "a b " * words}) + "\n" for words in [30] * 99 + [1000]))
    lengths = packing.lengths_of(texts)
    assert lengths.tolist() == [81] * 99 + [2662]
    assert packing.shares(lengths)["pad"] == pytest.approx((99 * 81 + 512) / (100 * 512))


@unit
def test_on_real_reviews_packing_gains_as_much_as_on_drawn_ones():
    reviews = ROOT.parent / "shared/data/imdb/train.jsonl"
    if not reviews.is_file():
        pytest.skip("the reviews are not here: ../shared/data/imdb")
    packing = module("packing")
    assert packing.shares(packing.lengths_of(reviews))["pad"] == pytest.approx(0.552, abs=0.02)


@compiler
@long
def test_packing_is_measured_at_tiny_size(tmp_path):
    printed = ran("packing.py", "--quick", "--rounds", "1", folder=tmp_path)
    rows = [cells(line) for line in printed.splitlines() if line.startswith("|")][2:]
    assert [row[1] for row in rows] == ["v5e, estimated", "v5e, estimated", "processors"]
    assert all(1 < float(row[6]) < 2.5 for row in rows[:2])


# Plans of the recipes, and gaps


@unit
@pytest.mark.parametrize(
    ("names", "only", "said"),
    [
        (["modernbrt"], None, "no recipe is called modernbrt; allowed: "),
        ([], "mlm.x", "--only mlm.x is in none of these "),
    ],
)
def test_what_is_not_there_is_not_planned(names, only, said):
    with pytest.raises(SystemExit, match=f"^error: {said}.*modernbert-base"):
        module("recipes").plan_all(names, only, None)


@unit
def test_recipes_without_a_plan_are_named(tmp_path, monkeypatch):
    recipes = module("recipes")
    found = {
        "planned": True, "attention": {}, "total": 2**33, "hbm": 2**34, "lower_bound_seconds": 1.5,
        "estimated_seconds": 2.0, "bound_by": "compute", "model_flops_utilisation": 0.5, "tokens_per_second": 1.0,
        "hours": 11.1,
    }  # fmt: skip
    runs = {run.key: run for path in sorted(recipes.RECIPES.glob("*.yaml")) for run, _ in recipes.planned_runs(path)}
    of = recipes.origin(runs["base.llama-1b"], "v5e-16")
    assert of != recipes.origin(runs["base.llama-1b"], "v5e-32")
    kept = {
        "fineweb-edu-llama-1b.yaml": {"base.llama-1b": {"v5e-16": found | {"origin": of}}},
        "wikitext103-roberta-base.yaml": {"mlm.runs.roberta-base": {"v3-8": found | {"origin": of}}},
    }
    (tmp_path / "plans.json").write_text(json.dumps(kept))
    published = []
    monkeypatch.setattr(recipes, "PLANS", tmp_path / "plans.json")
    monkeypatch.setattr(recipes.data, "publish", lambda lines, *_: published.extend(lines))
    assert recipes.stale() == ["wikitext103-roberta-base"]
    recipes.write_table()
    assert published[2] == (
        "| fineweb-edu-llama-1b: `base.llama-1b` | v5e-16 | 8.0 of 16 | 1,500.0 | 2,000.0 | compute | 50% | 11.1 |"
    )
    named = dict(re.findall("^Without a plan here, (.*?): (.*)$", "\n".join(published), re.M))
    assert "modernbert-base (v5e-8, v6e-8), tpu-plans (v3-8, v5e-8, v6e-8)" in named["not compiled yet"]
    assert "llama" not in named["not compiled yet"]
    assert named["changed since it was compiled"] == "wikitext103-roberta-base (v3-8)."


@unit
def test_models_on_tasks_are_planned_by_what_is_published():
    """Each task of GLUE has labels and a model, and those with the same step have one program."""
    recipes = module("recipes")
    path = recipes.RECIPES / "glue-modernbert-base.yaml"
    found = {planned.task: planned for planned, _ in recipes.planned_runs(path)}
    steps = {name: TrainingStep.of("mlm", "x", recipes.recipe_of(planned)) for name, planned in found.items()}
    assert {name: step.head.outputs for name, step in steps.items()} == {
        "mnli": 3, "qqp": 2, "qnli": 2, "sst2": 2, "cola": 2, "stsb": 1, "mrpc": 2, "rte": 2,
    }  # fmt: skip
    assert steps["stsb"].model.masked.sizes["num_hidden_layers"] == 22 and steps["stsb"].head.pooling == "mean"
    names = {name: recipes.program_name(path, planned) for name, planned in found.items()}
    assert len(set(names.values())) == 5 and names["qqp"] == names["qnli"] == names["sst2"]
    assert names["cola"] == names["mrpc"] != names["stsb"]


@unit
def test_plans_are_of_the_recipes_as_they_are_shipped():
    stale = module("recipes").stale()
    assert not stale, f"plan again: python benchmarks/recipes.py plan {' '.join(stale)}; then make bench-plan"


@compiler
@long  # half a minute for each program
def test_plans_are_of_the_programs_that_train(tmp_path):
    """Of one recipe; `python benchmarks/recipes.py check` lowers those of all."""
    assert ran("recipes.py", "check", "imdb-gemma-7b", folder=tmp_path) == ""


def few(layers, milliseconds, **groups):
    """Return what is kept of a program of so many of twelve layers."""
    return {
        "layers": 12, "estimated_seconds": milliseconds / 1e3, "lower_bound_seconds": 1e-3, "total": layers * 2**28,
        "model_flops": layers * 2e12, "bound_by": "memory", "devices": 8, "records": 64, "microbatches": 2,
        "remat": False, "groups": groups, "tokens": 64 * 512, "attention": "plain", "program_sha256": None,
        "seconds": {"compute": layers * 1e-3, "memory": 2e-3, "interconnect": 0.0},
    }  # fmt: skip


@unit
def test_all_layers_follow_from_few():
    utilisation = module("utilisation")
    programs = {"1": few(1, 5, head=0.002, layer=0.001), "3": few(3, 11, head=0.002, layer=0.003)}
    found = utilisation.whole(programs)
    assert found["estimated_seconds"] == pytest.approx(38e-3) and found["total"] == 3 * 2**30
    assert found["groups"] == pytest.approx({"head": 0.002, "layer": 0.012})
    assert found["bound_by"] == "compute" and found["lower_bound_seconds"] == pytest.approx(12e-3)
    # 24 TFLOPs on eight chips of 197 TFLOP/s.
    assert utilisation.utilisation(found, topology("v5e-8")) == pytest.approx(24 / (8 * 197 * 38e-3))
    assert utilisation.whole(programs | {"12": few(12, 40)})["estimated_seconds"] == 40e-3
    assert utilisation.whole({"1": programs["1"]}) is None and utilisation.whole({}) is None


@unit
def test_a_target_that_is_missed_has_its_profile(tmp_path, monkeypatch):
    utilisation = module("utilisation")
    rows = utilisation.rows()
    of = {name: {state: utilisation.origin(rows[name], state) for state in ("before", "now")} for name in rows}
    found = few(12, 40, **{f"g{n}": n * 1e-3 for n in range(1, 7)}) | {"origin": of["roberta-base-v5e-8"]["now"]}
    kept = {"roberta-base-v5e-8": {"now": {"12": found}}, "gemma2-9b-v6e-8": {"now": {"12": found}}}
    kept["gemma2-2b-v3-8"] = {
        state: {"12": few(12, 70) | {"origin": origin}} for state, origin in of["gemma2-2b-v3-8"].items()
    }
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    published = []
    monkeypatch.setattr(utilisation, "KEPT", tmp_path / "kept.json")
    monkeypatch.setattr(utilisation.data, "publish", lambda lines, *_: published.extend(lines))
    utilisation.write_table()
    rows = [cells(line) for line in published if line.startswith("| ")][2:]
    assert rows == [
        ["roberta-base", "v5e-8", "64, 32", "3.0 of 16", "40", "", "38% (miss)", "50%", "memory"],
        ["gemma2-2b", "v3-8", "64, 32", "3.0 of 16", "70", "70%", "70%", "50%", "memory"],
    ]
    (profile,) = (line for line in published if line.startswith("- "))
    assert profile == "- roberta-base on v5e-8: `g6` 15%; `g5` 12%; `g4` 10%; `g3` 8%; `g2` 5%."
    # One that is kept of other settings is as good as none.
    assert "gemma2-9b (v6e-8)" in published[-1] and "gemma2-2b (v3-8)" not in published[-1]


@unit
def test_rows_of_the_utilisation_are_runs_of_the_recipe():
    utilisation = module("utilisation")
    for row in utilisation.rows().values():
        run = utilisation.run_of(row)
        for state in ("before", "now"):
            recipe = utilisation.changed(run.plan(), row[state])
            assert set(recipe) == set(run.plan()) and recipe["batch_size"] % (8 * recipe["microbatches"]) == 0
    assert utilisation.target_of(0.5) == 0.5 and 0.4 < utilisation.target_of(row["target"]) < 0.6


@unit
def test_the_gap_of_a_recipe_has_what_its_hosts_read_and_write():
    gaps = module("gaps")
    (run,) = runs_of(read_config([str(ROOT / "recipes/fineweb-edu-llama-1b.yaml")], {}))
    phases = {"start": 3.0, "load": 0.5, "compile": 1.0, "train": 60.0, "evaluate": 2.0, "write": 0.5}
    slow = phases | {"compile": 90.0}
    rows = gaps.gap_rows({"a": ("jax", phases), "b": ("tensorflow", slow)}, [("r.yaml", run, "v5e-16", 0.01)])
    assert cells(rows[2]) == [
        "`a` of the shipped config, on jax", "3.00 s", "0.50 s", "1.00 s", "0.50 s", "2.00 s", "60.00 s", "5.0 s"
    ]  # fmt: skip
    # 1.1 billion parameters: 4 bytes; weights and two moments read, twice the weights and the moments written, 4 hosts.
    gap = 5 + gaps.moved_bytes(run) / 1e9
    assert gaps.moved_bytes(run) == pytest.approx(1.1e9 * 4 * 7 / 4, rel=0.02)
    assert cells(rows[-3])[2:6] == ["500", "10.0 ms", "0.1", f"{gap:.0f} s"] and rows[-3].endswith("% (miss) |")
    assert "here 0 minutes at most" in rows[-1] and "0 of the 1 runs that miss it are one segment" in rows[-1]


# Steps on this machine


@unit
def test_a_part_that_fails_does_not_cost_the_others(capsys):
    def fails():
        pytest.fail("snakemake ended with 1")

    lines, failed = module("steps").measured({"a": fails, "b": lambda: ["text"], "c": lambda: [][1]})
    assert lines == ["Not measured: a (Failed).", "", "text", "", "Not measured: c (IndexError)."]
    assert failed == ["a", "c"] and "snakemake ended with 1" in capsys.readouterr().err


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
