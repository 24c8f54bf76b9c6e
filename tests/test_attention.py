"""Kernels of attention: what they compute is what plain attention does; which run gets one; what one costs."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import warm
from conftest import ROOT
from test_segments import FAMILIES
from tpulm.models.attention_cost import block_pairs, call_cost, cost_of_instruction, scope_of

# Kernels on arrays: alone, or on a mesh of eight devices, where heads are divided, repeated or on all devices.
KERNELS = """
import json, sys
from tpulm.training import runtime
name, cases = json.loads(sys.argv[1])
runtime.start(1, 8, determinism="steps" if name == "cudnn" else "bytes")
import jax, jax.numpy as jnp, keras_hub, numpy as np
from tpulm.models import sharding
from tpulm.models.attention import Kernel

WIDTH = 16 if name == "splash" else 64
dice = np.random.default_rng(0)

def plain(query, key, value, segments, causal, window, soft_cap):
    groups = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(array, groups, axis=2) for array in (key, value))
    scores = jnp.einsum("btnh,bsnh->bnts", query, key).astype("float32")
    scores = scores if soft_cap is None else jnp.tanh(scores / soft_cap) * soft_cap
    place = np.arange(query.shape[1])
    ago = place[:, None] - place
    seen = np.ones(ago.shape, bool) & (ago >= 0 if causal else True) & (ago < window if window else True)
    seen = seen & (segments[:, :, None] == segments[:, None, :])
    weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -1e30)).astype(query.dtype)
    return jnp.einsum("bnts,bsnh->btnh", weights, value)

for dtype, length, heads, groups, records, mesh, options in cases:
    arrays = [dice.standard_normal((2, length, n, WIDTH)).astype("f4") for n in (heads, groups, groups, heads)]
    *inputs, wanted = (jnp.asarray(array, dtype) for array in arrays)
    inputs[0] = inputs[0] * jnp.asarray(WIDTH**-0.5, dtype)
    segments = np.ones((2, length), "i4")
    if records == "packed":
        segments = np.sort(dice.integers(1, 6, segments.shape).astype("i4"))
    if records != "full":
        segments[:, length - 30 :] = 0
    real = (segments > 0)[:, :, None, None]
    if mesh:
        sharding.set_up(keras_hub.models.GemmaBackbone, mesh, "the.run.mesh")
    kernel = Kernel(name, records == "packed", records == "full", interpret=name == "splash")

    def both(function):
        def value(*inputs):
            out = function(*inputs, segments, **options) * real
            return (out * wanted).astype("float32").sum(), out
        (_, out), gradients = jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2), has_aux=True))(*inputs)
        return [np.asarray(array, np.float32) for array in (out, *gradients)]

    pairs = zip(both(kernel), both(plain))
    print("CASE", json.dumps([float(abs(a - b).max() / abs(b).max()) for a, b in pairs]))
"""
CAUSAL = {"causal": True, "window": None, "soft_cap": None}
GEMMA_2, GEMMA_3 = {"causal": True, "window": 150, "soft_cap": 3.0}, {"causal": True, "window": 100, "soft_cap": None}


def compared(name, *cases):
    """Return the largest errors of output and gradients of each case, as parts of the largest number."""
    job = json.dumps([name, cases])
    if name == "cudnn":  # by a process that starts JAX with determinism: steps
        environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
        command = [sys.executable, "-c", KERNELS, job]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    else:
        done = warm.run("jax", KERNELS, job)
    return [json.loads(line.removeprefix("CASE")) for line in done.stdout.splitlines() if line.startswith("CASE")]


# Type, length, heads of queries and of keys, records, mesh, mask. Records are padded, packed with several documents and
# padding, or full. 128 tokens are a block, of which one kernel computes all gradients.
CASES = [
    ("float32", 256, 2, 1, "packed", None, GEMMA_2),
    ("bfloat16", 128, 2, 2, "full", None, CAUSAL | {"causal": False}),
    ("float32", 128, 4, 4, "packed", [2, 4], CAUSAL),  # a device has a head
    ("float32", 128, 4, 2, "padded", [2, 4], GEMMA_3 | {"window": 50}),  # two heads of keys for four devices
    ("float32", 128, 2, 2, "full", [1, 4], CAUSAL),  # all devices have both heads
]


def test_splash_attention_is_attention():
    found = compared("splash", *CASES)
    for case, errors in zip(CASES, found, strict=True):
        assert max(errors) < {"float32": 1e-5, "bfloat16": 2e-2}[case[0]], case


def gpu() -> bool:
    if find_spec("jax_cuda12_plugin") is None and find_spec("jax_cuda13_plugin") is None:
        return False
    asked = "import jax; print('RESULT' + str(int(jax.devices()[0].platform == 'gpu')))"
    return bool(warm.result(warm.run("jax", asked)))


def test_cudnn_attention_is_attention():
    if not gpu():
        pytest.skip("cuDNN's attention needs an NVIDIA GPU")
    both_ways = CAUSAL | {"causal": False}
    kinds = [(2, 2, records, both_ways) for records in ("padded", "packed", "full")]
    kinds += [(4, 2, "padded", CAUSAL), (4, 1, "packed", CAUSAL)]
    kinds += [(2, 2, records, GEMMA_3) for records in ("padded", "packed", "full")]
    kinds += [(2, 2, "full", both_ways | {"window": 50})]
    found = compared("cudnn", *(("bfloat16", 384, *sizes, None, mask) for *sizes, mask in kinds))
    assert len(found) == 9 and max(map(max, found)) < 2e-2, found


# The loss of a model, maybe gradients, before and after its attention is the kernel, run by the interpreter.
MODELS = """
import json, sys
from tpulm.training import runtime
runtime.start(1)
import jax, keras_hub, numpy as np
from tpulm.compat.keras import skip_initialization
from tpulm.models import roberta
from tpulm.models.attention import Kernel, fuse
from tpulm.models.causal import construct, draw_causal_weights
from tpulm.specs.training_step import CausalArchitecture
from tpulm.models.remat import remat
from tpulm.models.document_masking import separate_documents
from tpulm.records.causal_batches import causal_lm
from tpulm.records.masked_batches import masked_lm
from tpulm.training.train_step import make_grad_fn

family, sizes, packed, trained = json.loads(sys.argv[1])
dice, rows, length = np.random.default_rng(0), 2, 128
ids = dice.integers(5, 64, (rows, length + 1)).astype("i4")
segments = np.sort(dice.integers(1, 5, ids.shape).astype("i4"))
segments[:, 120:] = 0

def measured(kernel):
    if family == "RobertaBackbone":
        model, task = roberta.build(sizes | {"max_position_embeddings": length + 2}, 64, 1), masked_lm
        roberta.draw_weights(model, 0.3, 0)
        batch = {"input_ids": ids[:, :-1], "labels": ids[:, 1:60], "weights": np.ones((rows, 59), "f4")}
        batch["positions"] = np.broadcast_to(np.arange(59, dtype="i4"), (rows, 59))
        batch["segment_ids"] = segments[:, :-1] if packed else (segments[:, :-1] > 0).astype("i4")
    else:
        with skip_initialization():
            model, task = construct(CausalArchitecture(family, sizes, 64)), causal_lm
        draw_causal_weights(model.backbone, 0)
        batch = {"tokens": ids, "mask": segments > 0} | ({"segment_ids": segments} if packed else {})
    if packed:
        separate_documents(model, "the.run")
    if kernel:
        fuse(model, kernel)
    if trained:
        remat(model)
    values = [[v.value for v in part] for part in (model.trainable_variables, model.non_trainable_variables)]
    if trained:
        (loss, _), gradients = jax.jit(make_grad_fn(model, task))(*values, [], batch, np.float32(1))
    else:
        loss, gradients = jax.jit(lambda *values: model.stateless_call(*values, task(batch)[0])[0])(*values), []
        loss = loss[:, :59] if family == "RobertaBackbone" else loss[:, :119]  # logits of tokens that are no padding
    if kernel:  # another length is attended to as before
        short = {name: array[:, :12] for name, array in batch.items()}
        for arrays, fused in ((batch, True), (short, False)):
            text = str(jax.make_jaxpr(lambda inputs: model(inputs))(task(arrays)[0]))
            assert ("pallas_call" in text) == fused
    return [np.asarray(array, np.float64) for array in (loss, *gradients)]

pairs = list(zip(measured(Kernel("splash", packed, interpret=True)), measured(None)))
# The loss does not depend on a bias of the keys: both of its gradients are rounding.
least = 1e-4 * max((abs(b).max() for _, b in pairs[1:]), default=0.0)
print("RESULT" + json.dumps([float(abs(a - b).max() / max(abs(b).max(), least)) for a, b in pairs]))
"""
SHORT = [("RoBERTa", True), ("Gemma 2", True), ("Mistral", False)]
TINY = {"num_layers": 1, "num_query_heads": 2, "num_key_value_heads": 1, "hidden_dim": 16, "intermediate_dim": 32}
LIKE_LLAMA = {
    "Llama 3": ("Llama3Backbone", {}),
    "Mistral": ("MistralBackbone", {"sliding_window": 20}),
    "Qwen 2": ("QwenBackbone", {}),
    "Qwen 3": ("Qwen3Backbone", {"head_dim": 16}),
}


@pytest.mark.parametrize(
    ("family", "packed"),
    [
        pytest.param(family, packed, marks=() if (family, packed) in SHORT else pytest.mark.long)
        for family in FAMILIES | LIKE_LLAMA
        for packed in ((True, False) if family in FAMILIES else (False,))
    ],
)
def test_a_model_with_the_kernel_is_the_model(family, packed):
    name, sizes = (FAMILIES | LIKE_LLAMA)[family]
    sizes = sizes | ({"num_hidden_layers": 1} if family == "RoBERTa" else TINY)
    if family == "Gemma 2":  # a layer with a window and one without
        sizes["num_layers"] = 2
    if "sliding_window_size" in sizes:
        sizes["sliding_window_size"] = 20
    trained = packed and family == "RoBERTa"  # with rematerialization, too
    found = warm.result(warm.run("jax", MODELS, json.dumps([name, sizes, packed, trained])))
    assert found[0] < 1e-5 and max(found) < 1e-3, found


# What is chosen for devices, given by platform, kind and compute capability.
CHOICES = """
import json, sys
from types import SimpleNamespace
from tpulm.models.attention import Needs, choose
found = []
for (platform, kind, capability), needs, determinism, length in json.loads(sys.argv[1]):
    device = SimpleNamespace(platform=platform, device_kind=kind, compute_capability=capability)
    found.append(str(choose(device, Needs(**needs), determinism, length)))
print("RESULT" + json.dumps(found))
"""
V3, V4, V5E = (("tpu", f"TPU v{kind}", None) for kind in ("3", "4", "5 lite"))
CPU = ("cpu", "cpu", None)
A100, H100, T4 = (("gpu", "NVIDIA", capability) for capability in ("8.0", "9.0", "7.5"))
WIDE, BF16 = {"dtype": "bfloat16", "head_dim": 256}, {"dtype": "bfloat16", "head_dim": 64}
CHOSEN = [
    (V5E, BF16, "bytes", 512, "splash"),
    (V4, WIDE | {"dtype": "float32", "soft_cap": 50.0}, "steps", 1024, "splash"),
    (V5E, BF16, "bytes", None, "splash"),
    (V3, BF16, "bytes", 512, "TPU v4"),
    (V5E, BF16, "bytes", 500, "multiple of 128"),
    (V5E, BF16 | {"dropout": 0.1}, "bytes", 512, "dropout"),
    (V5E, {"obstacle": "the model is not causal"}, "bytes", 512, "the model is not causal"),
    (CPU, BF16, "steps", 512, "CPU"),
    (H100, WIDE, "steps", 512, "cudnn"),
    (A100, BF16, "steps", 500, "cudnn"),
    (H100, BF16, "bytes", 512, "determinism: steps"),
    (H100, BF16 | {"soft_cap": 50.0}, "steps", 512, "soft cap"),
    (H100, BF16 | {"dtype": "float32"}, "steps", 512, "float32"),
    (T4, BF16, "steps", 512, "8.0"),
    (A100, WIDE, "steps", 512, "256"),
    (H100, BF16, "steps", 511, "511"),
]


def test_which_run_gets_a_kernel():
    """A kernel, or plain attention, and in brackets what is in the way."""
    found = warm.result(warm.run("jax", CHOICES, json.dumps([case[:4] for case in CHOSEN])))
    for said, (*case, expected) in zip(found, CHOSEN, strict=True):
        assert said == expected or said.startswith("plain (") and expected in said, case


@pytest.mark.unit
def test_what_a_kernel_costs():
    assert [block_pairs(2048, False, None), block_pairs(2048, True, None)] == [16, 10]
    # Windows: of one token; of a block and a token more; longer than the sequence.
    assert [block_pairs(2048, True, window) for window in (1, 514, 4096)] == [4, 9, 10]
    assert [block_pairs(8192, False, window) for window in (64, 513)] == [3 * 16 - 2, 5 * 16 - 6]
    query, key = (2, 8, 1024, 64), (2, 2, 1024, 64)
    flops, moved = call_cost("fwd", query, key, 2, False, None)
    # Heads of 64 take the place of 128.
    assert flops == 4 * 2 * 8 * 1024 * 1024 * 128
    # Queries and outputs once; keys and values for each of two blocks of queries; a logsumexp for each lane.
    assert moved == (2 + 2 * 2) * (2 * 2 * 8 * 1024 * 128) + 4 * 128 * 2 * 8 * 1024
    assert call_cost("dq", query, key, 2, True, None)[0] == flops * 6 / 4 * 3 / 4
    assert call_cost("dkv", query, key, 2, True, None)[0] == flops * 8 / 4 * 3 / 4
    # Of a single block, all gradients at once: five multiplications in place of seven, and inputs are read once.
    short = [(*shape[:2], 512, 128) for shape in (query, key)]
    flops, _ = call_cost("fwd", *short, 2, True, None)
    whole, moved = call_cost("dkv", *short, 2, True, None)
    ours, theirs = (2 * 2 * heads * 512 * 128 for heads in (8, 2))
    assert whole == flops * 5 / 2 and moved == 3 * ours + 4 * theirs + 4 * 2 * 8 * 2 * 8 * 512
    name = f"jit(step)/{scope_of(True, 512)}/vmap(splash_mha_dq_segmented)/pallas_call"
    assert cost_of_instruction(name, query, key, 2) == call_cost("dq", query, key, 2, True, 512)
    assert cost_of_instruction("jit(step)/dot_general", query, key, 2) is None


PRECISION = """
import json, re
from tpulm.training import runtime
runtime.start(1, precision="mixed_bfloat16")
import jax, jax.numpy as jnp
from tpulm.models.roberta_layers import SelfAttention

found = []
for dropout in (0.0, 0.1):
    layer = SelfAttention(64, 4, dropout)
    layer.build((2, 8, 64), (2, 8))
    hidden, segments = jnp.ones((2, 8, 64), "bfloat16"), jnp.ones((2, 8), "int32")
    values = [v.value for v in layer.trainable_variables], [v.value for v in layer.non_trainable_variables]
    program = jax.make_jaxpr(lambda *own: layer.stateless_call(*own, hidden, segments, training=True)[0])(*values)
    found.append(re.findall(r":(\\w+)\\[[\\d,]*\\] = exp\\b", str(program)))
print("RESULT" + json.dumps(found))
"""


def test_softmax_is_in_float32_with_dropout_and_without():
    assert warm.result(warm.run("jax", PRECISION)) == [["f32"]] * 2
