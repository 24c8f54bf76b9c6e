"""The TensorFlow trainer: resuming is exact, replicas agree with one device, exports are the model."""

import json
import re

import numpy as np
import pytest
import warm
from conftest import copied
from tpulm.records.shards import unpadded
from tpulm.records.tfrecord import write_records

LENGTH, VOCABULARY = 16, 64
ONE_TYPE = {"layer_norm_eps": 1e-5, "type_vocab_size": 1}  # as RoBERTa on JAX is
MASKING = {"mlm_probability": 0.15, "mask_replace_prob": 0.8, "random_replace_prob": 0.1}
OPTIMIZER = {"weight_decay": 0.01, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, "global_clipnorm": 1.0}
RECIPE = {"batch_size": 4, "seed": 3, "masking": MASKING, "precision": "float32", "optimizer": OPTIMIZER}
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": LENGTH + 4,
}  # fmt: skip

# Common to the programs below, each in a process of its own: devices and threads are settled once per process.
JOB = """
import json, sys
job = json.loads(sys.argv[1])
from tpulm.models.transformers_config import model_config
from tpulm.records.masked_batches import training_batch
from tpulm.records.reader import Records
from tpulm.training.tensorflow_runtime import start, tf, tf_keras
from tpulm.training.tensorflow_trainer import Trainer, evaluate, global_batches, train_segment

recipe, records, strategy = job["recipe"], Records(job["manifest"], "train"), start(1, job["devices"])
config = model_config(recipe["model"], records.manifest, "mlm.runs.x.model")
"""

TRAIN = """
from tpulm.core.arrays import save_arrays
from tpulm.training.tensorflow_model import predictions

trainer = Trainer(strategy, config, recipe)
save_arrays(f"{job['folder']}/start", trainer.weights())
if job["one_type"]:  # the vector of the one token type stays as it is
    layer = trainer.model.roberta.embeddings
    layer._trainable_weights = [v for v in layer._trainable_weights if v is not layer.token_type_embeddings]
load = lambda step: training_batch(records, recipe, step)
figures = [
    trainer.step(batch, tf.constant(1e-3), tf.constant(step, tf.int64)).numpy().tolist()
    for step, batch in enumerate(global_batches(strategy, load, recipe["batch_size"], 0, job["steps"]))
]
results = {name: [row[column] for row in figures] for column, name in enumerate(("losses", "accuracies", "norms"))}
results["replicas"] = strategy.num_replicas_in_sync
if job["measured"]:
    batch = {name: tf.constant(array) for name, array in training_batch(records, recipe, 0).items()}
    everywhere = trainer.model({"input_ids": batch["input_ids"]}, training=False).logits
    chosen = tf.gather(everywhere, batch["positions"], batch_dims=1)
    by_position = predictions(trainer.model, batch, training=False)
    results["difference"] = float(tf.reduce_max(tf.abs(tf.cast(chosen, tf.float32) - by_position)))
    results["held_out"] = evaluate(trainer.model, records, strategy)
print("RESULT" + json.dumps(results))
"""


def records(folder, packing):
    """Write twenty records of random tokens, as the workflow does; return the manifest's path."""
    dice = np.random.default_rng(0)
    ids = dice.integers(5, VOCABULARY, (20, LENGTH)).astype(np.int32)
    ids[:, 0], ids[:, -1] = 0, 1
    features = unpadded(ids)
    if packing == "segments":
        features |= {"segment_ids": 1 + np.sort(dice.integers(0, 3, ids.shape).astype(np.int32), axis=1)}
        features["segment_ids"][:, 0] = 1
    if packing == "pad":
        features["attention_mask"] = (np.arange(LENGTH) < dice.integers(8, LENGTH + 1, (20, 1))).astype(np.int32)
        ids[features["attention_mask"] == 0] = 3
    name = "train/00000-of-00001"
    (folder / "train").mkdir()
    written = write_records(folder / f"{name}.tfrecord", folder / f"{name}.index", [features])
    shard = {"file": f"{name}.tfrecord", "index": f"{name}.index"} | written
    path = folder / "manifest.json"
    special = {"cls": 0, "sep": 1, "unk": 2, "pad": 3, "mask": 4}
    content = {"sequence_length": LENGTH, "tokens_per_record": LENGTH, "packing": packing, "vocab_size": VOCABULARY}
    path.write_text(json.dumps(content | {"special_ids": special, "splits": {"train": {"shards": [shard]}}}))
    return path


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return records(tmp_path_factory.mktemp("records"), "concat")


def train(manifest, folder, steps, devices=1, architecture="roberta", one_type=False, measured=False, **recipe):
    """Train; return the figures of each step. The weights from which it starts are in the folder."""
    sizes = SIZES | {"architecture": architecture} | (ONE_TYPE if one_type else {})
    dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    folder.mkdir()
    job = {
        "recipe": RECIPE | recipe | {"model": sizes | dropouts}, "manifest": str(manifest), "devices": devices,
        "steps": steps, "one_type": one_type, "measured": measured, "folder": str(folder),
    }  # fmt: skip
    return warm.result(warm.run("tensorflow", JOB + TRAIN, json.dumps(job)))


def test_replicas_and_microbatches_give_the_figures_of_one_device(manifest, tmp_path):
    """Float32 numbers are added up in another order."""
    one = train(manifest, tmp_path / "one", 3, measured=True)
    other = train(manifest, tmp_path / "other", 3, devices=2, microbatches=2, measured=True)
    assert one["replicas"] == 1 and other["replicas"] == 2
    assert one["difference"] < 1e-5  # the head at the masked positions only, against the head at all
    for figure in ("losses", "accuracies", "norms"):
        assert other[figure] == pytest.approx(one[figure], rel=1e-4)
    assert other["held_out"] == pytest.approx(one["held_out"], rel=1e-4)


# The losses of two copies of a record, each of which is a microbatch, by what each weighs; nothing is learned.
COPIES = """
trainer = Trainer(strategy, config, recipe)
first = {name: array[:1] for name, array in training_batch(records, recipe, 0).items()}
batch = {name: tf.repeat(tf.constant(array), 2, axis=0) for name, array in first.items()}
losses = []
for counts in ([1.0, 0.0], [0.0, 1.0], [1.0, 0.0]):
    weights = batch["weights"] * tf.constant(counts)[:, None]
    losses.append(float(trainer.step(batch | {"weights": weights}, tf.constant(0.0), tf.constant(0, tf.int64))[0]))
print("RESULT" + json.dumps(losses))
"""


def test_microbatches_draw_dropout_of_their_own(manifest):
    model = SIZES | {"architecture": "roberta", "attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0.5}
    recipe = RECIPE | {"model": model, "batch_size": 2, "microbatches": 2}
    job = {"recipe": recipe, "manifest": str(manifest), "devices": 1}
    first, second, again = warm.result(warm.run("tensorflow", JOB + COPIES, json.dumps(job)))
    assert first == again != pytest.approx(second, rel=1e-6)


def test_a_bert_trains_in_bfloat16(manifest, tmp_path):
    found = train(manifest, tmp_path / "bert", 2, architecture="bert", precision="mixed_bfloat16")
    assert len(found["losses"]) == 2 and np.isfinite(found["losses"]).all()


def test_beside_a_tpu_that_tensorflow_cannot_use(trained, tmp_path, monkeypatch):
    """A model answers there all the same; training ends in a sentence, and not on the processor."""
    workflow = copied(trained, tmp_path)
    monkeypatch.setenv("TPU_NAME", "local")
    file = "results/mlm/tiny/fill_mask.json"
    warm.run("tensorflow", warm.DEBUG, file, folder=workflow.folder)
    assert (workflow / "debug" / file).read_bytes() == (workflow / file).read_bytes()
    file = "results/mlm/tiny/checkpoints/00000010/state.json"
    said = warm.run("tensorflow", warm.DEBUG, file, folder=workflow.folder, code=1).stderr
    assert "[mlm tiny] error: TensorFlow cannot use the TPU " in said
    assert "TPU_NAME" in said and "tpu-tensorflow" in said


# Trains a segment as a whole, then the same one stopped and going on; what comes before defines `train`.
STOP = """
import os, signal
from pathlib import Path
from tpulm.specs.artifacts import CHECKPOINT_FILES, SEGMENT_FILES
from tpulm.core.processes import Stopped
from tpulm.training.snapshots import Snapshots

def segment(folder, stop_at=None):
    outputs = {name: f"{folder}/{file}" for name, file in (CHECKPOINT_FILES | SEGMENT_FILES).items()}
    Path(folder).mkdir(exist_ok=True)
    said = []

    def say(line):
        said.append(line)
        if stop_at and line.startswith(f"step {stop_at}/"):
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        train((outputs, None), Snapshots(f"{folder}/snapshots/12", "k"), say, f"{folder}/x.log")
    except Stopped as stopped:
        said.append(str(stopped))
    return said

whole, parts = job["out"] + "/whole", job["out"] + "/parts"
print("RESULT" + json.dumps([segment(whole), segment(parts, job["stop_at"]), segment(parts)]))
"""


def run_and_stop(library, program, manifest, folder, stop_at, devices, changes):
    """Train with dropout, and evaluations within the segment; stopped at a line of progress, it has the same bytes."""
    model = SIZES | {"architecture": "roberta", "hidden_dropout_prob": 0.1}
    segment = {"first": 0, "last": 12, "schedule": {"knots": [[0, 1e-3], [12, 0.0]]}, "evaluate_every": 6}
    recipe = RECIPE | segment | {"model": model}
    job = {"recipe": recipe | changes, "manifest": str(manifest), "devices": devices, "out": str(folder)}
    done = warm.run(library, program + STOP, json.dumps(job | {"stop_at": stop_at}))
    whole, stopped, again = warm.result(done)
    step = int(re.match(r"stopped by SIGTERM at step (\d+); the next snakemake resumes ", stopped[-1])[1])
    assert 1 <= step < 12 and f"resuming from the snapshot at step {step}" in again
    assert [line for line in whole if line.startswith("step 6  held-out loss")]
    names = sorted(path.name for path in (folder / "whole").iterdir())
    assert names == sorted(path.name for path in (folder / "parts").iterdir())
    for name in set(names) - {"timings.csv", "metrics.jsonl"}:
        assert (folder / "parts" / name).read_bytes() == (folder / "whole" / name).read_bytes(), name
    metrics = [json.loads(line) for line in (folder / "parts/metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in metrics if "held_out" in record] == [6, 12]


SEGMENT = """
from tpulm.training.segment import Segment

def train(files, *rest):
    tf_keras.backend.clear_session()  # which restarts the numbers in names, as a new process does
    train_segment(Trainer(strategy, config, recipe), (records, records), Segment(recipe, *files, *rest))
"""


def test_a_segment_that_is_stopped_goes_on_with_the_same_bytes(manifest, tmp_path):
    run_and_stop("tensorflow", JOB + SEGMENT, manifest, tmp_path, 1, 1, {})


KERNELS = """
from tpulm.training.tensorflow_runtime import start, tf
start(1, 1)
import numpy as np
from tpulm.training.tensorflow_model import cross_entropy

dice = np.random.default_rng(0)
logits = dice.standard_normal((3, 4, 50)).astype("f4") * 5
logits[0, 0, 7], logits[0, 1, 7], logits[0, 2] = 1e4, -1e4, 0
labels = dice.integers(0, 50, (3, 4))
labels[0, :2] = 7
logits[1, 0] = 8000 + 0.01 * dice.standard_normal(50)  # a small loss below large logits
logits[1, 0, labels[1, 0]] = 8012
weights = tf.constant(dice.standard_normal((3, 4)), "float32")

def differentiated(function):
    @tf.function(input_signature=[tf.TensorSpec([None, None, None], tf.float32)], autograph=False)
    def in_graph(logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = function(logits)
        return losses, tape.gradient(losses, logits, weights)

    return [array.numpy() for array in in_graph(tf.constant(logits))]

plain = differentiated(lambda logits: tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
for dtype in ("int32", "int64"):
    ours = differentiated(lambda logits: cross_entropy(logits, tf.constant(labels, dtype)))
    for one, other in zip(ours, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
"""


def test_cross_entropy_has_the_values_and_gradients_of_tensorflow():
    warm.run("tensorflow", KERNELS)
