"""Training goes on where it was: after kills, after an early stop, with checkpoints thinned, made longer."""

import csv
import json

import pytest
from conftest import copied
from kills import checkpoints, fingerprints, prepare, start, torment
from lib.config import read_yaml
from ruamel.yaml import YAML
from safetensors.numpy import load_file

# Two segments for each trainer, long enough to be killed within.
SEGMENTS = {
    "mlm": {"steps": 300, "checkpoint_every": 150, "schedule": {"shape": "constant"}},
    "base": {"steps": 1200, "checkpoint_every": 400},
    "lora": {"steps": 200, "checkpoint_every": 100},
}
KILLS = ["mlm", "causal", "writing"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run that nobody disturbed; not to be changed."""
    workflow = prepare(tmp_path_factory.mktemp("undisturbed") / "workflow", SEGMENTS)
    assert start(workflow).wait() == 0, (workflow / "snakemake.out").read_text()[-3000:]
    return workflow


def test_kills_change_no_byte(undisturbed, tmp_path):
    """The short form of kills.py, which kills twenty times."""
    killed = prepare(tmp_path / "workflow", SEGMENTS)
    hits = torment(killed, KILLS, seed=1)
    assert hits["kills"] == len(KILLS)
    assert hits["mlm"] >= 1 and hits["causal"] >= 1 and hits["writing"] >= 1
    expected = fingerprints(undisturbed / "results")
    assert len(expected) > 100
    assert fingerprints(killed / "results") == expected


def change(workflow, **keys):
    """Change the masked model's run in config.yaml."""
    config = read_yaml(workflow / "config.yaml")
    config["mlm"]["runs"]["tiny"].update(keys)
    with open(workflow / "config.yaml", "w") as file:
        YAML(typ="safe", pure=True).dump(config, file)


def state(workflow, step):
    return json.loads((workflow / f"results/mlm/tiny/checkpoints/{step:08d}/state.json").read_text())


def test_longer_thinned_and_stopped(undisturbed, tmp_path):
    """A life of a run: made longer, thinned, made longer again, stopped when it no longer learns."""
    workflow = copied(undisturbed, tmp_path)
    folder = workflow / "results/mlm/tiny/checkpoints"

    def weights():
        return sorted(path.parent.name for path in folder.glob("*/weights.safetensors"))

    before = checkpoints(workflow)
    change(workflow, steps=450)
    workflow("mlm", "--cores", "2")
    assert {name: checkpoints(workflow)[name] for name in before} == before  # what it had was not made again
    assert weights() == ["00000150", "00000300", "00000450"]

    change(workflow, keep_checkpoints="last")
    assert "thin_checkpoint        2" in workflow("mlm", "-n", "--quiet", "rules").stdout
    workflow("mlm")
    assert weights() == ["00000450"]
    assert (folder / "00000150/history.csv").is_file() and state(workflow, 150)["step"] == 150
    assert "Nothing to be done" in workflow("mlm", "-n").stdout
    assert "artifacts are whole" in workflow("verify").stdout

    # A rate that unlearns: with patience 1, one evaluation without a new best stops the run.
    change(workflow, steps=1050, patience=1)
    change(workflow, schedule={"shape": "constant"})
    workflow("mlm", "--cores", "2")
    losses = {step: state(workflow, step)["evaluation"]["loss"] for step in range(150, 1051, 150)}
    assert weights() == ["00001050"]
    stopped = state(workflow, 1050)["stopped_at"]
    expected, best, bad = None, float("inf"), 0
    for step in sorted(losses):
        best, bad = (losses[step], 0) if losses[step] < best else (best, bad + 1)
        if bad >= 1:
            expected = step
            break
    assert stopped == expected
    assert "Nothing to be done" in workflow("mlm", "-n").stdout


def test_an_early_stop_passes_the_best_on(undisturbed, tmp_path):
    workflow = copied(undisturbed, tmp_path)
    optimizer = {"clip_norm": None, "weight_decay": 0.0}
    change(workflow, steps=50, checkpoint_every=10, learning_rate=0.5, optimizer=optimizer, patience=1)
    workflow("mlm", "--cores", "2")
    last = state(workflow, 50)
    assert last["stopped_at"] in (20, 30, 40)
    best = workflow / f"results/mlm/tiny/checkpoints/{last['best']['step']:08d}/weights.safetensors"
    passed = workflow / "results/mlm/tiny/checkpoints/00000050"
    assert (passed / "best.safetensors").read_bytes() == best.read_bytes()
    assert (passed / "best.safetensors").stat().st_nlink == 1  # touched, it makes no other checkpoint newer
    assert load_file(passed / "weights.safetensors") == {}  # nothing trains on from there
    with open(workflow / "results/mlm/tiny/history.csv") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(1, last["stopped_at"] + 1))
    assert f"step {last['best']['step']}, the best" in (workflow / "results/mlm/tiny/model/README.md").read_text()
    assert "Nothing to be done" in workflow("mlm", "-n").stdout
    assert "artifacts are whole" in workflow("verify").stdout
    # More patience trains on from the stop, as if it had been there from the start.
    change(workflow, patience=3)
    assert "train_mlm_tensorflow" in workflow("mlm", "-n", "--quiet", "rules").stdout
