"""The loss in chunks over a large vocabulary: it is the loss, and its gradients are; no device holds all logits."""

import json

import pytest
import warm

# Loss, gradients and sums of an evaluation, with the vocabulary in chunks and whole.
LOSSES = """
import json, sys
from tpulm.training import runtime
family, sizes, vocabulary, mesh, method, precision, chunk, *layout = json.loads(sys.argv[1])
runtime.start(1, 8, precision)
import jax, keras, keras_hub, numpy as np
from tpulm.models import sharding, token_losses
from tpulm.models.causal import construct
from tpulm.specs.training_step import CausalArchitecture
from tpulm.training.evaluation import make_eval_step
from tpulm.records.causal_batches import causal_lm
from tpulm.training.train_step import make_grad_fn

token_losses.CHUNK, token_losses.SMALLEST = chunk, chunk // 8
distribution = sharding.set_up(getattr(keras_hub.models, family), mesh, "the.run.mesh", None, *layout)
keras.utils.set_random_seed(0)
model = construct(CausalArchitecture(family, sizes, vocabulary))
if method == "lora":
    model.backbone.enable_lora(2)
for variable in model.weights:  # so that losses differ between tokens, and B of LoRA is not zero
    variable.assign(np.random.default_rng(1).standard_normal(variable.shape) * 0.3)
dice = np.random.default_rng(0)
batch = {"tokens": dice.integers(0, vocabulary, (4, 9)).astype("i4"), "mask": dice.random((4, 9)) < 0.9}
values = [[v.value for v in part] for part in (model.trainable_variables, model.non_trainable_variables)]

def measured(chunk):
    token_losses.CHUNK = chunk
    count = token_losses.head_of(model).chunks
    step = jax.jit(make_grad_fn(model, causal_lm))
    (loss, _), gradients = step(*values, [], batch, np.float32(1))
    sums = jax.jit(make_eval_step(model, causal_lm))(*values, batch)
    guess = jax.jit(token_losses.losses_and_correct, static_argnums=(0, 5))
    right = [np.asarray(guess(model, *values, inputs, labels, training)[1]) for training in (False, True)]
    held = step.lower(*values, [], batch, np.float32(1)).compile().memory_analysis().temp_size_in_bytes
    return count, held, np.mean(right), [np.asarray(array, np.float64) for array in (*sums, loss, *gradients)]

inputs, _, _ = causal_lm(batch)
labels = model.stateless_call(*values, inputs)[0].argmax(-1)
chunks, held, right, found = measured(token_losses.CHUNK)
try:
    token_losses.losses_and_correct(model, *values, inputs, labels, True, z_loss=1e-4)
    refused = False
except ValueError:
    refused = True
one, all_held, all_right, expected = measured(10**9)
assert one == 1 and len(found) == len(expected)
error = max(float(abs(a - b).max() / max(abs(b).max(), 1e-9)) for a, b in zip(found, expected))
print("RESULT" + json.dumps([chunks, error, float(min(right, all_right)), held / all_held, refused]))
"""
GEMMA = {
    "num_layers": 1, "num_query_heads": 4, "num_key_value_heads": 1, "hidden_dim": 8, "intermediate_dim": 16,
    "head_dim": 4,
}  # fmt: skip
LLAMA = {
    "num_layers": 1, "num_query_heads": 4, "num_key_value_heads": 4, "hidden_dim": 8, "intermediate_dim": 16,
    "tie_word_embeddings": False,
}  # fmt: skip
CHUNK = 4096  # that of the last case is the one of models/token_losses.py
CASES = {
    "Gemma 2, LoRA": (
        ("GemmaBackbone", GEMMA | {"final_logit_soft_cap": 2.0}, 16_384, (1, 1), "lora", "float32", CHUNK),
        4,
    ),
    "bfloat16": (("GemmaBackbone", GEMMA, 16_384, (1, 1), "full", "mixed_bfloat16", CHUNK), 4),
    "a head of its own": (("LlamaBackbone", LLAMA, 12_288, (1, 1), "full", "float32", CHUNK), 3),
    "a table over both axes of a mesh": (("GemmaBackbone", GEMMA, 32_768, (2, 4), "full", "float32", CHUNK), 2),
    "a capped table by its width, over what sees the same tokens": (
        (
            "GemmaBackbone",
            GEMMA | {"final_logit_soft_cap": 2.0},
            16_384,
            (2, 4),
            "full",
            "float32",
            CHUNK,
            {"token_embedding/embeddings": [None, "model"]},
        ),
        4,
    ),
    "more devices than records": (("GemmaBackbone", GEMMA, 16_384, (8, 1), "full", "float32", CHUNK), 4),
    "rows over what sees other tokens": (
        (
            "GemmaBackbone",
            GEMMA,
            16_384,
            (2, 4),
            "full",
            "float32",
            CHUNK,
            {"token_embedding/embeddings": ["batch", "model"]},
        ),
        1,
    ),
    "data parallel, LoRA": (("GemmaBackbone", GEMMA, 65_536, (4, 1), "lora", "float32", 32_768), 2),
}


@pytest.mark.parametrize("case", CASES)
def test_the_loss_in_chunks_is_the_loss(case):
    arguments, count = CASES[case]
    chunks, error, same, memory, refused = warm.result(warm.run("jax", LOSSES, json.dumps(arguments)))
    assert chunks == count and error < (0.03 if case == "bfloat16" else 1e-4)
    assert memory < 0.9 or count == 1
    assert refused == (count > 1)  # a z_loss, which nothing would have been made of
    assert same > (0.8 if case == "bfloat16" else 0.999)  # whole, bfloat16 logits have ties


# Of 64 ids, those of each 16 have the same logit.
TIES = """
import json
from tpulm.training import runtime
runtime.start(1)
import jax.numpy as jnp, numpy as np
from tpulm.models.token_losses import Head, chunked, first_likeliest

table, hidden = np.repeat(np.eye(4, dtype="f4"), 16, axis=0), np.eye(4, dtype="f4")[None]
labels = np.array([[0, 16, 32, 48]], "i4")
right = []
for dtype in ("float32", "bfloat16"):
    head = Head(None, False, True, dtype, None, 4, (None, None), None)
    logits = jnp.asarray(hidden @ table.T, dtype)
    for labelled in (labels, labels + 1, labels - 1):
        right.append(first_likeliest(logits) == labelled)
        right.append(chunked(jnp.asarray(hidden, dtype), jnp.asarray(table, dtype), jnp.asarray(labelled), head)[1])
print("RESULT" + json.dumps([[bool(one) for one in row.ravel()] for row in right]))
"""


def test_of_ties_the_first_is_predicted():
    """Four of a hundred rows of bfloat16 logits tie at the top: any of them would make a model seem better."""
    found = warm.result(warm.run("jax", TIES))
    assert found == [[label] * 4 for label in (True, True, False, False, False, False)] * 2


# Gradients by hidden states that are sure of their label, beside those of all logits at once, for several soft caps.
SURE = """
import json
from tpulm.training import runtime
runtime.start(1)
import jax, jax.numpy as jnp, numpy as np
from tpulm.models.token_losses import Head, chunked, token_losses

dice = np.random.default_rng(0)
table = jnp.asarray(dice.standard_normal((64, 32)), "bfloat16")
labels = jnp.asarray(dice.integers(0, 64, (4, 16)), "int32").at[0, 0].set(-1).at[0, 1].set(64)
near = table[jnp.clip(labels, 0, 63)].astype("float32")
found = []
for cap, scale in ((None, 0.1), (None, 0.3), (30.0, 0.3), (10.0, 0.3)):
    hidden = (near * scale).astype("bfloat16").astype("float32")

    def whole(hidden):
        logits = jnp.einsum("bth,vh->btv", hidden, table.astype("float32"), precision="highest")
        return token_losses(logits if cap is None else cap * jnp.tanh(logits / cap), labels)

    theirs = jax.grad(lambda hidden: whole(hidden).sum())(hidden)
    losses = whole(hidden)
    exact = losses > 1e-3  # below, those of all logits at once are differences of numbers near 1
    for trained in (False, True):
        head = Head(None, False, trained, "bfloat16", cap, 4, (None, None), None)
        ours = jax.grad(lambda hidden: chunked(hidden, table, labels, head)[0].sum())(hidden)
        error = jnp.linalg.norm(ours - theirs, axis=-1) / jnp.linalg.norm(theirs, axis=-1)
        found.append([float(losses[exact].min()), float(error[exact].max())])
print("RESULT" + json.dumps(found))
"""


def test_gradients_of_tokens_that_are_sure_are_no_rounding_errors():
    found = warm.result(warm.run("jax", SURE))
    assert min(loss for loss, _ in found) < 0.005
    assert max(error for _, error in found) < 0.02, found


COUNTS = """
import json, sys
from tpulm.models.token_losses import chunks_of
print("RESULT" + json.dumps([chunks_of(rows) for rows in json.loads(sys.argv[1])]))
"""


def test_how_a_vocabulary_is_cut():
    sizes = {2_048: 1, 32_000: 1, 50_257: 1, 64_000: 2, 128_256: 4, 256_000: 8, 262_144: 8, 2 * 65_537: 1}
    assert warm.result(warm.run("jax", COUNTS, json.dumps([*sizes]))) == [*sizes.values()]
