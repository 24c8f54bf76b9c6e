"""The training step of a dense decoder as MaxText has it, abstract: to compile the shapes of published measurements.

Layers are scanned. Arithmetic is bfloat16, attention a causal Pallas kernel (Splash), and the optimizer AdamW.
Weights are sharded over the axis `fsdp`, and over `tensor` by heads and by the inner dimension of the feed-forward;
activations between them over `tensor` by their width.
"""

from functools import partial

import jax
import jax.numpy as jnp
from decoder import Decoder
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.mesh_utils import create_device_mesh
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

QKV, PROJECTIONS = ("query", "key", "value"), ("query", "key", "value", "out", "mlp_in", "mlp_gate", "mlp_out")
# What is kept on the device and in the memory of the host, beside the inputs of layers, by names of `Decoder.remat`.
KEPT = {
    "full": ((), ()),
    "minimal": (PROJECTIONS, ()),
    "attention": ((*QKV, "context"), ()),
    "offload": ((), ("input", *QKV, "out")),
    "offload-qkv": ((), ("input", *QKV)),
    "offload-context": ((), ("context", "mlp_out")),
    "offload-mlp": (("key", "value"), ("input", "mlp_out")),
}


def normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Return RMS-normalised activations."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return (wide * scale).astype(jnp.bfloat16)


def rotated(x: jax.Array) -> jax.Array:
    """Return [..., length, head_dim] with rotary positions."""
    length, size = x.shape[-2:]
    angles = jnp.arange(length)[:, None] / 10_000 ** (jnp.arange(0, size, 2) / size)
    first, second = jnp.split(x.astype(jnp.float32), 2, -1)
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


def attention_of(model: Decoder, mesh: Mesh):
    """Return causal attention of q [batch, heads, length, head_dim] over k and v, each device its own records."""
    block = min(model.block, model.length)
    sizes = dict.fromkeys(("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq"), block)
    mask = masks.MultiHeadMask([masks.CausalMask((model.length, model.length))] * (model.heads // mesh.shape["tensor"]))
    kernel = splash.make_splash_mha(
        mask, block_sizes=splash.BlockSizes(**sizes), head_shards=1, q_seq_shards=1, residual_checkpoint_name="context"
    )
    spec = P("fsdp", "tensor", None, None)

    @partial(jax.shard_map, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec, check_vma=False)
    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jax.vmap(kernel)(q * model.head_dim**-0.5, k, v)

    return attend


def train_step_of(model: Decoder, mesh: Mesh):
    """Return the function of one update: (weights, moments, tokens) -> (weights, moments, loss)."""
    attend = attention_of(model, mesh)
    place = lambda x, *axes: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))  # noqa: E731
    activations = lambda x: place(x, "fsdp", None, "tensor")  # noqa: E731

    def layer(x: jax.Array, w: dict) -> tuple[jax.Array, None]:
        x = checkpoint_name(activations(x), "input")
        w = {name: value.astype(jnp.bfloat16) if value.ndim > 1 else value for name, value in w.items()}
        before = activations(normed(x, w["norm"]))

        def projected(source: jax.Array, name: str, heads: int) -> jax.Array:
            flat = checkpoint_name(place(source @ w[name], "fsdp", None, "tensor"), name)
            return flat.reshape(*flat.shape[:2], heads, model.head_dim).transpose(0, 2, 1, 3)

        q, k, v = (projected(before, name, n) for name, n in zip(QKV, (model.heads, model.kv, model.kv), strict=True))
        mixed = attend(rotated(q), rotated(k), v).transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1)
        added = checkpoint_name(activations(mixed @ w["out"]), "out")
        if not model.parallel:
            x, added = x + added, 0
            before = activations(normed(x, w["mlp_norm"]))
        inner = checkpoint_name(place(before @ w["mlp_in"], "fsdp", None, "tensor"), "mlp_in")
        if model.gated:
            gate = checkpoint_name(place(before @ w["mlp_gate"], "fsdp", None, "tensor"), "mlp_gate")
            inner = jax.nn.silu(gate) * inner
        else:
            inner = jax.nn.relu(inner)
        return activations(x + added + checkpoint_name(inner @ w["mlp_out"], "mlp_out")), None

    on_device, on_host = KEPT[model.remat]
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=on_device, names_which_can_be_offloaded=on_host, offload_src="device",
        offload_dst="pinned_host",
    )  # fmt: skip
    layer = jax.checkpoint(layer, policy=policy, prevent_cse=False)
    outside = ("embeddings", "last_norm", "head")

    def loss_of(weights: dict, tokens: jax.Array) -> jax.Array:
        table = weights["embeddings"].astype(jnp.bfloat16)
        x = activations(jax.nn.one_hot(tokens, model.vocabulary, dtype=jnp.bfloat16) @ table)
        x, _ = jax.lax.scan(layer, x, {name: value for name, value in weights.items() if name not in outside})
        head = table.T if model.tied else weights["head"].astype(jnp.bfloat16)
        logits = place((normed(x, weights["last_norm"]) @ head).astype(jnp.float32), "fsdp", None, "tensor")
        places = jax.lax.broadcasted_iota(tokens.dtype, logits.shape, 2)
        chosen = jnp.where(places == jnp.roll(tokens, -1, 1)[..., None], logits, 0.0).sum(-1)
        return (jax.nn.logsumexp(logits, -1) - chosen).mean()

    def step(weights: dict, moments: list[dict], tokens: jax.Array) -> tuple[dict, list[dict], jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(weights, tokens)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
        second = jax.tree.map(lambda m, g: 0.95 * m + 0.05 * g * g, moments[1], gradients)
        update = lambda w, m, v: w - 1e-4 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * w)  # noqa: E731
        return jax.tree.map(update, weights, first, second), [first, second], loss

    return step


def lowered(model: Decoder, devices: list) -> tuple[jax.stages.Lowered, list]:
    """Return the program of a step on a topology's devices, and the devices in the order of its partitions."""
    sizes = dict(model.mesh)
    # A group of 16 on 8 x 8 x 8 chips takes a part of an axis.
    mesh = Mesh(create_device_mesh(tuple(sizes.values()), devices, allow_split_physical_axes=True), tuple(sizes))
    shapes = model.shapes()
    places = {name: NamedSharding(mesh, P(*axes)) for name, (_, axes) in shapes.items()}
    weights = {
        name: jax.ShapeDtypeStruct(shape, model.weights, sharding=places[name]) for name, (shape, _) in shapes.items()
    }
    records = NamedSharding(mesh, P("fsdp", None))
    # Of all devices: those of a tensor group read the same records.
    tokens = jax.ShapeDtypeStruct((model.batch * mesh.size, model.length), jnp.int32, sharding=records)
    jitted = jax.jit(
        train_step_of(model, mesh),
        donate_argnums=(0, 1),
        out_shardings=(places, [places, places], NamedSharding(mesh, P())),
    )
    return jitted.lower(weights, [weights, weights], tokens), list(mesh.devices.ravel())
