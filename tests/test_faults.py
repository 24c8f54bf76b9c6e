"""Hostile input and faults, as a user meets them: one sentence, exit code 1, nothing half-written, nothing lost."""

import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import warm
from conftest import ROOT, configured, write_yaml
from kills import fingerprints, flip, flipped, half_written, wait_for
from safetensors.numpy import load_file
from test_causal import prose
from tpulm.core.errors import UserError
from tpulm.records.reader import open_to_train
from tpulm.specs.artifacts import CHECKPOINT_FILES
from tpulm.training.checkpoint import save_checkpoint, verified_previous
from tpulm.training.history import History


def configure(workflow, **changes):
    """Write config.yaml: the corpus and the tokenizer of text.txt, with keys of the corpus replaced."""
    corpus = {"source": "files", "files": ["text.txt"], "held_out": {"validation": 0.1, "test": 0.1}}
    write_yaml(workflow / "config.yaml", {"corpus": corpus | changes, "tokenizer": {"vocab_size": 50}})
    workflow.steady = True


def refusal(workflow, *arguments):
    """Run a command that must fail; return its sentence. What was there stays, nothing is half-written."""
    before = fingerprints(workflow / "results")
    done = workflow(*arguments, check=False)
    assert done.returncode == 1, done.stdout[-3000:]
    assert "Traceback" not in done.stdout, done.stdout[-3000:]
    sentences = [
        line.split("error: ", 1)[1] for line in done.stdout.splitlines() if re.match(r"(\[.*\] )?error: ", line)
    ]
    # Where other jobs were shown since, it is said again at the end, after the name of the job.
    assert len(sentences) == 1 or sentences[1].endswith(f": {sentences[0]}"), done.stdout[-3000:]
    after = fingerprints(workflow / "results")
    assert not half_written(workflow) and {name: after.get(name) for name in before} == before
    return sentences[0]


def test_texts_that_cannot_be_used(fresh):
    """As jobs say it; tests/test_corpus.py has other files. That a column is missing is said before any job."""
    (fresh / "a.txt").write_bytes(b"good\nbad \xff\xfe byte\n")
    configure(fresh, files=["a.txt"])
    assert refusal(fresh, "corpus").startswith("a.txt, line 2, is not UTF-8 text: byte 5 ")
    assert fingerprints(fresh / "results") == {}
    (fresh / "a.jsonl").write_text(json.dumps({"text": "some text"}) + "\n")
    configure(fresh, files=["a.jsonl"], column="body")
    assert refusal(fresh, "corpus", "-n").startswith("a.jsonl, line 1 has no column body ")


def test_odd_texts_go_through_to_the_tokenizer(fresh):
    """NUL bytes, CRLF, a byte order mark, and a document of a megabyte in one line; not a corpus that is damaged."""
    lines = prose(200)
    lines[3] = "nul \0 in the middle " * 3
    long = " ".join(lines) * 60
    data = "\ufeff" + "\r\n".join([*lines, long]) + "\r\n"
    (fresh / "text.txt").write_bytes(data.encode())
    configure(fresh)
    fresh("tokenizer")
    parts = [pq.read_table(fresh / f"results/corpus/{split}.parquet") for split in ("train", "validation", "test")]
    assert sorted(text for part in parts for text in part["text"].to_pylist()) == sorted([*lines, long])
    shutil.rmtree(fresh / "results/tokenizer")
    corpus = fresh / "results/corpus/train.parquet"
    corpus.write_bytes(corpus.read_bytes()[:-100])
    sentence = refusal(fresh, "results/tokenizer/tokenizer.json")
    assert sentence.startswith("results/corpus/train.parquet is corrupt ") and "delete the file" in sentence


def started(workflow, *arguments):
    """Start snakemake in a process group of its own; it prints to `snakemake.out`."""
    with open(workflow / "snakemake.out", "a") as out:
        return workflow.start(*arguments, "--cores", "2", output=out.fileno())


def test_a_damaged_base_model_is_not_finetuned(built):
    weights = built / "results/base/small/preset/model.weights.h5"
    times = weights.stat()
    configured(built, {"finetune.runs.python.rank": 2}, "config.yaml")
    flip(weights)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    done = built("results/finetune/python/history.csv", check=False)
    (said,) = re.findall(r"^\[finetune python\] error: (.*)$", done.stdout, re.M)
    assert done.returncode == 1 and said.startswith("results/base/small/preset/model.weights.h5 is damaged: ")
    assert "snakemake --force results/base/small/preset" in said


def test_damaged_records_are_not_trained_on(built):
    shard, manifest = "results/tfrecords/train/00002-of-00004.tfrecord", built / "results/tfrecords/manifest.json"
    whole = (built / shard).read_bytes()
    for damaged, said in ((flipped(whole, 5000), "is corrupt"), (whole[:-7], f"has {len(whole) - 7} bytes")):
        (built / shard).write_bytes(damaged)
        with pytest.raises(UserError, match=f"{shard} {said}.*delete the file"):
            open_to_train(manifest)  # before the first step of each segment


@pytest.mark.parametrize(
    ("stage", "key", "accelerator", "library"),
    [("mlm", "mlm.runs.tiny", "v3-8", "tensorflow"), ("base", "base.small", "h100:1", "jax")],
)
def test_no_step_is_trained_on_other_devices_than_requested(built, stage, key, accelerator, library):
    configured(built, {f"{key}.batch_size": 2, f"{key}.resources": {"accelerator": accelerator}}, "config.yaml")
    said, folder = f"{key}.resources.accelerator is {accelerator}, ", "tiny" if stage == "mlm" else "small"
    state = f"results/{stage}/{folder}/checkpoints/00000010/state.json"
    assert refusal(built, state).startswith(f"{said}but this machine has no ")
    # Without the check of this machine, the job itself compares.
    done = warm.run(library, warm.DEBUG, state, folder=built.folder, code=1)
    assert re.search(rf"error: {re.escape(said)}.* found 1 device \((?i:cpu)\)", done.stdout + done.stderr)
    assert not (built / "debug" / state).exists()


def test_a_damaged_checkpoint_is_named(built, monkeypatch):
    weights = built / "results/base/small/checkpoints/00000010/weights.safetensors"
    target = "results/base/small/checkpoints/00000020/state.json"
    shutil.rmtree(weights.parents[1] / "00000020")
    whole, state = weights.read_bytes(), weights.with_name("state.json")
    text, damaged = state.read_text(), "results/base/small/checkpoints/00000010/{} is corrupt"
    weights.write_bytes(whole[:-5])
    sentence = refusal(built, target)
    assert sentence.startswith(damaged.format("weights.safetensors")) and "delete the file" in sentence
    monkeypatch.chdir(built.folder)
    start_from = [str(weights.with_name(file).relative_to(built.folder)) for file in CHECKPOINT_FILES.values()]
    for damage in (whole[:100], b"", flipped(whole, 5000)):
        weights.write_bytes(damage)
        with pytest.raises(UserError, match=damaged.format(r"weights\.safetensors")):
            verified_previous(start_from)
    state.write_text(text[:50])
    with pytest.raises(UserError, match=damaged.format(r"state\.json")):
        verified_previous(start_from)
    # The command in the sentence mends it: tests/test_resume.py compares the bytes.
    state.write_text(text)
    weights.unlink()
    planned = re.findall(r"^would run  (\w+)", built(target, "-n").stdout, re.M)
    assert planned.count("train_base") == 2


def replaced(*texts):
    """Return a function that replaces the first of two texts in a file, once."""
    return lambda path: path.write_text(path.read_text().replace(*texts, 1))


DAMAGES = {
    "corpus/validation.parquet": lambda path: flip(path, 0.3),
    "tfrecords/train/00001-of-00004.index": lambda path: path.write_bytes(b"12345678"),
    "tokens/small/finetune-text/pad-64/test/00000-of-00001.tfrecord": flip,
    "mlm/tiny/checkpoints/00000010/optimizer.safetensors": flip,
    "finetune/python/checkpoints/00000005/state.json": replaced('"step": 5', '"step": 6'),
    "base/small/preset/model.weights.h5": lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n"),
    "base/small/history.csv": lambda path: path.write_text("step,loss,accuracy,learning_rate\n1,abc,0.5,0.1\n"),
    "finetune/python/metrics.json": lambda path: path.write_text('{"best_step": '),
    "tokenizer/tokenizer.json": replaced('"lstrip": false', '"lstrip": true'),
    "evaluation/mlm/tiny/scores.json": replaced('"value": ', '"value": 1'),
    "evaluation/base/small/items.parquet": lambda path: path.write_text("no table"),
}


def test_verify_names_each_damage(built):
    """One damage of each kind; what is whole stays unmentioned."""
    for name, damage in DAMAGES.items():
        damage(built / "results" / name)
    (built / "results/mlm/tiny/model/special_tokens_map.json").unlink()
    said = built("verify", check=False).stdout
    for sentence in ("mlm/tiny/model/special_tokens_map.json is missing", *(f"{name} is corrupt" for name in DAMAGES)):
        assert re.search(rf"^\[verify\]   results/{re.escape(sentence)}", said, re.M), sentence
    assert "[verify] results/finetune-text: ok" in said
    assert "not checked" not in said


def test_a_loss_that_is_not_finite_is_no_checkpoint(tmp_path):
    outputs = {part: str(tmp_path / file) for part, file in CHECKPOINT_FILES.items()}
    segment = SimpleNamespace(recipe={"last": 40}, outputs=outputs, previous=None)
    for loss in (math.nan, math.inf):
        with pytest.raises(UserError, match=f"^the held-out loss is {loss} at step 40: "):
            save_checkpoint(segment, {}, {}, {"loss": loss})
    history = History(20, 40, 8, print)
    history.add([5.0] * 10, [0.0] * 10, [1.0] * 10, [0.1] * 10)
    with pytest.raises(UserError, match=r"^the loss is nan at step 33, with learning rate 0\.3: "):
        history.add([5.0, 5.0, math.nan], [0.0] * 3, [1.0] * 3, [0.1, 0.2, 0.3])
    assert not list(tmp_path.iterdir())


WAITS = """
import time
from tpulm.core.job import job
with job(snakemake.log[0], "waits") as say:
    say("at work")
    time.sleep(3600)
"""


def test_two_workflows_in_one_folder(built):
    (built / "scripts/report/plot_training.py").write_text(WAITS)
    built.steady = False
    first, log = started(built, "results/figures/training/mlm-tiny.svg"), built / "logs/figures/training-mlm-tiny.log"
    try:
        wait_for(lambda: log.is_file() and "at work" in log.read_text())
        second = built(check=False)
        assert second.returncode == 1
        assert re.search(r"^error: another snakemake .*\(process \d+, since [\d:]+\)", second.stdout, re.M)
        # Its jobs go on when only Snakemake itself is killed, and keep the next one out.
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        orphaned = built(check=False)
        assert orphaned.returncode == 1
        assert "error: jobs of a snakemake that was killed are still running" in orphaned.stdout
    finally:
        os.killpg(first.pid, signal.SIGKILL)


def test_sigterm_ends_a_segment_in_one_sentence(built):
    """And keeps a snapshot, which the next run goes on from; it is no artifact, and not in the way of one."""
    longer = {"seed": 5, "steps": 200_000, "checkpoint_every": 100_000}  # more than it comes to
    configured(built, {f"base.small.{key}": value for key, value in longer.items()}, "config.yaml")
    before = fingerprints(built / "results")
    log = built / "logs/base/small/00100000.log"
    first = started(built, "results/base/small/history.csv")
    wait_for(lambda: log.is_file() and "/100000  " in log.read_text())
    os.killpg(first.pid, signal.SIGTERM)
    assert first.wait() != 0
    said = (built / "snakemake.out").read_text()
    (step,) = re.findall(r"\[base small\] stopped by SIGTERM at step (\d+);", said)
    assert "Traceback" not in said
    assert "snapshots" not in built("clean").stdout
    second = started(built, "results/base/small/history.csv")
    wait_for(lambda: log.is_file() and f"resuming from the snapshot at step {step}\n" in log.read_text())
    os.killpg(second.pid, signal.SIGKILL)
    second.wait()
    after = fingerprints(built / "results")
    assert not half_written(built)
    kept = [name for name in before if not name.startswith(("base", "tokens", "finetune", "figures"))]
    assert {name: after.get(name) for name in kept} == {name: before[name] for name in kept}


# Each of these settings forbids namespaces where it is there.
ALLOW = (
    "on a host: sysctl -w kernel.unprivileged_userns_clone=1, and on Ubuntu: "
    "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
)


EXHAUSTED = """
import sys
from tpulm.core.job import job
with job("job.log", "mlm x"):
    exec(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("library", "work", "said"),
    [
        ("jax", "import jax.numpy as jnp; jnp.zeros((1 << 23, 1 << 22)).block_until_ready()", "RESOURCE_EXHAUSTED"),
        pytest.param(
            "tensorflow",
            "import tensorflow as tf; tf.function(lambda n: tf.fill((n, 1 << 22), 1.0) + 1)(tf.constant(1 << 23))",
            "OOM when allocating tensor",
            marks=pytest.mark.long,
        ),
        ("jax", "import numpy; numpy.ones((1 << 23, 1 << 22))", "Unable to allocate 256. TiB"),
    ],
)
def test_memory_that_runs_out_is_told_in_a_sentence(tmp_path, library, work, said):
    done = warm.run(library, EXHAUSTED, work, folder=tmp_path, code=1)
    sentence = re.fullmatch(r"\[mlm x\] error: memory ran out: (.*)\n", done.stderr)
    assert sentence and said in sentence[1] and "batch_size" in sentence[1], done.stderr


SAVES = """
import sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
import numpy
from tpulm.core.job import job
from tpulm.specs.artifacts import CHECKPOINT_FILES
from tpulm.training.checkpoint import save_checkpoint
with job("job.log", "base x"):
    arrays = {"a": numpy.zeros(1 << 18, "f4")}
    outputs = {part: f"results/{name}" for part, name in CHECKPOINT_FILES.items()}
    segment = SimpleNamespace(recipe={"last": 10}, outputs=outputs, previous=None)
    save_checkpoint(segment, arrays, arrays, {"loss": 1.0})
"""


def run_full(folder, size):
    """Save a checkpoint where the disk is this small; return the files that are left."""
    probe = subprocess.run(
        ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"no mount in a namespace here; {ALLOW}")
    (folder / "results").mkdir(exist_ok=True)
    command = shlex.join([sys.executable, "-c", SAVES, str(ROOT / "scripts")])
    script = (
        f"mount -t tmpfs -o size={size} none results && {command}; "
        "echo CODE $?; find results -type f | sort | sed 's/^/LEFT /'"
    )
    done = subprocess.run(["unshare", "-Urm", "sh", "-c", script], cwd=folder, capture_output=True, text=True)
    out = done.stdout + done.stderr
    assert re.search(r"^CODE 1$", out, re.M) and "Traceback (most recent call last)" not in out, out[-5000:]
    assert re.search(r"^\[.*\] error: No space left on device", out, re.M), out[-3000:]
    return re.findall(r"^LEFT results/(.*)$", out, re.M)


def test_a_full_disk(tmp_path):
    """A checkpoint is cut off in its second file, which a library writes, and in its third one, a copy."""
    whole = ["optimizer.safetensors", "weights.safetensors"]
    for size, left in (("1500k", whole[1:]), ("2500k", whole)):
        assert run_full(tmp_path, size) == left


def test_no_permission_to_write(built):
    """Root leaves its power over permissions behind by `unshare -U`; other users have none."""
    without_power = ["unshare", "-U"] if os.geteuid() == 0 else []
    if without_power and subprocess.run([*without_power, "true"], check=False).returncode:
        pytest.skip(f"root, and no namespace here; {ALLOW}")
    configured(built, {"mlm.runs.tiny.seed": 7}, "config.yaml")
    folders = [built / "results", *(path for path in (built / "results").rglob("*") if path.is_dir())]
    before = fingerprints(built / "results")
    for folder in folders:
        folder.chmod(0o555)
    try:
        done = subprocess.run(
            [*without_power, sys.executable, "-m", "snakemake"], cwd=built.folder, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert done.returncode == 1 and "Traceback" not in done.stdout, done.stdout
    assert re.search(r"^note: results/ .*Permission denied", done.stdout, re.M)
    assert fingerprints(built / "results") == before


def test_weights_are_readable_by_others(trained):
    mask = os.umask(0)
    os.umask(mask)
    for path in (trained / "results").rglob("*.safetensors"):
        assert path.stat().st_mode & 0o777 == 0o666 & ~mask, path
        assert load_file(path)
