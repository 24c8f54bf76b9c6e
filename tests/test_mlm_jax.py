"""The JAX trainer of masked models: the same model and the same training as the TensorFlow trainer's."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import warm
from test_mlm_tensorflow import MASKING, ONE_TYPE, OPTIMIZER, RECIPE, SIZES, records, run_and_stop, train
from tpulm.core.arrays import load_arrays, save_arrays
from tpulm.models.weight_names import from_transformers, to_transformers
from tpulm.records.masked_batches import mask_batch

PAD = 3
ON_JAX = {"microbatches": 1, "steps_per_execution": 1, "remat": False, "mesh": (-1, 1)}

# Common to the programs below: a step, described, and its records.
STEP = """
import json, sys
job = json.loads(sys.argv[1])
from functools import partial
import numpy as np
from tpulm.training import runtime
from tpulm.specs.training_step import TrainingStep
from tpulm.records.masked_batches import evaluation_batches, training_batch
from tpulm.records.reader import Records

recipe, records = job["recipe"], Records(job["manifest"], "train")
runtime.start(1, job["devices"], recipe["precision"])
from tpulm.models import masked_models
from tpulm.training.jax_run import build_run
vocabulary = {"size": records.manifest["vocab_size"], "pad": records.manifest["special_ids"]["pad"]}
known = {key: records.manifest[key] for key in ("sequence_length", "packing")} | {"vocabulary": vocabulary}
step = TrainingStep.of("mlm", "mlm.runs.x", recipe, **known)
"""

TRAIN = """
import jax
from tpulm.core.arrays import load_arrays, save_arrays
from tpulm.models.variables import assign
from tpulm.models.weight_names import from_transformers
from tpulm.training.history import History
from tpulm.training.jax_trainer import Trainer
from tpulm.records.masked_batches import masked_lm
run = build_run(step, masked_models)
if job["weights"]:
    variables = run.model.trainable_variables
    assign(variables, from_transformers(load_arrays(job["weights"]), variables, vocabulary["pad"]), "weights")
trainer, history = Trainer(run), History(0, job["steps"], 1, lambda message: None)
rates = np.full(job["steps"], 1e-3, "f4")
trainer.train(partial(training_batch, records, recipe), 0, rates, history)
save_arrays(f"{job['folder']}/weights", trainer.weights())
rows = [[float(value) for value in row.split(",")] for row in history.rows]
columns = {"losses": 1, "accuracies": 2, "norms": 4}
results = {key: [row[column] for row in rows] for key, column in columns.items()}
if job["measured"]:
    results["held_out"] = trainer.evaluate(evaluation_batches(records))
    arrays = masked_lm(training_batch(records, recipe, 0))[0]
    inputs = {name: jax.numpy.asarray(array) for name, array in arrays.items()}
    logits, _ = run.model.stateless_call(trainer.state.trainable, trainer.frozen, inputs, training=False)
    save_arrays(f"{job['folder']}/logits", {"logits": np.asarray(logits, np.float32)})
print("RESULT" + json.dumps(results))
"""


def train_jax(manifest, folder, steps, devices=1, mesh=(-1, 1), weights=None, measured=False, **recipe):
    """Train, as `train` does on TensorFlow; the weights at the end, and `measured` logits, are in the folder."""
    model = SIZES | {"architecture": "roberta", "hidden_dropout_prob": 0.0}
    folder.mkdir()
    job = {
        "recipe": RECIPE | ON_JAX | {"model": model, "mesh": mesh} | recipe, "manifest": str(manifest),
        "devices": devices, "weights": weights and str(weights), "folder": str(folder), "measured": measured,
        "steps": steps,
    }  # fmt: skip
    return warm.result(warm.run("jax", STEP + TRAIN, json.dumps(job)))


@pytest.fixture(scope="module")
def padded(tmp_path_factory):
    return records(tmp_path_factory.mktemp("padded"), "pad")


@pytest.fixture(scope="module")
def trained_by_both(padded, tmp_path_factory):
    """A folder, and what both trainers make of the same weights, which TensorFlow drew, on the same batches.

    In the folder there are those weights by PyTorch's names (`pytorch`).
    TensorFlow's model has the vector of a token type, keras-hub's has none: here it is left as it is.
    """
    from tpulm.models.masked_folders import pytorch_arrays

    folder = tmp_path_factory.mktemp("both")
    theirs = train(padded, folder / "tensorflow", 12, one_type=True, measured=True)
    save_arrays(folder / "pytorch", pytorch_arrays(load_arrays(folder / "tensorflow/start")))
    ours = train_jax(padded, folder / "jax", 12, weights=folder / "pytorch", measured=True)
    return folder, theirs, ours


def test_both_trainers_are_one(trained_by_both):
    """From the same weights, on the same batches, without dropout: the same losses, accuracies, gradients, always."""
    _, theirs, ours = trained_by_both
    for figure, most in (("losses", 1e-4), ("accuracies", 1e-4), ("norms", 1e-3)):
        np.testing.assert_allclose(ours[figure], theirs[figure], rtol=most)
    assert 0 < max(ours["accuracies"]) < 1
    assert ours["held_out"] == pytest.approx(theirs["held_out"], rel=1e-4)
    losses = ours["losses"]
    assert len(losses) == 12 and np.mean(losses[-4:]) < np.mean(losses[:4])


def test_both_measure_documents_apart(trained_by_both, tmp_path):
    """TensorFlow, which cannot be trained with segments, measures their documents one by one."""
    manifest = records(tmp_path, "segments")
    theirs = train(manifest, tmp_path / "tensorflow", 0, one_type=True, measured=True)
    ours = train_jax(manifest, tmp_path / "jax", 0, weights=trained_by_both[0] / "pytorch", measured=True)
    assert ours["held_out"] == pytest.approx(theirs["held_out"], rel=1e-4)


def test_meshes_parts_and_dispatches_do_not_matter(padded, trained_by_both, tmp_path):
    """Four devices as two replicas of two, in two parts, three steps at once: float32 in another order."""
    folder, _, one = trained_by_both
    changes = {"microbatches": 2, "steps_per_execution": 3, "remat": True, "measured": True}
    changes |= {"devices": 4, "mesh": (2, 2), "weights": folder / "pytorch"}
    many = train_jax(padded, tmp_path / "many", 12, **changes)
    np.testing.assert_allclose(many["losses"], one["losses"], rtol=1e-4)
    assert many["held_out"] == pytest.approx(one["held_out"], rel=1e-4)


LAYOUT = """
import json, sys
from tpulm.training import runtime
runtime.start(1, 8)
import jax, keras_hub
from tpulm.models import sharding
from tpulm.specs.training_step import TrainingStep
from tpulm.planning.abstract_run import AbstractRun
optimizer, masking = json.loads(sys.argv[1])
common = {"seed": 0, "sequence_length": 64, "batch_size": 8, "microbatches": 1, "steps_per_execution": 1}
common |= {"remat": False, "precision": "float32", "mesh": [1, 8], "optimizer": optimizer}
common |= {"method": "lora", "rank": 4}
large = {"architecture": "roberta", "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
runs = [("mlm", {"model": large, "masking": masking, "vocabulary": {"size": 50_264, "pad": 3}})]
base = {"architecture": "roberta"}  # twelve heads, which eight devices cannot share
runs += [("mlm", {"model": base, "masking": masking, "vocabulary": {"size": 50_264, "pad": 3}})]
modern = {"architecture": "modernbert"} | {key: large[key] for key in large if key != "architecture"}
runs += [("mlm", {"model": modern, "masking": masking, "vocabulary": {"size": 50_368, "pad": 3}})]
runs += [("finetune", {"base": {"preset": "gemma2_9b_en"}})]
for stage, recipe in runs:
    run = AbstractRun(TrainingStep.of(stage, "x", recipe | common), jax.devices())
    axes = {v.path: run.distribution.expected(v.path, v.shape) for v in run.model.variables if len(v.shape) > 1}
    whole = [path for path, spec in axes.items() if "model" not in spec]
    print("RESULT", json.dumps(sorted({path.split("/", 1)[-1] for path in whole})))
    print("UNDIVIDED", *sharding.replication_notes(run.distribution))
"""


def test_layout_maps_shard_what_they_should():
    """Every matrix is sharded over the axis model, but those named here, which are small or follow another."""
    done = warm.run("jax", LAYOUT, json.dumps([OPTIMIZER, MASKING]))
    whole = [json.loads(line.removeprefix("RESULT")) for line in done.stdout.splitlines() if "RESULT" in line]
    assert whole[0] == ["intermediate_dense/kernel", "position_embeddings/embeddings"]
    assert "attention.self/query/kernel" in whole[1]
    assert whole[2] == ["dense/kernel"]
    assert whole[3] == ["attention/query/lora_kernel_b", "attention/value/lora_kernel_b"]
    said = [line.removeprefix("UNDIVIDED").strip() for line in done.stdout.splitlines() if "UNDIVIDED" in line]
    assert said[0] == "" and re.match(r"\d+ variable.* of size 12 .* 8 devices", said[1])


LOGITS = """
import json, sys
import numpy as np
from pathlib import Path
from tpulm.training.tensorflow_model import load_model, predictions
from tpulm.records.masked_batches import training_batch
from tpulm.records.reader import Records
model = load_model(Path(sys.argv[1]))
batch = training_batch(Records(sys.argv[2], "train"), json.loads(sys.argv[3]), 0)
np.save(sys.argv[4], predictions(model, batch, training=False).numpy())
"""


def test_the_exported_folder_is_the_model(padded, trained_by_both, tmp_path):
    from tpulm.models.tensor_files import save_tensors
    from tpulm.models.transformers_config import model_config

    trained = trained_by_both[0] / "jax"
    weights = load_arrays(trained / "weights")
    arrays = to_transformers(weights, PAD)
    variables = [SimpleNamespace(path=path, shape=array.shape) for path, array in weights.items()]
    back = from_transformers(arrays, variables, PAD)
    assert all((back[name] == array).all() for name, array in weights.items())
    theirs = load_arrays(trained_by_both[0] / "pytorch")
    assert {name: array.shape for name, array in arrays.items()} == {n: a.shape for n, a in theirs.items()}

    folder = tmp_path / "model"
    folder.mkdir()
    model = SIZES | {"architecture": "roberta"} | ONE_TYPE
    config = model_config(model, json.loads(padded.read_text()), "mlm.runs.x.model")
    (folder / "config.json").write_text(config.to_json_string())
    save_tensors(folder / "model.safetensors", arrays)
    warm.run("tensorflow", LOGITS, str(folder), str(padded), json.dumps(RECIPE), str(tmp_path / "logits.npy"))
    ours = load_arrays(trained / "logits")["logits"]
    assert np.abs(np.load(tmp_path / "logits.npy") - ours).max() < 1e-4 < np.abs(ours).max()


SEGMENT = """
from tpulm.training.jax_trainer import train_segment
from tpulm.training.segment import Segment

def train(files, *rest):
    data = partial(training_batch, records, recipe), partial(evaluation_batches, records)
    train_segment(build_run(step, masked_models), data, Segment(recipe, *files, *rest))
"""


def test_a_segment_that_is_stopped_goes_on_with_the_same_bytes(padded, tmp_path):
    """The state is sharded over devices, several steps at once."""
    changes = ON_JAX | {"mesh": (2, 2), "steps_per_execution": 3}
    run_and_stop("jax", STEP + SEGMENT, padded, tmp_path, 3, 4, changes)


DROPOUT = """
from tpulm.training import runtime
runtime.start(1)
import jax, jax.numpy as jnp, keras, numpy as np
from jax.extend.random import threefry_2x32
from tpulm.models.dropout import Dropout, hashed, kept

key, counts = jnp.array([7, 2**31 + 5], "uint32"), jnp.arange(1000, dtype="uint32") * 12345
words = jnp.concatenate(hashed(key, counts[:500], counts[500:]))
np.testing.assert_array_equal(words, threefry_2x32(key, counts))
inputs = np.random.default_rng(0).standard_normal((64, 126)).astype("f4")
np.testing.assert_array_equal(kept(key, (64, 126), 9), kept(key, (64, 128), 9)[:, :126])

layer = Dropout(0.25, seed=5)
np.testing.assert_array_equal(layer(inputs, training=False), inputs)
masks = []
for _ in range(2):
    out, pull = jax.vjp(lambda x: layer(x, training=True), inputs)
    masks.append(np.asarray(out) != 0)
    np.testing.assert_allclose(out, np.where(masks[-1], inputs / 0.75, 0), rtol=1e-6)
    np.testing.assert_allclose(pull(np.ones_like(inputs))[0], np.where(masks[-1], 1 / 0.75, 0), rtol=1e-6)
    assert abs(masks[-1].mean() - 0.75) < 0.02, masks[-1].mean()
    assert abs(np.corrcoef(masks[-1][:, :-1].ravel(), masks[-1][:, 1:].ravel())[0, 1]) < 0.05
assert abs(np.corrcoef(*(mask.ravel() for mask in masks))[0, 1]) < 0.05
"""


def test_dropout_scales_what_it_keeps():
    """Its random numbers are those of JAX's hash; without training, nothing happens."""
    warm.run("jax", DROPOUT)


def test_rows_of_a_batch_are_masked_as_in_the_whole():
    ids = np.random.default_rng(0).integers(5, 60, (12, 40))
    arguments = ("masks", 1, 2), MASKING, 4, [0, 1, 2, 3, 4], 60
    whole = mask_batch(ids, *arguments)
    part = mask_batch(ids[4:8], *arguments, slice(4, 8), 12)
    assert all((part[name] == array[4:8]).all() for name, array in whole.items())


PROFILED = """
import json, sys
from pathlib import Path
import jax, jax.numpy as jnp
from tpulm.training.profiling import Profile, called

def loop(x):
    return jax.lax.fori_loop(0, 20, lambda i, x: jnp.tanh(x @ x) / 9, x)

function, x, said = jax.jit(loop), jnp.ones((200, 200)), []
profile = Profile.of({"profile": "2-4"}, sys.argv[1] + "/00000010.log")
for step in range(1, 11):
    y = function(x)
    profile.at(step, y.block_until_ready, said.append)
profile.end(10, said.append)
on_tpu = called("%fusion.3 = bf16[8,128]{1,0} fusion(%a)", "jit(step)/jvp(gelu)/mul:")
print("RESULT" + json.dumps([said, profile.summary, on_tpu]))
"""


def test_a_profile_names_the_costliest_operations(tmp_path):
    [said], found, on_tpu = warm.result(warm.run("jax", PROFILED, str(tmp_path)))
    assert on_tpu == "fusion.3 (jvp(gelu)/mul)"
    assert found["steps"] == [3, 4] and f"{tmp_path}/profile" in said
    assert all(f"{name} {share:.1%}" in said for name, share in found["operations"])
    shares = [share for _, share in found["operations"]]
    assert shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 1.005
    assert len(list(tmp_path.glob("profile/plugins/profile/*/*.xplane.pb"))) == 1  # where TensorBoard looks
