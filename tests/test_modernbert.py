"""ModernBERT on JAX: what it computes is what transformers computes, and each of its parts is what it says."""

import json

import numpy as np
import pytest
import warm
from openers import LOCKS
from tpulm.config.masked_sizes import KINDS, sizes_of, told
from tpulm.core.arrays import load_arrays, save_arrays
from tpulm.core.errors import UserError
from tpulm.models import modernbert
from tpulm.models.attention_cost import block_pairs

VOCABULARY, PAD, LENGTH = 64, 3, 24
# Layers 0 and 3 attend globally, 1, 2 and 4 two tokens to each side; the thetas are apart.
TINY = {
    "architecture": "modernbert", "hidden_size": 32, "num_hidden_layers": 5, "num_attention_heads": 4,
    "intermediate_size": 24, "max_position_embeddings": 64, "local_attention": 5, "global_rope_theta": 500.0,
    "local_rope_theta": 20.0, "initializer_range": 0.3,
}  # fmt: skip
SPECIAL = {"cls": 0, "sep": 1, "unk": 2, "pad": 3, "mask": 4}
MANIFEST = {"vocab_size": VOCABULARY, "sequence_length": LENGTH, "special_ids": SPECIAL}

# Common to the programs below: a model on JAX, its weights drawn anew, norms and bias too.
MODEL = """
import json, sys
from tpulm.training import runtime
model_config, *rest = json.loads(sys.argv[1])
runtime.start(1, 8)
import jax, numpy as np
from tpulm.config.masked_sizes import sizes_of
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

SAVE = MODEL + """
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
    from tpulm.models.transformers_config import model_config
    from tpulm.models.transformers_export import save_model

    folder = tmp_path_factory.mktemp("modernbert")
    warm.run("jax", SAVE, json.dumps([TINY, str(folder)]))
    config = model_config(TINY | told(TINY, "the.model"), MANIFEST, "the.model", "jax")
    config.architectures = [modernbert.PYTORCH_CLASS]
    (folder / "config.json").write_text(config.to_json_string())
    layers = config.num_hidden_layers
    save_model(str(folder / "model.safetensors"), modernbert.to_pytorch(load_arrays(folder / "ours"), layers, PAD))
    return folder


@pytest.mark.long
@pytest.mark.parametrize("which", LOCKS)
def test_transformers_computes_the_same_logits(openers, exported, which):
    found = openers.result(which, THEIRS, str(exported))
    assert found["class"] == "ModernBertForMaskedLM" and not found["problems"]
    assert found["largest"] > 1 and max(found["differences"].values()) < 1e-4
