"""Training goes on where it was: after kills, after an early stop, with checkpoints thinned."""

import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import configured, copied
from kills import checkpoints, fingerprints, half_written, kill_in_rules, start, wait_for
from safetensors.numpy import load_file

BASE = "results/base/small"


def test_a_killed_segment_is_made_again_with_the_same_bytes(trained, built):
    """Killed once the trainer is at work; the segment before it stays as it is."""
    workflow, segment = built, f"{BASE}/checkpoints/00000020"
    shutil.rmtree(workflow / segment)
    log = workflow / "logs/base/small/00000020.log"
    log.unlink()
    before = checkpoints(workflow)
    with open(workflow / "snakemake.out", "w") as out:
        process = workflow.start(f"{segment}/state.json", "--cores", "2", output=out.fileno())
    wait_for(lambda: log.exists() and "steps 11 to 20" in log.read_text(), process, every=0.01)
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


def test_a_run_that_stops_early_and_is_thinned(built):
    """A rate so small that it changes no weight: no evaluation is better than the first."""

    def change(**keys):
        configured(built, {f"base.small.{key}": value for key, value in keys.items()}, "config.yaml")

    change(steps=30, learning_rate=1e-30, patience=1, keep_checkpoints="last")
    built(f"{BASE}/history.csv", "--cores", "2")
    folder = built / f"{BASE}/checkpoints"
    last = json.loads((folder / "00000030/state.json").read_text())
    assert (last["stopped_at"], last["best"]["step"]) == (20, 10)
    assert (folder / "00000030/best.safetensors").read_bytes() == (folder / "00000010/weights.safetensors").read_bytes()
    assert (folder / "00000030/best.safetensors").stat().st_nlink == 1  # touched, it makes no other checkpoint newer
    assert load_file(folder / "00000030/weights.safetensors") == {}  # nothing trains on from there
    with open(built / f"{BASE}/history.csv") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(1, 21))
    # More patience trains on from the stop, as if it had been there from the start.
    change(patience=3)
    assert "train_base " in built(f"{BASE}/history.csv", "-n", "--quiet", "rules").stdout
    change(patience=1)
    printed = built("base", "-n", "--quiet", "rules").stdout
    assert "prune_checkpoint        2" in printed and "train_base " not in printed
    built("--until", "prune_checkpoint")
    assert [path.parent.name for path in folder.glob("*/weights.safetensors")] == ["00000030"]
    assert (folder / "00000010/history.csv").is_file() and (folder / "00000010/state.json").is_file()
    assert "files are ok" in built("verify").stdout


@pytest.mark.long
def test_longer_and_thinned(built):
    """A run that is made longer and thinned is made longer again, and no segment is trained twice."""
    before = {}
    for steps in (20, 40):
        keys = {"steps": steps, "schedule": {"shape": "constant"}, "keep_checkpoints": "last"}
        configured(built, {f"base.small.{key}": value for key, value in keys.items()}, "config.yaml")
        built("base", "--cores", "2")
        kept = [path.parent.name for path in (built / f"{BASE}/checkpoints").glob("*/weights.safetensors")]
        now = checkpoints(built)
        assert kept == [f"{steps:08d}"] and before.items() <= now.items()
        before = now
    assert "Nothing to be done" in built("base", "-n").stdout


@pytest.mark.long
def test_kills_in_rules_drawn_by_a_seed_change_no_byte(trained, tmp_path):
    workflow, dice = copied(trained, tmp_path), random.Random(3)
    for folder in ("results", "logs", ".snakemake"):
        shutil.rmtree(workflow / folder)
    listed = workflow("-n", "--quiet", "rules").stdout
    rules = [name for name in re.findall(r"^(\w+) +\d+$", listed, re.M) if name not in ("all", "total")]
    within, forgotten = kill_in_rules(workflow, set(dice.sample(sorted(rules), 20)), dice)
    assert within >= 10 and forgotten == []
    said = workflow / "snakemake.out"
    assert start(workflow).wait() == 0, said.read_text()[-3000:]
    assert "--unlock" not in said.read_text() and not half_written(workflow)
    assert fingerprints(workflow / "results") == fingerprints(trained / "results")
    assert "files are ok" in workflow("verify").stdout
