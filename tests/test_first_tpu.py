"""`make first-tpu`: what it trains on which chips, what it writes, and that this becomes rows of the table of plans."""

import getpass
import json
import shutil
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import first_tpu
import pytest
from conftest import ROOT, Workflow, outside, write_record, write_yaml
from ruamel.yaml import YAML
from tpulm.config.outline import Outline
from tpulm.config.reading import read_config
from tpulm.core.errors import UserError
from tpulm.core.files import write_json
from tpulm.specs.training_step import TrainingStep
from tpulm.workflow.budget import plan_recipe

unit = pytest.mark.unit
V5E = {"platform": "tpu", "kind": "TPU v5 lite", "count": 8, "slice": "v5e-8"}
CHIPS = [
    V5E,
    {"platform": "tpu", "kind": "TPU v6 lite", "count": 1, "slice": "v6e-1"},
    {"platform": "tpu", "kind": "TPU v3", "count": 8, "slice": "v3-8"},
    {"platform": "gpu", "kind": "NVIDIA H100 80GB HBM3", "count": 2, "slice": None},
    {"platform": "cpu", "kind": "cpu", "count": 8, "slice": None},
]
PLAN = {"lower_bound_seconds": 0.01, "estimated_seconds": 0.02, "bound_by": "memory", "program_sha256": "0" * 64}


def runs_on(folder, chips, monkeypatch, libraries=("jax", "tensorflow")):
    """Return the runs that are trained on these chips, in an environment with these libraries, by their keys."""
    monkeypatch.setattr(first_tpu, "find_spec", lambda name: name in libraries or None)
    monkeypatch.setattr(first_tpu, "tpu_here", lambda: chips["platform"] == "tpu")
    write_yaml(folder / "config.yaml", first_tpu.config_for(chips))
    return Outline(read_config([str(folder / "config.yaml")], {})).runs


@unit
@pytest.mark.parametrize("chips", CHIPS, ids=lambda chips: f"{chips['count']}-{chips['kind']}")
def test_the_runs_fit_the_chips(tmp_path, monkeypatch, chips):
    runs = runs_on(tmp_path, chips, monkeypatch)
    keys = ["mlm.runs.jax", "base.small", "finetune.runs.lora"]
    with_tensorflow = chips["platform"] != "tpu"
    assert {run.key for run in runs.values()} == {*keys, *["mlm.runs.tensorflow"] * with_tensorflow}
    for run in runs.values():
        assert run.recipe["batch_size"] % chips["count"] == 0
        assert run.recipe["resources"].get("accelerator") == chips["slice"]
        assert len(run.segment_ends) == 1 + (run.key == "mlm.runs.jax")


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """A trial on a TPU that has measured and planned the masked model, and whose samples failed."""
    runs = {run.key: run for run in runs_on(tmp_path, V5E, monkeypatch).values()}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(first_tpu, "find_spec", lambda name: True)
    found = first_tpu.Trial(V5E, first_tpu.config_for(V5E))
    run, checkpoint = runs["mlm.runs.jax"], first_tpu.FOLDER / "results/mlm/jax/checkpoints/00000300"

    def build(name, *targets, folder=None):
        if name == "samples":
            raise UserError(f"the output is in {tmp_path}")

    monkeypatch.setattr(first_tpu, "build", build)
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights.safetensors").write_bytes(b"weights")
    (checkpoint / "history.csv").write_text("step,loss\n1,9.5\n2,8.5\n3,7.5\n")
    (checkpoint / "timings.csv").write_text("step,seconds_per_step\n1,30.0\n2,0.02\n3,0.04\n")
    end = {"device_memory_bytes": 2**30, "software": {"jax": "0.10.2"}, "accelerators": {"TPU v5 lite": 8}}
    log = "logs/mlm/jax/00000300.log"
    write_record(first_tpu.FOLDER, log, "train_mlm_jax", 0.0, 9.0, outputs=[f"/home/x/{checkpoint}"], **end)
    plan = PLAN | {"planned": True, "memory": {"total": 2**30}, "stage": "mlm", "recipe": plan_recipe([run])}
    write_json(first_tpu.FOLDER / "results/plan/mlm/jax/v5e-8.json", plan)
    found.step("masked model with JAX", found.train, "mlm/jax")
    found.step("plan", found.plan)
    found.step("samples", found.sample)
    found.write()
    return found


@unit
def test_the_file_has_what_was_measured_and_nothing_personal(trial):
    text = (first_tpu.FOLDER / "first-tpu.json").read_text()
    found, page = json.loads(text), (first_tpu.FOLDER / "first-tpu.md").read_text()
    measured = found["runs"]["mlm/jax"]
    assert (measured["seconds"], measured["losses"], measured["peak_bytes"]) == (0.03, [9.5, 7.5], 2**30)
    assert measured["planned"]["estimated_seconds"] == 0.02 and found["versions"]["jax"] == "0.10.2"
    assert [step["passed"] for step in found["steps"]] == [True, True, False]
    assert "| mlm/jax | 30.00" in page and "20.00" in page and f"failed: the output is in {Path.cwd()}" in page
    personal = {str(Path.cwd()), str(Path.home()), "/home/", str(ROOT), socket.gethostname()}
    assert not [word for word in personal | {f'"{getpass.getuser()}"'} if word in text]


@unit
def test_the_file_becomes_rows_of_the_table_of_plans(trial, tmp_path, monkeypatch):
    import plan_table

    file = first_tpu.FOLDER / "first-tpu.json"
    monkeypatch.setattr(plan_table, "ROWS", tmp_path / "rows.yaml")
    shutil.copy(ROOT / "benchmarks/measured_steps.yaml", plan_table.ROWS)
    before = plan_table.rows()
    assert plan_table.add(file, "https://x/issues/1") == ["first-tpu-mlm-jax-v5e-8"]
    assert plan_table.add(file, "https://x/issues/2") == ["first-tpu-mlm-jax-v5e-8-2"]
    after = plan_table.rows()
    row, again = after["first-tpu-mlm-jax-v5e-8"], after["first-tpu-mlm-jax-v5e-8-2"]
    assert before == {name: after[name] for name in before} and again["program"] == "first-tpu-mlm-jax-v5e-8"
    assert plan_table.measured(row) == 0.03 and plan_table.source(row) == "first-tpu" and row["slice"] == "v5e-8"
    step = TrainingStep.of(row["run"]["stage"], "x", row["run"]["recipe"])
    assert step.batch_size == 256 and step.model.source.sizes["hidden_size"] == 768
    write_json(file, json.loads(file.read_text()) | {"chip": CHIPS[-1]})
    with pytest.raises(SystemExit, match="^error: .*8 x cpu; allowed: .*TPU"):
        plan_table.add(file, "")
    assert plan_table.rows() == after


@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not to be had here")
@pytest.mark.long  # ten starts of Snakemake
def test_all_steps_pass_on_virtual_devices(tmp_path):
    """As in a fresh clone: the killed run has the bytes of the unbroken one."""
    workflow = Workflow(tmp_path / "workflow")
    command = [sys.executable, "tools/first_tpu.py"]
    done = subprocess.run(command, cwd=workflow.folder, env=outside(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((workflow / "experiments/first-tpu/first-tpu.json").read_text())
    assert found["runs"]["mlm/jax"]["same_bytes"] and 20 < found["runs"]["mlm/jax"]["killed_at"] <= 40
    assert set(found["runs"]) == {"mlm/jax", "finetune/lora", "mlm/tensorflow"}
    assert all(step["passed"] for step in found["steps"]) and len(found["steps"]) == 7
    assert str(tmp_path) not in json.dumps(found)
    (config,) = YAML(typ="safe", pure=True).load_all((workflow / "experiments/first-tpu/config.yaml").read_text())
    assert config["mlm"]["runs"]["jax"]["host_device_count"] == 8
