"""ModernBERT on JAX: what it computes is what transformers computes, and each of its parts is what it says."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy
import warm
from openers import LOCKS
from test_mlm_jax import train_jax
from test_mlm_tensorflow import MASKING, manifest  # noqa: F401 (a fixture)
from tpulm.config.model_sizes import masked_size
from tpulm.core.arrays import load_arrays
from tpulm.core.errors import UserError
from tpulm.models import modernbert
from tpulm.models.weight_names import from_transformers, to_transformers
from tpulm.specs.masked_sizes import SIZE_TABLES, sizes_of

VOCABULARY, PAD, LENGTH = 64, 3, 24
# Layers 0 and 3 attend globally, 1 and 2 two tokens to each side; the thetas are apart.
TINY = {
    "architecture": "modernbert", "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 24, "max_position_embeddings": 64, "local_attention": 5, "global_rope_theta": 500.0,
    "local_rope_theta": 20.0, "initializer_range": 0.3,
}  # fmt: skip
TWO_LAYERS = TINY | {"num_hidden_layers": 2}  # one of each kind, for what is trained, and so compiled
SPECIAL = {"cls": 0, "sep": 1, "unk": 2, "pad": 3, "mask": 4}
MANIFEST = {"vocab_size": VOCABULARY, "sequence_length": LENGTH, "special_ids": SPECIAL}

# Common to the programs below: a model on JAX, its weights drawn anew, norms and bias too.
MODEL = """
import json, sys
from tpulm.training import runtime
model_config, *rest = json.loads(sys.argv[1])
runtime.start(1)
import jax, numpy as np
from tpulm.specs.masked_sizes import sizes_of
from tpulm.models import modernbert

def made():
    model = modernbert.build(sizes_of(model_config, "the.model"), 64, 3)
    modernbert.draw_weights(model, model_config["initializer_range"], 0)
    dice = np.random.default_rng(0)
    for variable in model.trainable_variables:
        if variable.path.endswith(("gamma", "bias")):
            variable.assign(variable + dice.normal(0, 0.2, variable.shape).astype("f4"))
    return model

def logits(model, ids, mask):
    inputs = {"token_ids": ids, "padding_mask": mask}
    inputs["mask_positions"] = np.broadcast_to(np.arange(ids.shape[1], dtype="int32"), ids.shape)
    values = [[v.value for v in part] for part in (model.trainable_variables, model.non_trainable_variables)]
    call = jax.jit(lambda inputs: model.stateless_call(*values, inputs, training=False)[0])
    return np.asarray(call(inputs))
"""

SAVE = """
from tpulm.core.arrays import save_arrays
[folder] = rest
model = made()
ids = np.random.default_rng(1).integers(5, 64, (2, 24)).astype("int32")
mask = np.ones_like(ids)
ids[1, 17:], mask[1, 17:] = 3, 0
save_arrays(f"{folder}/ours", {v.path: np.asarray(v) for v in model.trainable_variables})
save_arrays(f"{folder}/asked", {"ids": ids, "mask": mask, "logits": logits(model, ids, mask)})
print("RESULT{}")
"""

THEIRS = """
import json, sys
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM
folder = json.loads(sys.argv[1])
asked = load_file(f"{folder}/asked")
differences = {}
for attention in ("eager", "sdpa"):
    model, info = AutoModelForMaskedLM.from_pretrained(
        folder, attn_implementation=attention, output_loading_info=True, dtype=torch.float32)
    problems = sorted(map(str, [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]))
    with torch.no_grad():
        logits = model.eval()(input_ids=asked["ids"].long(), attention_mask=asked["mask"].long()).logits
    kept = asked["mask"] > 0
    differences[attention] = float((logits - asked["logits"])[kept].abs().max())
print("RESULT" + json.dumps({"class": type(model).__name__, "problems": problems, "differences": differences,
                             "largest": float(asked["logits"].abs().max())}))
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder for transformers, made as the rule's script makes it, with what our model answers to `asked`."""
    from tpulm.models.tensor_files import save_tensors
    from tpulm.models.transformers_config import model_config

    folder = tmp_path_factory.mktemp("modernbert")
    warm.run("jax", MODEL + SAVE, json.dumps([TINY, str(folder)]))
    config = model_config(TINY, MANIFEST, "the.model", "jax")
    config.architectures = [modernbert.PYTORCH_CLASS]
    (folder / "config.json").write_text(config.to_json_string())
    save_tensors(str(folder / "model.safetensors"), to_transformers(load_arrays(folder / "ours"), PAD))
    return folder


@pytest.mark.long
@pytest.mark.parametrize("which", LOCKS)
def test_transformers_computes_the_same_logits(openers, exported, which):
    found = openers.result(which, THEIRS, str(exported))
    assert found["class"] == "ModernBertForMaskedLM" and not found["problems"]
    assert found["largest"] > 1 and max(found["differences"].values()) < 1e-4


def variables_of(arrays):
    return [SimpleNamespace(path=path, shape=array.shape) for path, array in arrays.items()]


def test_what_is_exported_is_opened_again(exported):
    arrays = load_arrays(exported / "ours")
    back = from_transformers(load_arrays(exported / "model.safetensors"), variables_of(arrays), PAD)
    assert set(back) == set(arrays) and all((back[name] == array).all() for name, array in arrays.items())
    found = warm.result(warm.run("jax", MODEL + OPENED, json.dumps([TINY, str(exported)])))
    assert found["difference"] < 1e-5 and found["most"] == 64


def test_a_run_starts_from_what_is_exported(exported, tmp_path):
    from tpulm.models.masked_folders import save_folder
    from tpulm.models.masked_models import folder_weights, init_recipe
    from tpulm.models.transformers_config import init_config

    config, weights = str(tmp_path / "config.json"), str(tmp_path / "model.safetensors")
    save_folder(exported, "mlm.runs.x", "jax", config, weights)
    found = init_recipe(config, MANIFEST | {"sequence_length": 64}, "mlm.runs.x")
    assert sizes_of(found["model"], "m") == sizes_of(TINY, "m") and found["vocabulary"] == {"size": 64, "pad": PAD}
    assert init_config(config, MANIFEST, "mlm.runs.x", "jax").model_type == "modernbert"
    variables = variables_of(load_arrays(exported / "ours"))
    assert set(folder_weights(tmp_path, variables)) == {variable.path for variable in variables}
    # No position is lost to padding, as there would be in a RoBERTa.
    with pytest.raises(UserError, match="^mlm.runs.x.init has 64 positions; .*65"):
        init_recipe(config, MANIFEST | {"sequence_length": 65}, "mlm.runs.x")
    with pytest.raises(UserError, match="^mlm.runs.x.*TensorFlow"):
        save_folder(exported, "mlm.runs.x", "tensorflow", config, weights)
    with pytest.raises(UserError, match="head.norm.weight"):
        arrays = load_arrays(exported / "model.safetensors")
        from_transformers({name: arrays[name] for name in arrays if name != "head.norm.weight"}, variables, PAD)
    cut = {name: array[:-1] if name.endswith("Wqkv.weight") else array for name, array in arrays.items()}
    safetensors.numpy.save_file(cut, weights)
    with pytest.raises(UserError, match=f"^{tmp_path}: model.safetensors "):
        folder_weights(tmp_path, variables)


OPENED = """
from pathlib import Path
from tpulm.core.arrays import load_arrays
from tpulm.models.loading import load_masked
folder = Path(rest[0])
model, _ = load_masked(folder, "the.run", {"mesh": [1, 1]})
asked = load_arrays(folder / "asked")
kept = asked["mask"] > 0
found = logits(model, asked["ids"], asked["mask"])
most = model.backbone.max_sequence_length
print("RESULT" + json.dumps({"difference": float(abs(found - asked["logits"])[kept].max()), "most": most}))
"""

# Which tokens of a record reach which, through a local and a global layer; and a rotation by its formula.
LAYERS = """
model = made()
dice = np.random.default_rng(2)
x = dice.standard_normal((1, 24, 32)).astype("f4")
segments = np.repeat(np.array([1, 2, 0], "int32"), (9, 11, 4))[None]
reached = {}
for number in (0, 1):
    block = model.backbone.transformer_layers[number]
    slopes_of = jax.jit(jax.jacrev(lambda x, of: block(x, of).sum(-1)[0]))
    for name, of in (("alone", np.ones_like(segments)), ("apart", segments)):
        slopes = slopes_of(x, of)
        reached[f"{number} {name}"] = (np.abs(slopes[:, 0]).sum(-1) > 0).tolist()
rotated = {}
for number, theta in ((0, 500.0), (1, 20.0)):
    block, places = model.backbone.transformer_layers[number], np.array([[0, 1, 2, 0, 1, 63]])
    query = dice.standard_normal((1, 6, 4, 8)).astype("f4")
    angles = places[..., None, None] * theta ** (-2 * np.arange(4) / 8)
    turned = (query[..., :4] + 1j * query[..., 4:]) * np.exp(1j * angles)
    expected = np.concatenate([turned.real, turned.imag], -1)
    rotated[theta] = float(abs(np.asarray(block.rope(query, positions=places)) - expected).max())
print("RESULT" + json.dumps([reached, list(rotated.values())]))
"""


def test_layers_attend_locally_or_globally_within_a_document_at_rotated_positions():
    reached, rotated = warm.result(warm.run("jax", MODEL + LAYERS, json.dumps([TWO_LAYERS])))
    index = np.arange(24)
    near = abs(index[:, None] - index) <= TINY["local_attention"] // 2
    document = np.repeat([1, 2, 0], (9, 11, 4))
    same = document[:, None] == document
    assert np.array(reached["0 alone"]).all() and (np.array(reached["1 alone"]) == near).all()
    assert (np.array(reached["0 apart"]) == same).all() and (np.array(reached["1 apart"]) == (near & same)).all()
    assert max(rotated) < 1e-5


# A document in a record against the same alone; the kernel, run by the interpreter, against plain attention; z-loss.
SAME = """
from tpulm.models.attention import Kernel, fuse, needs_of
from tpulm.models.token_losses import token_losses
from tpulm.records.masked_batches import masked_lm
from tpulm.training.train_step import make_grad_fn

model, dice = made(), np.random.default_rng(3)
counts = (30, 50, 41)
segments = np.repeat(np.array([1, 2, 3, 0], "int32"), (*counts, 7))
ids = np.zeros((4, 128), "int32")
ids[0] = dice.integers(5, 64, 128)
for row, (start, count) in enumerate(zip((0, 30, 80), counts), 1):
    ids[row, :count] = ids[0, start : start + count]
segments = np.stack([segments, *(np.arange(128) < count for count in counts)]).astype("int32")
plain = logits(model, ids, segments)
alone = np.concatenate([plain[row, :count] for row, count in enumerate(counts, 1)])
apart = float(abs(plain[0, : len(alone)] - alone).max())

batch = {"input_ids": ids, "segment_ids": segments, "labels": ids[:, :40], "weights": np.ones((4, 40), "f4")}
batch["positions"] = np.tile(np.arange(40, dtype="int32"), (4, 1))
values = [[v.value for v in part] for part in (model.trainable_variables, model.non_trainable_variables)]

def by_formula(trainable):
    inputs, labels, weights = masked_lm(batch)
    scores, _ = model.stateless_call(trainable, values[1], inputs, training=True)
    losses, normalizer = token_losses(scores, labels), jax.numpy.log(jax.numpy.exp(scores).sum(-1))
    return (losses + 0.01 * normalizer**2).sum() / 160, losses.sum() / 160

(loss, _), gradients = jax.jit(make_grad_fn(model, masked_lm, 0.01))(*values, [], batch, np.float32(160))
(whole, wanted), formula = jax.jit(jax.value_and_grad(by_formula, has_aux=True))(values[0])
off = max(float(abs(a - b).max() / max(abs(b).max(), 1e-3)) for a, b in zip(gradients, formula, strict=True))
z_loss = {"loss": float(abs(loss - wanted)), "gradients": off, "penalty": float(whole - wanted)}
needs = needs_of(model)._asdict()
fuse(model, Kernel("splash", True, interpret=True))
text = str(jax.make_jaxpr(lambda inputs: model(inputs))(masked_lm(batch)[0]))
fused = float(abs(logits(model, ids, segments) - plain)[segments > 0].max())
kernel = {"logits": fused, "calls": text.count("pallas_call")}
seen = [model.backbone.tokens_seen(length) for length in (4, 100)]
print("RESULT" + json.dumps({"apart": apart, "z_loss": z_loss, "kernel": kernel, "needs": needs, "seen": seen}))
"""


def test_documents_kernels_and_z_loss_are_as_they_are_defined():
    """tests/test_attention.py has the gradients of kernels."""
    found = warm.result(warm.run("jax", MODEL + SAME, json.dumps([TWO_LAYERS])))
    z_loss, kernel = found["z_loss"], found["kernel"]
    assert found["apart"] < 1e-4
    assert z_loss["loss"] < 1e-6 and z_loss["gradients"] < 1e-4 < 0.01 < z_loss["penalty"]
    assert kernel["logits"] < 1e-4 and kernel["calls"] >= 2  # global and local
    assert found["needs"] == {"dtype": "float32", "head_dim": 8, "dropout": 0.0, "soft_cap": None, "obstacle": None}
    assert found["seen"] == [4 + 4, 100 + 5]


@pytest.mark.long  # tests/test_mlm_jax.py has a RoBERTa, and how this one is sharded
def test_a_mesh_trains_as_one_device(manifest, tmp_path):  # noqa: F811
    masking = MASKING | {"mlm_probability": 0.3}
    more = {"model": TWO_LAYERS | {"initializer_range": 0.02}, "masking": masking, "z_loss": 1e-4, "batch_size": 8}
    one = train_jax(manifest, tmp_path / "one", 3, **more)
    many = train_jax(manifest, tmp_path / "many", 3, devices=4, mesh=(2, 2), remat=True, **more)
    np.testing.assert_allclose(one["losses"], many["losses"], rtol=1e-4)
    ours, theirs = (load_arrays(tmp_path / name / "weights") for name in ("one", "many"))
    assert set(ours) == set(theirs) and max(abs(ours[name] - theirs[name]).max() for name in ours) < 1e-3


@pytest.mark.unit
def test_sizes_are_those_of_modernbert_base():
    assert masked_size({"architecture": "modernbert"}, 50_368).parameters == 149_655_232  # as published
    assert sizes_of({"architecture": "modernbert"}, "the.model") == SIZE_TABLES["modernbert"].sizes
    theta = sizes_of({"architecture": "modernbert", "local_rope_theta": 7}, "the.model")["local_rope_theta"]
    assert theta == 7 and type(theta) is float
    with pytest.raises(UserError, match="^the.model .*hidden_act"):
        sizes_of({"architecture": "modernbert", "hidden_act": "gelu"}, "the.model")
