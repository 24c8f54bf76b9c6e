"""The loss in chunks over a large vocabulary: it is the loss, and its gradients are; no device holds all logits."""

import json

import warm

# Common to the two programs on meshes.
MODELS = """
import json, sys
from tpulm.training import runtime
runtime.start(1, 8)
import jax, jax.numpy as jnp, keras_hub, numpy as np
from tpulm.compat.keras import skip_initialization
from tpulm.models import sharding, token_losses
from tpulm.models.causal import construct
from tpulm.specs.training_step import CausalArchitecture

token_losses.SMALLEST = 512
"""

# Losses and gradients of a training step of models, with the vocabulary in chunks and whole.
LOSSES = """
ROWS = 16_384

def compared(family, sizes, mesh, method, precision):
    runtime.set_precision(precision)
    sharding.set_up(getattr(keras_hub.models, family), mesh, "the.run.mesh")
    with skip_initialization():
        model = construct(CausalArchitecture(family, sizes, ROWS))
    if method == "lora":
        model.backbone.enable_lora(2)
    dice = np.random.default_rng(0)
    for variable in model.weights:  # so that losses differ between tokens, and B of LoRA is not zero
        variable.assign(dice.standard_normal(variable.shape) * 0.3)
    values = [[v.value for v in part] for part in (model.trainable_variables, model.non_trainable_variables)]
    inputs = {"token_ids": dice.integers(0, ROWS, (4, 8)).astype("i4"), "padding_mask": np.ones((4, 8), "i4")}
    likeliest = jax.jit(lambda *values: model.stateless_call(*values, inputs)[0].argmax(-1))(*values)
    predicted, weights = dice.random((4, 8)) < 0.5, dice.random((4, 8)).astype("f4")
    labels = np.where(predicted, likeliest, dice.integers(0, ROWS, (4, 8))).astype("i4")

    def figures(chunk):
        token_losses.CHUNK = chunk

        def total(trainable, frozen):
            losses, correct, _ = token_losses.losses_and_correct(model, trainable, frozen, inputs, labels, True)
            return (losses * weights).sum(), (losses, correct)

        (_, (losses, correct)), gradients = jax.jit(jax.value_and_grad(total, has_aux=True))(*values)
        return (np.asarray(correct) == predicted).mean(), [np.asarray(a, "f8") for a in (losses, *gradients)]

    (whole, expected), (right, found) = figures(10**9), figures(1024)
    try:
        token_losses.losses_and_correct(model, *values, inputs, labels, True, z_loss=1e-4)
        refused = False
    except ValueError:
        refused = True
    error = max(float(abs(a - b).max() / max(abs(b).max(), 1e-9)) for a, b in zip(found, expected, strict=True))
    chunks = token_losses.head_of(model).chunks
    return {"chunks": chunks, "error": error, "right": min(right, whole), "refused": refused}

print("RESULT" + json.dumps([compared(*case) for case in json.loads(sys.argv[1])]))
"""
SIZES = {"num_layers": 1, "num_query_heads": 4, "hidden_dim": 8, "intermediate_dim": 16}
GEMMA = SIZES | {"num_key_value_heads": 1, "head_dim": 4}
LLAMA = SIZES | {"num_key_value_heads": 4, "tie_word_embeddings": False}
CASES = {
    "frozen, with a soft cap": (("GemmaBackbone", GEMMA | {"final_logit_soft_cap": 2.0}, (2, 4), "lora", "float32"), 4),
    "bfloat16, a head of its own": (("LlamaBackbone", LLAMA, (1, 1), "full", "mixed_bfloat16"), 16),
}


def test_the_loss_in_chunks_is_the_loss():
    found = warm.result(warm.run("jax", MODELS + LOSSES, json.dumps([arguments for arguments, _ in CASES.values()])))
    for (case, (_, count)), figures in zip(CASES.items(), found, strict=True):
        assert figures["chunks"] == count and figures["refused"], case  # a z_loss, of which nothing would be made
        narrow = case.startswith("bfloat16")  # whole, bfloat16 logits have ties
        assert figures["error"] < (0.03 if narrow else 1e-4), case
        assert figures["right"] > (0.8 if narrow else 0.999), case


# Arrays on meshes: chunked losses, without gradients and with them, beside those of all logits on one device.
ON_MESHES = """
ROWS = 32_768
token_losses.CHUNK = 1024
sizes, *cases = json.loads(sys.argv[1])
with skip_initialization():
    model = construct(CausalArchitecture("GemmaBackbone", sizes, ROWS))
dice = np.random.default_rng(0)
hidden, table = (dice.standard_normal(shape).astype("f4") for shape in ((4, 8, 8), (ROWS, 8)))
hidden *= 0.3  # so that the cap makes no ties
labels = (hidden @ table.T).argmax(-1)
predicted, weights = dice.random((4, 8)) < 0.5, dice.random((4, 8)).astype("f4")
labels = np.where(predicted, labels, dice.integers(0, ROWS, (4, 8))).astype("i4")

def differentiated(losses_of, trained):
    def total(hidden, table):
        losses, correct = losses_of(hidden, table)
        return (losses * weights).sum(), (losses, correct)

    return jax.jit(jax.value_and_grad(total, (0, 1) if trained else 0, has_aux=True))

def whole(cap):
    def losses(hidden, table):
        logits = jnp.einsum("bth,vh->btv", hidden, table)
        logits = logits if cap is None else jnp.tanh(logits / cap) * cap
        return token_losses.token_losses(logits, labels), token_losses.first_likeliest(logits) == labels
    return losses

expected = {cap: differentiated(whole(cap), True)(hidden, table) for cap in (None, 2.0)}
found = []
for mesh, layout, trained, cap in cases:
    sharding.set_up(keras_hub.models.GemmaBackbone, mesh, "the.run.mesh", None, layout)
    head = token_losses.head_of(model)
    if head.chunks == 1:
        found.append({"chunks": 1})
        continue
    head = head._replace(trained=trained, soft_cap=cap)
    chunked = lambda hidden, table: token_losses.chunked(hidden, table, labels, head)
    program = differentiated(chunked, trained).lower(hidden, table).compile()
    (_, (losses, correct)), gradients = program(hidden, table)
    (_, (wanted, _)), theirs = expected[cap]
    plain, same = jax.jit(chunked)(hidden, table)
    assert (np.asarray(correct) == predicted).all() and (np.asarray(same) == predicted).all()
    pairs = [(losses, wanted), (plain, wanted), *zip(gradients if trained else [gradients], theirs)]
    error = max(float(np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(b).max()) for a, b in pairs)
    tokens = 32 // (mesh[0] if 4 % mesh[0] == 0 else 1)
    logits = 4 * tokens * ROWS // (mesh[1] if head.axes[0] else 1)  # bytes of all that belong to a device
    memory = program.memory_analysis().temp_size_in_bytes / logits
    found.append({"chunks": head.chunks, "error": error, "memory": memory})
print("RESULT" + json.dumps(found))
"""
# Mesh, layout of the table, whether it is trained, soft cap; chunks.
MESHES = {
    "one device": (((1, 1), None, True, 2.0), 32),
    "both axes": (((2, 4), None, True, None), 8),
    "by its width, over what sees the same tokens": (
        ((2, 4), {"token_embedding/embeddings": [None, "model"]}, True, 2.0), 32
    ),
    "more devices than records": (((8, 1), None, True, None), 32),
    "rows over what sees other tokens": (
        ((2, 4), {"token_embedding/embeddings": ["batch", "model"]}, True, None), 1
    ),
    "frozen, both axes": (((2, 4), None, False, 2.0), 8),
}  # fmt: skip


def test_no_device_of_a_mesh_holds_all_logits():
    job = json.dumps([GEMMA, *(arguments for arguments, _ in MESHES.values())])
    found = warm.result(warm.run("jax", MODELS + ON_MESHES, job))
    for (case, (_, count)), figures in zip(MESHES.items(), found, strict=True):
        assert figures["chunks"] == count, case
        if count > 1:
            assert figures["error"] < 1e-4 and figures["memory"] < 0.5, (case, figures)


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


GELU = """
import json
from tpulm.training import runtime
runtime.start(1)
import jax, jax.numpy as jnp, numpy as np
from tpulm.models.gelu import gelu

found = {}
for dtype in ("float32", "bfloat16"):
    x = jnp.asarray(np.linspace(-12, 12, 4001), dtype)

    def both(function):
        values, derivative = jax.vjp(function, x)
        arrays = values, *derivative(jnp.ones_like(x))
        return [np.asarray(array, "f4") for array in arrays], len(jax.tree.leaves(derivative))

    (mine, kept), (theirs, more) = both(gelu), both(lambda x: jax.nn.gelu(x, approximate=False))
    found[dtype] = [kept, more, *(float(abs(a - b).max()) for a, b in zip(mine, theirs))]
print("RESULT" + json.dumps(found))
"""


def test_gelu_keeps_only_its_input():
    """For the backward pass; values and derivatives are JAX's."""
    for kept, more, values, derivatives in warm.result(warm.run("jax", GELU)).values():
        assert kept == 1 < more and values == derivatives == 0
