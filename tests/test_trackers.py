"""Trackers of experiments: what they get is a function of the log of live metrics."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT
from tpulm.core.errors import UserError
from tpulm.core.live_metrics import FILE
from tpulm.workflow.trackers import TRACKERS, check_installed, follow, samples

pytestmark = pytest.mark.unit
# As TensorBoard itself reads a folder; in a process of its own, which TensorFlow is kept out of.
READER = """
import json, sys
sys.modules["tensorflow"] = None
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray
events = EventAccumulator(sys.argv[1])
events.Reload()
found = {
    tag: [(event.step, make_ndarray(event.tensor_proto).tolist()) for event in events.Tensors(tag)]
    for tag in events.Tags()["tensors"]
}
print(json.dumps(found, default=bytes.decode))
"""


SAMPLE = json.dumps([{"prompt": "a [MASK]", "answers": [{"token_str": "b", "score": 0.5}]}])


def step(number, loss, **more):
    record = {"step": number, "last_step": 20, "loss": loss, "learning_rate": 0.5, "tokens": 1, "mfu": None}
    return record | {"tokens_per_second": 8.0, "seconds_left": 0} | more


def append(folder, *records):
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / FILE, "a") as file:
        file.write("".join(f"{json.dumps(record)}\n" for record in records))


def specification(folder, replay, trackers=("tensorboard",)):
    run = {"name": "mlm/tiny", "folder": str(folder), "samples": str(folder / "fill_mask.json"), "config": {"seed": 3}}
    return {"trackers": list(trackers), "replay": replay, "runs": [run]}


def replay(given):
    """Run the follower, as Snakemake does, until it has tracked all."""
    environment, command = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}, "tpulm.workflow.trackers"
    line = f"{json.dumps(given)}\n"
    done = subprocess.run([sys.executable, "-m", command], input=line, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def events(folder):
    """Return what TensorBoard reads of a folder: by tag, (step, value) of each event."""
    done = subprocess.run([sys.executable, "-c", READER, folder], capture_output=True, text=True, check=True)
    return {tag: [tuple(event) for event in found] for tag, found in json.loads(done.stdout).items()}


def test_tensorboard_reads_the_metrics_of_a_run_that_was_trained_again(tmp_path):
    folder = tmp_path / "logs/mlm/tiny"
    held_out = {"step": 9, "held_out": {"loss": 6.0, "accuracy": 0.5, "perplexity": 9.0}}
    append(folder, step(1, 7.0), step(9, 6.5), held_out)
    (folder / "fill_mask.json").write_text(SAMPLE)
    replay(specification(folder, replay=True))
    found = events(folder)
    assert found["train/loss"] == [(1, 7.0), (9, 6.5)] and found["held_out/accuracy"] == [(9, 0.5)]
    assert found["samples/0"] == [(9, "a [MASK]\n\nb (0.500)")] and '"seed": 3' in found["config"][0][1]
    assert "speed/mfu" not in found

    # A trainer that begins at step 1 again writes another file in its place.
    (folder / FILE).unlink()
    append(folder, step(1, 7.0), step(20, 5.0))
    replay(specification(folder, replay=True))
    assert events(folder)["train/loss"] == [(1, 7.0), (20, 5.0)]
    assert len(list(folder.glob("events*"))) == 1


class Recorder:
    opened: list = []

    def __init__(self, name, folder, config):
        self.said = []
        self.opened.append(self)

    def scalars(self, step, values):
        self.said.append((step, dict(values)))

    def text(self, step, name, text):
        self.said.append((step, name, text))

    def close(self):
        self.said.append("closed")


class Failing(Recorder):
    def scalars(self, step, values):
        raise ConnectionError("no network")


def test_a_tracker_follows_a_log_as_it_grows_and_one_that_fails_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(TRACKERS, "recorder", Recorder)
    monkeypatch.setitem(TRACKERS, "failing", Failing)
    monkeypatch.setattr(Recorder, "opened", [])
    append(tmp_path, step(1, 9.0))  # of an earlier time: it is tracked again only when it grows
    turns, said = [], []

    def ended():
        turns.append(len(Recorder.opened))
        if len(turns) == 2:
            append(tmp_path, step(2, 8.0))
        elif len(turns) == 3:
            append(tmp_path, step(3, 7.0, accuracy=0.25))
        elif len(turns) == 4:  # trained again from step 1
            (tmp_path / FILE).rename(tmp_path / "before")
            append(tmp_path, step(1, 9.0), step(2, 6.0))
        return len(turns) == 5

    assert follow(specification(tmp_path, False, ["failing", "recorder"]), ended, said.append) == 1
    assert turns == [0, 0, 2, 2, 4] and len(said) == 2
    assert all("failing" in one and "mlm/tiny" in one for one in said)
    before, again = ([*tracker.said] for tracker in Recorder.opened if type(tracker) is Recorder)
    assert before.pop() == again.pop() == "closed"
    assert [(step, values["train/loss"]) for step, values in before] == [(1, 9.0), (2, 8.0), (3, 7.0)]
    assert [(step, values["train/loss"]) for step, values in again] == [(1, 9.0), (2, 6.0)]
    assert before[2][1]["train/accuracy"] == 0.25


def test_a_tracker_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="^trackers names wandb, "):
        check_installed(["wandb"])


@pytest.mark.parametrize("texts", [{"before": ["x"], "after": ["y\nz"]}, {"continuations": ["x", "y\nz"]}])
def test_samples_of_a_causal_model_are_after_their_prompts(tmp_path, texts):
    (tmp_path / "generations.json").write_text(json.dumps({"prompts": [{"prompt": "def ", **texts}]}))
    ((name, text),) = samples(tmp_path / "generations.json")
    assert name == "samples/0" and text.index("def ") < text.index("x") < text.index("y\n    z")
