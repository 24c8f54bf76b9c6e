"""Several processes with virtual CPU devices train what one process with as many devices trains."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import forked
import numpy as np
import pytest
import warm
from conftest import ROOT, Workflow, configured, outside
from kills import processes_in
from test_mlm_tensorflow import RECIPE, SIZES, manifest  # noqa: F401 (a fixture)
from tpulm.config.reading import read_yaml
from tpulm.core import processes
from tpulm.core.arrays import load_arrays
from tpulm.core.processes import StopRequest

# A script as Snakemake runs one: it starts itself once per process. The lock is why tests/forked.py has JAX for it.
SCRIPT = """# envs/jax.txt
import json, os, sys
JOB = json.loads(open(os.environ["JOB"]).read())
sys.path.insert(0, JOB["scripts"])
import numpy as np
from tpulm.core import processes
from tpulm.specs.training_step import TrainingStep
from tpulm.training import runtime
from tpulm.training.history import History
from tpulm.core.job import job
from tpulm.records.masked_batches import evaluation_batches, training_batch
from tpulm.records.reader import Records

with job(JOB["out"] + "/x.log", "mlm x") as say:
    if processes.launch_workers(JOB["resources"], say):
        sys.exit()
    if processes.number() == JOB.get("failing"):
        from tpulm.core.errors import UserError
        raise UserError("the disk of this host is gone.")
    runtime.start(1, 2)
    if processes.number() == JOB.get("raising"):
        raise RuntimeError("INTERNAL:\\nno answer")
    import jax
    from tpulm.training import sharded_arrays
    from tpulm.models import masked_models
    from tpulm.training.jax_run import build_run
    from tpulm.training.jax_trainer import Trainer
    recipe, records, read = JOB["recipe"], Records(JOB["manifest"], "train"), set()

    def load(step, rows):
        read.add((rows.start, rows.stop))
        return training_batch(records, recipe, step, rows)

    vocabulary = {"size": records.manifest["vocab_size"], "pad": records.manifest["special_ids"]["pad"]}
    known = {"sequence_length": records.manifest["sequence_length"], "vocabulary": vocabulary}
    trainer = Trainer(build_run(TrainingStep.of("mlm", "mlm.runs.x", recipe, **known), masked_models))
    history = History(0, 3, 1, say)
    trainer.train(load, 0, np.full(3, 1e-3, "f4"), history)
    held_out, here = trainer.evaluate(evaluation_batches(records)), f"{JOB['out']}/{processes.number()}"
    sharded_arrays.save_sharded(here + "/weights", trainer.weights())  # the others do not see this one's folder
    if processes.count() > 1:
        del sharded_arrays.whole_array  # what is saved from here on is gathered nowhere
    sharded_arrays.save_sharded(JOB["out"] + "/optimizer", trainer.optimizer())
    if processes.count() > 1:
        sharded_arrays.save_sharded(JOB["out"] + "/weights", trainer.weights())
    saved = [sharded_arrays.Arrays(f"{JOB['out']}/{name}") for name in ("0/weights", "optimizer")]
    trainer.load(*saved, "what was saved")
    again = trainer.evaluate(evaluation_batches(records))
    result = {"devices": jax.device_count(), "rows": sorted(read)}
    if processes.number() == 0:
        result |= {"losses": [float(row.split(",")[1]) for row in history.rows], "held_out": held_out, "again": again}
    with open(f"{JOB['out']}/{processes.number()}.json", "w") as file:
        json.dump(result, file)
"""


def train(manifest, folder, processes, launcher=None, **more):  # noqa: F811
    """Train on two devices, each the only one of a process where there are two."""
    folder.mkdir()
    recipe = RECIPE | {"batch_size": 8, "model": SIZES | {"architecture": "roberta"}, "mesh": [2, 1]}
    recipe |= {"microbatches": 1, "steps_per_execution": 1, "remat": False}
    resources = {"hosts": processes} | ({"launcher": launcher} if launcher else {})
    job = more | {"scripts": str(ROOT / "scripts"), "out": str(folder), "resources": resources}
    (folder / "job.json").write_text(json.dumps(job | {"recipe": recipe, "manifest": str(manifest)}))
    environment = os.environ | forked.ONE_THREAD | warm.QUICK | {"JOB": str(folder / "job.json")}
    if processes == 1:
        return warm.start("jax", SCRIPT, folder=folder, environment=environment)
    script = folder / ".snakemake/scripts/script.py"
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT)
    command = [Workflow.python(), str(script)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_two_processes_train_as_one(manifest, tmp_path):  # noqa: F811
    """The same losses to 1e-6, with dropout: sums over devices are made by another library, in another order."""
    # Another host has nothing of this one's environment; what it needs is in the command. But it is forked here, too.
    read = [name for name in os.environ | forked.ONE_THREAD if name.startswith(forked.READ_ON_IMPORT)]
    needed = " ".join(f'{name}="${name}"' for name in ("PATH", "HOME", "JOB", "XLA_FLAGS", *read))
    launcher = f"echo {{number}} >> launched; env -i {needed} sh -c {{command}}"
    for name, count in (("one", 1), ("two", 2)):
        done = train(manifest, tmp_path / name, count, launcher=launcher)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stderr.count("[mlm x] step 3/3") == 1  # the first process speaks for all
    one, first, second = (
        json.loads((tmp_path / name).read_text()) for name in ("one/0.json", "two/0.json", "two/1.json")
    )
    assert [result["devices"] for result in (one, first, second)] == [2, 2, 2]
    np.testing.assert_allclose(first["losses"], one["losses"], rtol=1e-6)
    assert first["held_out"] == pytest.approx(one["held_out"], rel=1e-6)
    # What all write together into one file is what the first one writes after gathering it, where it must.
    assert sorted((tmp_path / "two/launched").read_text().split()) == ["0", "1"]
    assert not [*(tmp_path / "two").rglob(".seen*"), *(tmp_path / "two").rglob("*.partial")]
    assert (tmp_path / "two/weights").read_bytes() == (tmp_path / "two/0/weights").read_bytes()
    assert not (tmp_path / "two/1/weights").exists()
    assert first["again"] == first["held_out"]  # read back by all, it is the model that was trained
    optimizers = [load_arrays(tmp_path / name / "optimizer") for name in ("two", "one")]
    assert list(optimizers[0]) == list(optimizers[1])
    weights, expected = (load_arrays(tmp_path / name / "0/weights") for name in ("two", "one"))
    for name, array in expected.items():
        np.testing.assert_allclose(weights[name], array, atol=1e-5)
    # Each reads the records of its own device.
    assert [result["rows"] for result in (one, first, second)] == [[[0, 8]], [[0, 4]], [[4, 8]]]


@pytest.mark.parametrize("when", ["failing", pytest.param("raising", marks=pytest.mark.long)])
def test_a_failure_on_one_ends_all_with_one_message(manifest, tmp_path, when):  # noqa: F811
    """Also when they have met: then each would wait for the others, an hour, before it ends."""
    done = train(manifest, tmp_path / "failing", 2, **{when: 1})
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert done.returncode == 1 and line.startswith("[mlm x] error: process 1 of 2: ")
    assert not list((tmp_path / "failing").glob("?.json"))


@pytest.mark.long
def test_processes_stop_together_and_go_on(built):
    """Each writes its part of one snapshot, at a step that all of them have made; where one is killed, all end."""
    assert "Nothing to be done" in built("finetune", "-n", "--set-resources", "train_finetune:hosts=2").stdout
    two = {"steps": 4000, "checkpoint_every": 4000, "mesh": [1, 2], "host_device_count": 2}
    two = read_yaml(built / "config.yaml")["finetune"]["runs"]["python"] | two
    configured(built, {"finetune.runs.two": two}, "config.yaml")

    def snapshots():
        folder = built / "results/finetune/two/snapshots/00004000"
        return [path.name.partition("-")[2] for path in sorted(folder.iterdir())]

    said = interrupted(built, lambda folder: signal_all(folder, signal.SIGTERM))
    [step] = map(int, re.findall(r"\[finetune two\] stopped by SIGTERM at step (\d+);", said))
    kept = snapshots()
    assert kept == [f"{step:08d}.{end}" for end in ("json", "process-0.safetensors", "process-1.safetensors")]
    said = interrupted(built, lambda folder: signal_all(folder, signal.SIGKILL, b"TRAINING_PROCESS=1\0"))
    assert re.search(rf"\[finetune two\] .*snapshot at step {step}\n", said)
    assert step < int(re.search(r"\[finetune two\] step (\d+)/4000  ", said)[1])
    assert "[finetune two] error: process 1 of 2: it was killed by signal 9." in said
    assert not list((built / "results/finetune/two").rglob("weights.safetensors")) and snapshots() == kept


@pytest.mark.parametrize(
    ("second", "found"),
    [
        ("os.kill(os.getpid(), 9)", (1, "it was killed by signal 9.")),
        ("time.sleep(60)", (0, "Gloo all-reduce failed")),
        ("print('[x] error: the disk is full', file=sys.stderr)", (0, "Gloo all-reduce failed")),
    ],
)
def test_of_processes_that_fail_the_one_that_was_killed_is_named(second, found, monkeypatch):
    first = "print('[x] error: Gloo all-reduce failed', file=sys.stderr)"
    if "kill" in second:
        monkeypatch.setattr(processes, "WORD", 60.0)  # however late this machine is with it
    # It holds the pipe's other end: the second goes on when the first has ended, however late either starts.
    missed, ended = os.pipe()
    second = f"os.close({ended}); os.read({missed}, 1); time.sleep(0.2); {second}"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", f"import os, sys, time; {work}"], stderr=subprocess.PIPE, text=True,
            pass_fds=(missed, ended),
        )
        for work in (first, second)
    ]  # fmt: skip
    os.close(missed)
    os.close(ended)
    try:
        assert processes.watch(children, print, StopRequest()) == found
    finally:
        for child in children:
            child.kill()
            child.wait()


def interrupted(workflow, interrupt):
    """Run a long segment until it has made a step, then interrupt its processes; return what was said."""
    running = workflow.start(
        "results/finetune/two/history.csv", "--set-resources", "train_finetune:hosts=2",
        environment=outside() | warm.QUICK,
    )  # fmt: skip
    said = []
    try:
        for line in running.stdout:
            said.append(line)
            if "/4000  " in line:
                interrupt(workflow.folder)
                break
        said += running.stdout
        assert running.wait() == 1
    finally:
        signal_all(workflow.folder, signal.SIGKILL)
    return "".join(said)


def signal_all(folder, number, only=b""):
    """Send a signal to all processes in a folder that have this in their environment."""
    for pid in processes_in(folder):
        with contextlib.suppress(OSError):  # it has ended
            if only in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, number)
