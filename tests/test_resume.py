"""Training goes on where it was: after kills, after an early stop, with checkpoints thinned, made longer.

The short tests are about one causal model; the long ones about all runs, killed between the steps of long segments.
"""

import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import copied
from kills import checkpoints, fingerprints, half_written, kill_in_rules, prepare, start, torment
from safetensors.numpy import load_file
from test_faults import change

# Two segments for each trainer, long enough to be killed within.
SEGMENTS = {
    "mlm": {"steps": 300, "checkpoint_every": 150, "schedule": {"shape": "constant"}},
    "base": {"steps": 1200, "checkpoint_every": 400},
    "finetune": {"steps": 200, "checkpoint_every": 100},
}
BASE = "results/base/small"


def test_a_killed_segment_is_made_again_with_the_same_bytes(trained, tmp_path):
    """Killed once the trainer is at work; the segment before it stays as it is."""
    workflow, segment = copied(trained, tmp_path), f"{BASE}/checkpoints/00000020"
    workflow.steady = True
    shutil.rmtree(workflow / segment)
    log = workflow / "logs/base/small/00000020.log"
    log.unlink()
    before = checkpoints(workflow)
    with open(workflow / "snakemake.out", "w") as out:
        process = workflow.start(f"{segment}/state.json", "--cores", "2", output=out.fileno())
    while not (log.exists() and "steps 11 to 20" in log.read_text()):
        assert process.poll() is None, (workflow / "snakemake.out").read_text()[-3000:]
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (workflow / f"{segment}/state.json").exists()
    done = workflow(f"{segment}/state.json")
    assert fingerprints(workflow / "results") == fingerprints(trained / "results")
    now = checkpoints(workflow)
    assert {name: now[name] for name in before} == before
    assert "--unlock" not in done.stdout and not half_written(workflow)


DIES = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from tpulm.core.files import atomic_write
with atomic_write(sys.argv[2]) as partial, open(partial, "w") as file:
    file.write("half of it")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_file_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / "state.json"
    for content in (None, "whole"):
        if content:
            path.write_text(content)
        scripts = Path(__file__).parents[1] / "scripts"
        assert subprocess.run([sys.executable, "-c", DIES, scripts, path]).returncode == -signal.SIGKILL
        assert (path.read_text() if path.exists() else None) == content
        assert [name.read_text() for name in tmp_path.glob(".*.partial")] == ["half of it"]


def test_a_run_that_stops_early_and_is_thinned(trained, tmp_path):
    """A rate so small that it changes no weight: no evaluation is better than the first."""
    workflow = copied(trained, tmp_path)
    workflow.steady = True
    change(workflow, "base", steps=30, learning_rate=1e-30, patience=1, keep_checkpoints="last")
    workflow(f"{BASE}/history.csv", "--cores", "2")
    folder = workflow / f"{BASE}/checkpoints"
    last = json.loads((folder / "00000030/state.json").read_text())
    assert (last["stopped_at"], last["best"]["step"]) == (20, 10)
    assert (folder / "00000030/best.safetensors").read_bytes() == (folder / "00000010/weights.safetensors").read_bytes()
    assert (folder / "00000030/best.safetensors").stat().st_nlink == 1  # touched, it makes no other checkpoint newer
    assert load_file(folder / "00000030/weights.safetensors") == {}  # nothing trains on from there
    with open(workflow / f"{BASE}/history.csv") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(1, 21))
    # More patience trains on from the stop, as if it had been there from the start.
    change(workflow, "base", patience=3)
    assert "train_base " in workflow(f"{BASE}/history.csv", "-n", "--quiet", "rules").stdout
    change(workflow, "base", patience=1)
    printed = workflow("base", "-n", "--quiet", "rules").stdout
    assert "prune_checkpoint        2" in printed and "train_base " not in printed
    workflow("--until", "prune_checkpoint")
    assert [path.parent.name for path in folder.glob("*/weights.safetensors")] == ["00000030"]
    assert (folder / "00000010/history.csv").is_file() and (folder / "00000010/state.json").is_file()
    assert "files are ok" in workflow("verify").stdout


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run of SEGMENTS that nobody disturbed; not to be changed."""
    workflow = prepare(tmp_path_factory.mktemp("undisturbed") / "workflow", SEGMENTS)
    assert start(workflow).wait() == 0, (workflow / "snakemake.out").read_text()[-3000:]
    return workflow


@pytest.mark.long
def test_kills_change_no_byte(undisturbed, tmp_path):
    """Between two steps of a segment, which takes long segments; and while a checkpoint is written."""
    killed, kinds = prepare(tmp_path / "killed", SEGMENTS), ["mlm", "causal", "writing"]
    hits = torment(killed, kinds, seed=1)
    assert hits["kills"] == len(kinds) and min(hits.values()) >= 1
    expected = fingerprints(undisturbed / "results")
    assert len(expected) > 100 and fingerprints(killed / "results") == expected


@pytest.mark.long
def test_kills_in_rules_drawn_by_a_seed_change_no_byte(trained, tmp_path):
    workflow, dice = copied(trained, tmp_path), random.Random(3)
    for folder in ("results", "logs", ".snakemake"):
        shutil.rmtree(workflow / folder)
    listed = workflow("-n", "--quiet", "rules").stdout
    rules = [name for name in re.findall(r"^(\w+) +\d+$", listed, re.M) if name not in ("all", "total")]
    within, forgotten = kill_in_rules(workflow, set(dice.sample(sorted(rules), 20)), dice)
    assert within >= 10 and forgotten == []
    assert start(workflow).wait() == 0, (workflow / "snakemake.out").read_text()[-3000:]
    assert fingerprints(workflow / "results") == fingerprints(trained / "results")
    assert "files are ok" in workflow("verify").stdout


@pytest.mark.long
def test_longer_and_thinned(undisturbed, tmp_path):
    """A run that is made longer and thinned is made longer again."""
    workflow, before = copied(undisturbed, tmp_path), checkpoints(undisturbed)
    for steps in (450, 600):
        change(workflow, "mlm", steps=steps, keep_checkpoints="last")
        workflow("mlm", "--cores", "2")
        kept = [path.parent.name for path in (workflow / "results/mlm/tiny/checkpoints").glob("*/weights.safetensors")]
        assert kept == [f"{steps:08d}"] and checkpoints(workflow).keys() > before.keys()
    assert "Nothing to be done" in workflow("mlm", "-n").stdout
