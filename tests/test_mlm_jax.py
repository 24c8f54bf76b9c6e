"""The JAX trainer of masked models: the same model and the same training as the TensorFlow trainer's."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT
from lib import roberta
from lib.arrays import load_arrays, save_arrays
from lib.errors import UserError
from lib.masking import mask_batch
from lib.roberta_sizes import SIZES, sizes_of
from test_mlm_tensorflow import LENGTH, ONE_TYPE, manifest, train  # noqa: F401 (a fixture)

LAYERS, HEADS, PAD = 2, 2, 3

TRAIN = """
import json, sys
sys.path.insert(0, sys.argv[1])
job = json.loads(sys.argv[2])
from functools import partial
import numpy as np
from lib import keras_jax, roberta
from lib.arrays import load_arrays, save_arrays
from lib.history import History
from lib.mlm_data import evaluation_batches, training_batch
from lib.tfrecord import Records

keras_jax.start(1, job["devices"], job["recipe"]["precision"])
import jax, keras
from lib import sharding
from lib.causal_model import assign, make_optimizer
from lib.jax_training import Trainer, masked
recipe, records = job["recipe"], Records(job["manifest"], "train")
distribution = sharding.set_up(roberta.backbone_class(), job["mesh"], "mlm.runs.x.mesh")
keras.utils.set_random_seed(3)
model = roberta.build(job["sizes"], records.manifest["vocab_size"], records.manifest["special_ids"]["pad"])
roberta.draw_weights(model, 0.02, 3)
sharding.check(model.variables, distribution)
if job["weights"]:
    assign(model.trainable_variables, load_arrays(job["weights"]), "weights")
trainer = Trainer(model, make_optimizer(recipe["optimizer"]), distribution, masked, recipe)
if job["previous"]:
    trainer.load(*(load_arrays(path) for path in job["previous"]), "previous")
batch = training_batch(records, recipe, 0)
inputs = {name: jax.numpy.asarray(array) for name, array in masked(batch)[0].items()}
logits = np.asarray(model(inputs, training=False), np.float32)
history = History(recipe["first"], recipe["last"], 1, lambda message: None)
trainer.train(partial(training_batch, records, recipe), np.full(recipe["last"] - recipe["first"], 1e-3, "f4"), history)
save_arrays(job["out"] + "/weights", trainer.weights())
save_arrays(job["out"] + "/optimizer", trainer.optimizer())
save_arrays(job["out"] + "/logits", {"logits": logits})
losses = [float(row.split(",")[1]) for row in history.rows]
print("RESULT" + json.dumps({"losses": losses, "held_out": trainer.evaluate(evaluation_batches(records))}))
"""


def train_jax(manifest, folder, span, devices=1, mesh=(-1, 1), weights=None, previous=None, dropout=0.0, **recipe):  # noqa: F811
    folder.mkdir()
    optimizer = {"weight_decay": 0.01, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, "clip_norm": 1.0}
    base = {
        "first": span[0], "last": span[1], "batch_size": 4, "seed": 3, "precision": "float32", "optimizer": optimizer,
        "masking": {"rate": 0.15, "mask": 0.8, "random": 0.1},
        "accumulate": 1, "steps_per_dispatch": 1, "rematerialise": False,
    }  # fmt: skip
    sizes = SIZES | {
        "hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 32,
        "max_position_embeddings": LENGTH + 4, "hidden_dropout_prob": dropout,
    }  # fmt: skip
    job = {
        "recipe": base | recipe, "sizes": sizes, "manifest": str(manifest), "devices": devices, "mesh": mesh,
        "weights": weights and str(weights), "out": str(folder),
        "previous": previous and [str(previous / part) for part in ("weights", "optimizer")],
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, str(ROOT / "scripts"), json.dumps(job)],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.split("RESULT")[1])


def keras_weights(tensorflow, target):
    """Write TensorFlow's weights as those of the Keras model; return them by PyTorch's names."""
    from lib.mlm_export import pytorch_arrays

    arrays = pytorch_arrays(load_arrays(tensorflow))
    save_arrays(target, roberta.from_pytorch(arrays, LAYERS, HEADS, PAD))
    return arrays


@pytest.fixture(scope="module")
def start(manifest, tmp_path_factory):  # noqa: F811
    """Weights that TensorFlow made: its own, ours, PyTorch's."""
    folder = tmp_path_factory.mktemp("start")
    train(manifest, folder / "tensorflow", (0, 0), one_type=True)
    arrays = keras_weights(folder / "tensorflow/weights", folder / "weights")
    save_arrays(folder / "pytorch", arrays)
    return folder


def test_both_trainers_are_one(manifest, start, tmp_path):  # noqa: F811
    """From the same weights, on the same batches, without dropout: the same losses, step by step.

    TensorFlow's model has the vector of a token type, keras-hub's has none: here it is left as it is.
    """
    theirs = train(manifest, tmp_path / "tensorflow", (0, 20), one_type=True)
    ours = train_jax(manifest, tmp_path / "jax", (0, 20), weights=start / "weights")
    np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=1e-4)
    assert ours["held_out"] == pytest.approx(theirs["held_out"], rel=1e-4)
    assert ours["losses"][-1] < ours["losses"][0]


LAYOUT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from lib import keras_jax
keras_jax.start(1, 8)
import jax, keras_hub
from lib import sharding
from lib.abstract import Run
common = {"seed": 0, "sequence_length": 64, "batch_size": 8, "accumulate": 1, "steps_per_dispatch": 1}
common |= {"rematerialise": False, "optimizer": json.loads(sys.argv[2]), "method": "lora", "rank": 4}
masking = {"rate": 0.15, "mask": 0.8, "random": 0.1}
large = {"architecture": "roberta", "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
runs = [("mlm", {"model": large, "masking": masking, "vocabulary": {"size": 50_264, "pad": 3}})]
base = {"architecture": "roberta"}  # twelve heads, which eight devices cannot share
runs += [("mlm", {"model": base, "masking": masking, "vocabulary": {"size": 50_264, "pad": 3}})]
runs += [("lora", {"base": {"preset": preset}}) for preset in ("gemma_7b_en", "gemma2_9b_en", "gemma3_12b_text")]
for stage, recipe in runs:
    run = Run(stage, recipe | common | {"mesh": [1, 8]}, jax.devices(), "x")
    axes = {v.path: run.distribution.expected(v.path, v.shape) for v in run.model.variables if len(v.shape) > 1}
    whole = [path for path, spec in axes.items() if "model" not in spec]
    print("RESULT", json.dumps(sorted({path.split("/", 1)[-1] for path in whole})))
    print("UNDIVIDED", *sharding.undivided(run.distribution))
"""


def test_layout_maps_shard_what_they_should():
    """Every matrix lies over the axis model, but those named here, which are small or follow another."""
    optimizer = {"weight_decay": 0.0, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, "clip_norm": None}
    done = subprocess.run(
        [sys.executable, "-c", LAYOUT, str(ROOT / "scripts"), json.dumps(optimizer)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    whole = [json.loads(line.removeprefix("RESULT")) for line in done.stdout.splitlines() if "RESULT" in line]
    assert whole[0] == ["intermediate_dense/kernel", "position_embedding/embeddings"]
    assert "self_attention_layer/query/kernel" in whole[1]
    for family in whole[2:]:
        assert family == ["attention/query/lora_kernel_b", "attention/value/lora_kernel_b"]
    said = [line.removeprefix("UNDIVIDED").strip() for line in done.stdout.splitlines() if "UNDIVIDED" in line]
    assert said[0] == "" and re.match(
        r"\d+ variable\(s\) are not cut as the layout map says; the first, \S+: dimension \d of size 12 cannot be "
        r'divided over 8 devices of the axis "model"; it is whole on each$',
        said[1],
    )


LOGITS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from pathlib import Path
from lib import mlm_tensorflow as mlm
from lib.mlm_data import training_batch
from lib.tfrecord import Records
model = mlm.load_model(Path(sys.argv[2]))
batch = training_batch(Records(sys.argv[3], "train"), json.loads(sys.argv[4]), 0)
print(type(model).__name__)
np.save(sys.argv[5], mlm.predictions(model, batch, training=False).numpy())
"""


def test_the_exported_folder_is_the_model(manifest, start, tmp_path):  # noqa: F811
    """What we trained gives the same logits in transformers, within 1e-4."""
    from lib.mlm_config import model_config
    from lib.mlm_export import save_model

    train_jax(manifest, tmp_path / "jax", (0, 3))
    arrays = roberta.to_pytorch(load_arrays(tmp_path / "jax/weights"), LAYERS, PAD)
    back = roberta.from_pytorch(arrays, LAYERS, HEADS, PAD)
    assert all((back[name] == array).all() for name, array in load_arrays(tmp_path / "jax/weights").items())
    theirs = load_arrays(start / "pytorch")
    assert {name: array.shape for name, array in arrays.items()} == {n: a.shape for n, a in theirs.items()}

    folder = tmp_path / "model"
    folder.mkdir()
    sizes = {"hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 32}
    model = {"architecture": "roberta", "max_position_embeddings": LENGTH + 4} | sizes | ONE_TYPE
    config = model_config(model, json.loads(manifest.read_text()), "mlm.runs.x.model")
    (folder / "config.json").write_text(config.to_json_string())
    save_model(folder / "model.safetensors", arrays)
    recipe = {"batch_size": 4, "seed": 3, "masking": {"rate": 0.15, "mask": 0.8, "random": 0.1}}
    # The logits that the trainer saw before its first step belong to the weights it began with.
    train_jax(manifest, tmp_path / "again", (0, 0), weights=tmp_path / "jax/weights")
    arguments = [str(ROOT / "scripts"), str(folder), str(manifest), json.dumps(recipe), str(tmp_path / "logits.npy")]
    subprocess.run([sys.executable, "-c", LOGITS, *arguments], check=True, capture_output=True)
    ours = load_arrays(tmp_path / "again/logits")["logits"]
    assert np.abs(np.load(tmp_path / "logits.npy") - ours).max() < 1e-4 < np.abs(ours).max()


def test_two_segments_give_the_bytes_of_one_dropout_included(manifest, tmp_path):  # noqa: F811
    whole = train_jax(manifest, tmp_path / "whole", (0, 6), dropout=0.1)
    first = train_jax(manifest, tmp_path / "first", (0, 3), dropout=0.1)
    second = train_jax(manifest, tmp_path / "second", (3, 6), dropout=0.1, previous=tmp_path / "first")
    assert first["losses"] + second["losses"] == whole["losses"]
    for part in ("weights", "optimizer"):
        assert (tmp_path / "second" / part).read_bytes() == (tmp_path / "whole" / part).read_bytes()


DROPOUT = """
import sys
sys.path.insert(0, sys.argv[1])
from lib import keras_jax
keras_jax.start(1)
import jax, keras, numpy as np
from lib.dropout import PLAIN, draw_masks_once, dropped

inputs = np.random.default_rng(0).standard_normal((64, 128)).astype("f4")

def both(call, shape, training):
    layer = keras.layers.Dropout(0.25, noise_shape=shape, seed=5)
    layer.build(inputs.shape)
    # Twice: the second mask is another one.
    function = lambda x: (call(layer, x, training=training) * x).sum() + call(layer, x, training=training).sum()
    return [np.asarray(array) for array in (call(layer, inputs, training=training), jax.grad(function)(inputs))]

for shape in (None, (64, 1)):
    for training in (True, False):
        for ours, theirs in zip(both(dropped, shape, training), both(PLAIN, shape, training), strict=True):
            np.testing.assert_array_equal(ours, theirs)
draw_masks_once()
layer = keras.layers.Dropout(0.25, seed=5)
kept = np.asarray(layer(inputs, training=True)) != 0
assert abs(kept.mean() - 0.75) < 0.02, kept.mean()
text = jax.jit(lambda x: layer(x, training=True)).lower(inputs).as_text()
assert text.count("optimization_barrier") == 1, text
"""


def test_dropout_is_that_of_keras_with_the_mask_as_an_array():
    scripts = str(ROOT / "scripts")
    done = subprocess.run([sys.executable, "-c", DROPOUT, scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_meshes_parts_and_dispatches_do_not_matter(manifest, tmp_path):  # noqa: F811
    """Eight devices as two replicas of four, in two parts, three steps at once: float32 in another order."""
    one = train_jax(manifest, tmp_path / "one", (0, 6), batch_size=8)
    changes = {"accumulate": 2, "steps_per_dispatch": 3, "rematerialise": True}
    many = train_jax(manifest, tmp_path / "many", (0, 6), devices=4, mesh=(2, 2), batch_size=8, **changes)
    np.testing.assert_allclose(many["losses"], one["losses"], rtol=1e-5)
    assert many["held_out"] == pytest.approx(one["held_out"], rel=1e-4)


def test_rows_of_a_batch_are_masked_as_in_the_whole():
    ids = np.random.default_rng(0).integers(5, 60, (12, 40))
    arguments = ((1, 2, 3), {"rate": 0.15, "mask": 0.8, "random": 0.1}, 4, [0, 1, 2, 3, 4], 60)
    whole = mask_batch(ids, *arguments)
    part = mask_batch(ids[4:8], *arguments, slice(4, 8), 12)
    assert all((part[name] == array[4:8]).all() for name, array in whole.items())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"architecture": "bert"}, "m.architecture is bert; allowed with backend: jax: roberta."),
        ({"layer_norm_eps": 1e-12}, "m.layer_norm_eps is 1e-12; allowed with backend: jax: 1e-05."),
        (
            {"attention_probs_dropout_prob": 0.2},
            "m.attention_probs_dropout_prob is 0.2; allowed with backend: jax: 0.1.",
        ),
        ({"hidden_size": 770}, "m.hidden_size is 770; allowed: a multiple of num_attention_heads, 12."),
        ({"num_hidden_layers": 0}, "m.num_hidden_layers is 0; allowed: a whole number, 1 or more."),
    ],
)
def test_models_that_keras_hub_does_not_have(model, message):
    with pytest.raises(UserError) as error:
        sizes_of({"architecture": "roberta"} | model, "m")
    assert str(error.value) == message
