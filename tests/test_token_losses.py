"""The loss in chunks over a large vocabulary: it is the loss, and its gradients are; no device holds all logits."""

import json

import warm

# Losses with and without gradients, with the vocabulary in chunks and whole: one program for each.
LOSSES = """
import json, sys
from tpulm.training import runtime
runtime.start(1, 8)
import jax, keras, keras_hub, numpy as np
from tpulm.models import sharding, token_losses
from tpulm.models.causal import construct
from tpulm.specs.training_step import CausalArchitecture

def measured(model, values, inputs, labels, weights, chunk):
    token_losses.CHUNK = chunk

    def total(trainable, frozen, inputs, labels, weights):
        losses, correct, _ = token_losses.losses_and_correct(model, trainable, frozen, inputs, labels, True)
        return (losses * weights).sum(), (losses, correct)

    def figures(trainable, *rest):
        (_, trained), gradients = jax.value_and_grad(total, has_aux=True)(trainable, *rest)
        losses, correct, _ = token_losses.losses_and_correct(model, trainable, *rest[:3], False)
        return (trained[1], correct), (trained[0], losses, *gradients)

    program = jax.jit(figures).lower(*values, inputs, labels, weights).compile()
    correct, arrays = program(*values, inputs, labels, weights)
    held = program.memory_analysis().temp_size_in_bytes
    return held, np.array(correct), [np.asarray(array, np.float64) for array in arrays]

def compared(family, sizes, vocabulary, mesh, method, precision, chunk, *layout):
    runtime.set_precision(precision)
    token_losses.CHUNK, token_losses.SMALLEST = chunk, chunk // 8
    sharding.set_up(getattr(keras_hub.models, family), mesh, "the.run.mesh", None, *layout)
    model = construct(CausalArchitecture(family, sizes, vocabulary))
    chunks = token_losses.head_of(model).chunks
    if chunks == 1:  # the program is the same
        return {"chunks": chunks}
    if method == "lora":
        model.backbone.enable_lora(2)
    for variable in model.weights:  # so that losses differ between tokens, and B of LoRA is not zero
        variable.assign(np.random.default_rng(1).standard_normal(variable.shape) * 0.3)
    values = [[v.value for v in part] for part in (model.trainable_variables, model.non_trainable_variables)]
    dice = np.random.default_rng(0)
    inputs = {"token_ids": dice.integers(0, vocabulary, (4, 8)).astype("i4"), "padding_mask": np.ones((4, 8), "i4")}
    likeliest = jax.jit(lambda *values: model.stateless_call(*values)[0].argmax(-1))(*values, inputs)
    predicted = dice.random((4, 8)) < 0.5
    labels = np.where(predicted, likeliest, dice.integers(0, vocabulary, (4, 8))).astype("i4")
    arguments = values, inputs, labels, dice.random((4, 8)).astype("f4")
    try:
        token_losses.losses_and_correct(model, *values, inputs, labels, True, z_loss=1e-4)
        refused = False
    except ValueError:
        refused = True
    held, correct, found = measured(model, *arguments, chunk)
    all_held, all_correct, expected = measured(model, *arguments, 10**9)
    assert token_losses.head_of(model).chunks == 1 and len(found) == len(expected)
    error = max(float(abs(a - b).max() / max(abs(b).max(), 1e-9)) for a, b in zip(found, expected))
    right = float(min((correct == predicted).mean(), (all_correct == predicted).mean()))
    return {"chunks": chunks, "error": error, "right": right, "memory": held / all_held, "refused": refused}

print("RESULT" + json.dumps([compared(*case) for case in json.loads(sys.argv[1])]))
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
    "bfloat16, a head of its own": (("LlamaBackbone", LLAMA, 12_288, (1, 1), "full", "mixed_bfloat16", CHUNK), 3),
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


def test_the_loss_in_chunks_is_the_loss():
    found = warm.result(warm.run("jax", LOSSES, json.dumps([arguments for arguments, _ in CASES.values()])))
    for (case, (_, count)), figures in zip(CASES.items(), found, strict=True):
        assert figures["chunks"] == count, case
        if count > 1:
            assert figures["error"] < (0.03 if case.startswith("bfloat16") else 1e-4), case
            assert figures["memory"] < 0.9, case
            assert figures["refused"], case  # a z_loss, which nothing would have been made of
            # Whole, bfloat16 logits have ties.
            assert figures["right"] > (0.8 if case.startswith("bfloat16") else 0.999), case


# What a chunked head makes of ties, how exact its gradients are, and how vocabularies are cut.
ON_ARRAYS = """
import json, sys
from tpulm.training import runtime
runtime.start(1)
import jax, jax.numpy as jnp, numpy as np
from tpulm.models.token_losses import Head, chunked, chunks_of, first_likeliest, token_losses

# Of 64 ids, those of each 16 have the same logit, in two chunks.
table, hidden = np.repeat(np.eye(4, dtype="f4"), 16, axis=0), np.eye(4, dtype="f4")[None]
labels = np.array([[0, 16, 32, 48]], "i4")
right = []
for dtype in ("float32", "bfloat16"):
    head = Head(None, False, True, dtype, None, 8, (None, None), None)
    logits = jnp.asarray(hidden @ table.T, dtype)
    predicted = jax.jit(lambda labels: chunked(jnp.asarray(hidden, dtype), jnp.asarray(table, dtype), labels, head)[1])
    for labelled in (labels, labels + 1, labels - 1):
        right += [first_likeliest(logits) == labelled, predicted(jnp.asarray(labelled))]
right = [[bool(one) for one in row.ravel()] for row in right]

# Gradients by hidden states that are sure of their label, beside those of all logits at once, for several soft caps.
dice = np.random.default_rng(0)
table = jnp.asarray(dice.standard_normal((64, 32)), "bfloat16")
labels = jnp.asarray(dice.integers(0, 64, (4, 16)), "int32").at[0, 0].set(-1).at[0, 1].set(64)
near = table[jnp.clip(labels, 0, 63)].astype("float32")

def compared(hidden, cap):
    def whole(hidden):
        logits = jnp.einsum("bth,vh->btv", hidden, table.astype("float32"), precision="highest")
        losses = token_losses(logits if cap is None else cap * jnp.tanh(logits / cap), labels)
        return losses.sum(), losses

    theirs, losses = jax.grad(whole, has_aux=True)(hidden)
    exact = losses > 1e-3  # below, those of all logits at once are differences of numbers near 1
    least, errors = jnp.where(exact, losses, jnp.inf).min(), []
    for trained in (False, True):
        head = Head(None, False, trained, "bfloat16", cap, 4, (None, None), None)
        ours = jax.grad(lambda hidden: chunked(hidden, table, labels, head)[0].sum())(hidden)
        error = jnp.linalg.norm(ours - theirs, axis=-1) / jnp.linalg.norm(theirs, axis=-1)
        errors.append(jnp.where(exact, error, 0.0).max())
    return least, jnp.stack(errors).max()

compiled, sure = jax.jit(compared, static_argnums=1), []
for cap, scale in ((None, 0.1), (None, 0.3), (30.0, 0.3), (10.0, 0.3)):
    sure.append(list(map(float, compiled((near * scale).astype("bfloat16").astype("float32"), cap))))

chunks = [chunks_of(rows) for rows in json.loads(sys.argv[1])]
print("RESULT" + json.dumps({"right": right, "sure": sure, "chunks": chunks}))
"""
CHUNKS = {2_048: 1, 32_000: 1, 50_257: 1, 64_000: 2, 128_256: 4, 256_000: 8, 262_144: 8, 2 * 65_537: 1}


def test_a_chunked_head_on_arrays():
    found = warm.result(warm.run("jax", ON_ARRAYS, json.dumps([*CHUNKS])))
    # Of ties the first is predicted: of bfloat16 logits, four of a hundred rows tie at the top.
    assert found["right"] == [[label] * 4 for label in (True, True, False, False, False, False)] * 2
    # Gradients of tokens that are sure are no rounding errors.
    assert min(loss for loss, _ in found["sure"]) < 0.005
    assert max(error for _, error in found["sure"]) < 0.02, found["sure"]
    assert found["chunks"] == [*CHUNKS.values()]
