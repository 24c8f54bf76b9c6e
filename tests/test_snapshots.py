"""Snapshots, the callbacks at which they are made, and live metrics, without a trainer."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from snakemake.iocontainers import InputFiles
from tpulm.core.live_metrics import LiveMetrics, read_metrics
from tpulm.core.processes import Stopped
from tpulm.training.callbacks import StepCallbacks
from tpulm.training.history import FigureReader, History
from tpulm.training.snapshots import Snapshots, key_of

pytestmark = pytest.mark.unit

WHOLE = {"weights/a": np.arange(12, dtype="f4").reshape(3, 4), "optimizer/count": np.array(7, "i4")}
SHAPES = {name: array.shape for name, array in WHOLE.items()}
PARTS = {
    "weights/a@0,0": WHOLE["weights/a"][:, :1], "weights/a@0,1": WHOLE["weights/a"][:, 1:],
    "optimizer/count@": WHOLE["optimizer/count"],
}  # fmt: skip


@pytest.fixture
def snapshots(tmp_path):
    return Snapshots(str(tmp_path / "run/snapshots/00000020"), "0123456789abcdef")


def latest(snapshots):
    with ExitStack() as local:
        return snapshots.latest(local)


def files(snapshots):
    folder = Path(snapshots.folder)
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_the_newest_snapshot_is_read_back_whole(snapshots):
    assert latest(snapshots) is None
    for step in (4, 12):
        snapshots.save(step, PARTS, SHAPES, {"step": step})
    assert files(snapshots) == [
        "0123456789abcdef-00000012.json", "0123456789abcdef-00000012.process-0.safetensors",
    ]  # fmt: skip
    found = latest(snapshots)
    assert (found.step, found.history) == (12, {"step": 12})
    for prefix, name in (("weights/", "a"), ("optimizer/", "count")):
        arrays = found.arrays(prefix)
        assert list(arrays) == [name] and arrays[name].dtype == WHOLE[prefix + name].dtype
        np.testing.assert_array_equal(arrays[name], WHOLE[prefix + name])
    snapshots.delete()
    assert not Path(snapshots.folder).parent.exists()


def test_each_process_writes_its_own_part(snapshots, monkeypatch):
    """The first one, which writes last here, says what all have written."""
    names, digests = list(PARTS), []

    def gather(digest):
        if digest not in digests:
            digests.insert(0, digest)  # as all processes gather them: of process 0 first
        return digests

    for number, keys in ((1, names[1:]), (0, names[:1])):
        monkeypatch.setenv("TRAINING_PROCESS", str(number))
        snapshots.save(6, {key: PARTS[key] for key in keys}, SHAPES, {}, gather)
        assert (latest(snapshots) is None) == (number == 1)  # not before all parts are there
    snapshots.delete_damaged(pytest.fail)
    np.testing.assert_array_equal(latest(snapshots).arrays("weights/")["a"], WHOLE["weights/a"])


@pytest.mark.parametrize("damage", ["bit", "short", "missing", "json"])
def test_a_damaged_snapshot_is_not_used(snapshots, damage):
    snapshots.save(12, PARTS, SHAPES, {})
    about, part = (Path(snapshots.folder) / name for name in files(snapshots))
    content = part.read_bytes()
    if damage == "bit":
        part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "short":
        part.write_bytes(content[:-8])
    elif damage == "missing":
        part.unlink()
    else:
        about.write_text(about.read_text()[:40])
    said = []
    snapshots.delete_damaged(said.append)
    assert len(said) == 1 and snapshots.folder in said[0]
    assert latest(snapshots) is None and files(snapshots) == []


def test_a_snapshot_of_another_segment_is_not_used(snapshots, tmp_path):
    file = tmp_path / "manifest.json"
    file.write_text("a")
    recipe = {"first": 0, "last": 20, "seed": 1}
    keys = [key_of(recipe, "a", [str(file)]), key_of(recipe | {"seed": 2}, "a", [str(file)])]
    file.write_text("b")
    keys += [key_of(recipe, "a", [str(file)]), key_of(recipe, "b", [str(file)])]
    assert len(set(keys)) == 4 and keys[2] == key_of(dict(reversed(recipe.items())), "a", [str(file)])
    ours, theirs = (Snapshots(snapshots.folder, key) for key in keys[:2])
    theirs.save(12, PARTS, SHAPES, {})
    assert latest(ours) is None and latest(theirs).step == 12
    ours.save(4, PARTS, SHAPES, {})
    assert latest(theirs) is None and latest(ours).step == 4  # one segment, one snapshot


def test_every_input_of_a_segment_identifies_its_snapshots(tmp_path):
    names = ["records", "mixture", "init", "start", "state"]
    paths = {name: str(tmp_path / name) for name in names}
    lists = {"mixture": [paths["mixture"]], "init": [paths["init"]], "previous": [paths["state"]]}
    inputs = InputFiles(fromdict={"records": paths["records"], "start": [paths["start"]], **lists})
    keys = set()
    for name in (*names, *names):
        Path(paths[name]).write_text(f"{len(keys)}")
        keys.add(Snapshots.of({}, SimpleNamespace(recipe={}, code=""), inputs, print).key)
    assert len(keys) == 2 * len(names)


def test_a_snapshot_that_is_broken_off_leaves_the_one_before(snapshots, monkeypatch):
    snapshots.save(4, PARTS, SHAPES, {})
    with pytest.raises(Stopped):
        snapshots.save(12, PARTS, SHAPES, {}, lambda digest: (_ for _ in ()).throw(Stopped()))
    snapshots.delete_damaged(pytest.fail)
    assert latest(snapshots).step == 4
    snapshots.save(13, PARTS, SHAPES, {})
    assert len(files(snapshots)) == 2


class Sum:
    def __init__(self):
        self.value = np.zeros((), "f8")

    def state_parts(self):
        return {"weights/value@": self.value}, {"weights/value": ()}

    def load(self, weights, optimizer, source):
        assert source.startswith("the snapshot at step ") and not len(optimizer)
        self.value = weights["value"]


def segment(snapshots, said, stop_at=None, evaluations=(), every=4, again=False):
    """Train ten steps; SIGTERM comes in step `stop_at`, or in the evaluation at one of the steps `evaluations`."""
    trainer, history = Sum(), History(10, 20, 1, lambda line: None)

    def measure(watch):
        for _ in watch(range(3)):
            if history.step in evaluations:
                os.kill(os.getpid(), signal.SIGTERM)
        return {"loss": float(trainer.value), "accuracy": 0.0}

    with StepCallbacks(trainer, measure, history, snapshots, said.append, every) as callbacks:
        assert callbacks.resume() == again
        callbacks.redo_evaluation()
        reader = FigureReader(history)
        for step in range(history.step + 1, 21):
            trainer.value = trainer.value + 1 / step
            callbacks.defer_signals()
            reader.add(np.float32([1 / step, 0.5, 2]), np.array([step], "f4"))
            if step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)  # of a scheduler, and of a parent that passes it on
            callbacks(step, reader)
        reader.finish()
        callbacks.finish()
        callbacks.segment_written()
    return history, trainer.value


@pytest.mark.parametrize(
    "where", [{"stop_at": 12}, {"stop_at": 17}, {"stop_at": 20}, {"evaluations": [16]}, {"evaluations": [20]}]
)
def test_a_segment_that_is_stopped_goes_on_as_if_it_were_not(tmp_path, where):
    handler = lambda *_: pytest.fail("SIGTERM was not deferred")  # noqa: E731
    before = signal.signal(signal.SIGTERM, handler)
    try:
        said, folder = [], str(tmp_path / "snapshots/20")
        whole, value = segment(Snapshots(folder, "k"), said)
        assert list(whole.held_out) == [12, 16, 20]
        step = where.get("stop_at") or where["evaluations"][0]
        with pytest.raises(Stopped, match=f"^stopped by SIGTERM at step {step};"):
            segment(Snapshots(folder, "k"), said, **where)
        assert signal.getsignal(signal.SIGTERM) is handler
        history, again = segment(Snapshots(folder, "k"), said, again=True)
        assert len(said) == 1 and said[0].endswith(f" step {step}") and again == value
        for one in (whole, history):
            one.write(str(tmp_path / f"{id(one)}.csv"), str(tmp_path / "timings.csv"), held_out=True)
        text = (tmp_path / f"{id(whole)}.csv").read_text()
        assert text == (tmp_path / f"{id(history)}.csv").read_text()
        rows = [line.split(",") for line in text.splitlines()]
        columns = ["step", "loss", "accuracy", "learning_rate", "gradient_norm", "held_out_loss"]
        assert rows[0] == columns and len(rows) == 11
        assert [row[0] for row in rows if row[5]] == ["step", "12", "16", "20"]
        assert not (tmp_path / "snapshots").exists()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_power_failure_loses_little(tmp_path):
    """Snapshots that nobody asked for, here at every pause that the clock is looked at."""
    snapshots = Snapshots(str(tmp_path / "20"), "k", every=1e-9)
    trainer, history = Sum(), History(0, 40, 1, lambda line: None)
    with StepCallbacks(trainer, lambda watch: {}, history, snapshots, print) as callbacks:
        reader = FigureReader(history)
        for step in range(1, 41):
            reader.add(np.float32([0.5, 0.5, 2]), np.array([1], "f4"))
            callbacks(step, reader)
    assert latest(snapshots).step >= 10


def test_live_metrics_go_on_where_a_run_does(tmp_path):
    log = str(tmp_path / "00000020.log")
    history = History(0, 20, 128, lambda line: None, seconds_at_peak=1e-9)
    history.live = LiveMetrics(log, 0)
    for losses in ([7.0], [6.0, 5.0]):
        history.add(losses, [0.25] * len(losses), [2.0] * len(losses), [0.1] * len(losses))
    history.evaluated({"loss": 5.5, "accuracy": 0.25, "perplexity": 244.7, "predictions": 9}, keep=True)
    with open(history.live.path, "a") as file:
        file.write('{"step": 9, "los')  # cut short
    records = list(read_metrics(history.live.path))
    assert [record["step"] for record in records] == [1, 3, 3]
    assert records[1] | {"tokens_per_second": 0, "seconds_left": 0, "mfu": 0} == {
        "step": 3, "last_step": 20, "loss": 5.0, "accuracy": 0.25, "learning_rate": 0.1, "gradient_norm": 2.0,
        "tokens": 384, "tokens_per_second": 0, "mfu": 0, "seconds_left": 0,
    }  # fmt: skip
    assert records[0]["seconds_left"] is None and records[1]["seconds_left"] is not None  # without the compilation
    assert records[1]["mfu"] is not None and records[2]["held_out"]["loss"] == 5.5
    assert [record["step"] for record in read_metrics(LiveMetrics(log, 2).path)] == [1]  # later steps are trained again
    assert history.live.path.read_text().endswith("}\n")
