"""Choose the implementation of a model's attention (plain, splash or cudnn), and apply it.

plain   what keras-hub does: scores of all pairs of tokens, in memory
splash  on a TPU from v4 on; cudnn  on an NVIDIA GPU: FlashAttention (Dao et al. 2022), softmax in float32, a block of
        keys at a time, in one kernel, whose scores never leave the chip

Trainer and plan both choose here, so that a run trains as planned.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask
from jax.sharding import PartitionSpec

from tpulm.compat import keras_hub
from tpulm.models.attention_cost import block_size, gradients_at_once, scope_of
from tpulm.models.document_masking import visible
from tpulm.models.sharding import Sharded


@dataclass(frozen=True)
class Kernel:
    """A fused attention kernel.

    name       splash or cudnn
    packed     whether records hold several documents
    full       whether each record is one document without padding, as with `packing: concat`: segments are not read
    interpret  splash only: run by JAX's interpreter of Pallas, on any device
    """

    name: str
    packed: bool = False
    full: bool = False
    interpret: bool = False

    def fits(self, length: int) -> bool:
        """Return whether the kernel takes sequences of this many tokens."""
        return length_error(self.name, length) is None

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        segments: jax.Array,
        causal: bool,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> jax.Array:
        """Return the attention within segments, [records, tokens, heads, head_dim].

        query       [records, tokens, heads, head_dim], scaled
        key, value  [records, tokens, key-value heads, head_dim]; the heads are a multiple of them
        segments    int32 [records, tokens], see tpulm.models.document_masking; padding attends to padding
        window      with causal: how many tokens a token sees, itself included; without: how far it sees to each side;
                    None is no limit
        soft_cap    c of c tanh(score / c); None is none
        """
        if self.name == "splash":
            function = partial(splash, soft_cap=soft_cap, interpret=self.interpret)
        else:
            function = partial(cudnn, packed=self.packed)
        function = partial(function, causal=causal, window=window, full=self.full)
        return on_mesh(function, query, key, value, segments)


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: jax.Array,
    kernel: Kernel | None,
    window: int | None = None,
) -> jax.Array:
    """Return bidirectional attention within documents, [records, tokens, heads, head_dim].

    Arguments are those of `Kernel.__call__`, the query unscaled. Attention is plain without a kernel for this length.
    """
    scale = query.shape[-1] ** -0.5
    if kernel is not None and kernel.fits(query.shape[1]):
        return kernel(query * jnp.asarray(scale, query.dtype), key, value, segments, causal=False, window=window)
    mask = visible(segments, window)[:, None]
    return keras.ops.dot_product_attention(query, key, value, mask=mask, scale=scale, flash_attention=False)


def length_error(name: str, length: int) -> str | None:
    """Return why a kernel does not take sequences of `length` tokens, None if it does."""
    if name == "splash" and block_size(length) is None:
        return f"splash attention takes a multiple of 128 tokens, not {length}"
    if name == "cudnn" and length % 2:
        return f"cuDNN's attention takes an even number of tokens, not {length}"
    return None


def splash(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: jax.Array,
    causal: bool,
    window: int | None,
    soft_cap: float | None,
    full: bool,
    interpret: bool,
) -> jax.Array:
    """Return the attention of one device's arrays by JAX's splash kernels; arguments as for `Kernel`."""
    length, heads = query.shape[1:3]
    size, at_once = block_size(length), gradients_at_once(length)
    blocks = splash_attention_kernel.BlockSizes(
        block_q=size,
        block_kv=size,
        block_q_dkv=size,
        block_kv_dkv=size,
        block_q_dq=None if at_once else size,
        block_kv_dq=None if at_once else size,
        use_fused_bwd_kernel=at_once,
    )
    masks = splash_attention_mask.MultiHeadMask([mask_of(length, causal, window)] * heads)
    kernel = splash_attention_kernel.make_splash_mha(
        masks, block_sizes=blocks, head_shards=1, q_seq_shards=1, attn_logits_soft_cap=soft_cap, interpret=interpret
    )

    def of_record(query: jax.Array, key: jax.Array, value: jax.Array, segments: jax.Array) -> jax.Array:
        documents = None if full else splash_attention_kernel.SegmentIds(segments, segments)
        return kernel(query, key, value, segment_ids=documents)

    heads_first = (jnp.swapaxes(array, 1, 2) for array in (query, key, value))
    with jax.named_scope(scope_of(causal, window)):
        return jnp.swapaxes(jax.vmap(of_record)(*heads_first, segments), 1, 2)


def mask_of(length: int, causal: bool, window: int | None) -> splash_attention_mask.Mask:
    """Return the mask of token pairs, segments aside; the kernel skips blocks that are all masked."""
    shape = (length, length)
    if not causal:
        if window is None or window >= length - 1:
            return splash_attention_mask.FullMask(shape)
        return splash_attention_mask.LocalMask(shape, (window, window), 0)
    if window is None or window >= length:
        return splash_attention_mask.CausalMask(shape)
    return splash_attention_mask.LocalMask(shape, (window - 1, 0), 0)


def cudnn(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: jax.Array,
    causal: bool,
    window: int | None,
    packed: bool,
    full: bool,
) -> jax.Array:
    """Return the attention of one device's arrays by cuDNN's kernel; arguments as for `Kernel`.

    The kernel reads documents as a bias of token pairs, two bytes each, the same for all heads. Full records need none
    without a window, nor does a causal model without packing, because its padding comes last.
    """
    mask, local = None, None
    if (causal and not packed) or (full and window is None):
        local = None if window is None else (window - 1, 0)
    else:
        mask = visible(segments, window - 1 if causal and window else window)[:, None]
    return jax.nn.dot_product_attention(
        query, key, value, mask=mask, scale=1.0, is_causal=causal, local_window_size=local, implementation="cudnn"
    )


def on_mesh(function: Callable, query: jax.Array, key: jax.Array, value: jax.Array, segments: jax.Array) -> jax.Array:
    """Return `function` of the arrays, mapped over the devices by records and heads: XLA cannot shard a kernel.

    Heads whose number the axis `model` does not divide are replicated over it.
    """
    distribution = keras.distribution.distribution()
    if distribution is None or distribution.device_mesh.backend_mesh.size == 1:
        return function(query, key, value, segments)
    mesh = distribution.device_mesh.backend_mesh
    batch = "batch" if query.shape[0] % mesh.shape["batch"] == 0 else None
    heads = "model" if query.shape[2] % mesh.shape["model"] == 0 else None
    groups = heads if key.shape[2] % mesh.shape["model"] == 0 else None
    if heads and not groups and key.shape[2] > 1:  # a device's heads may belong to any of them
        key, value = (jnp.repeat(array, query.shape[2] // array.shape[2], axis=2) for array in (key, value))
        groups = heads
    of_query, of_key = PartitionSpec(batch, None, heads, None), PartitionSpec(batch, None, groups, None)
    specs = (of_query, of_key, of_key, PartitionSpec(batch, None))
    # A kernel does not declare the axes that its outputs vary over, so check_vma would fail.
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=of_query, check_vma=False)(
        query, key, value, segments
    )


FIRST_TPU = 4  # for older ones, the compiler refuses the kernel's bfloat16 multiplication
FIRST_GPU = (8, 0)  # compute capability of Ampere
HOPPER = (9, 0)


class Attention(NamedTuple):
    """The implementation of a model's attention; `reason` says why it is plain."""

    implementation: str
    reason: str | None = None

    def __str__(self) -> str:
        return self.implementation if self.reason is None else f"{self.implementation} ({self.reason})"

    @property
    def note(self) -> dict:
        """The entry in a checkpoint's state and metrics; empty on a CPU, which has no kernel."""
        return {} if self == ON_CPU else {"attention": self._asdict()}


ON_CPU = Attention("plain", "there is no kernel for a CPU")


class Needs(NamedTuple):
    """The requirements of a model's attention on a kernel.

    dtype     of the arithmetic
    dropout   of the attention probabilities, which no kernel has
    soft_cap  of the scores, or None
    obstacle  why this model can have no kernel, None if it may have one
    """

    dtype: str = "float32"
    head_dim: int = 0
    dropout: float = 0.0
    soft_cap: float | None = None
    obstacle: str | None = None


def needs_of(model: keras.Model) -> Needs:
    """Return the requirements of a model's attention on a kernel."""
    backbone = model.backbone
    wired = hasattr(backbone, "use_kernel")
    if not wired and not isinstance(backbone, (*keras_hub.LLAMAS, *keras_hub.GEMMAS)):
        return Needs(obstacle=f"no kernel is wired to {type(backbone).__name__}")
    block = backbone.transformer_layers[0]
    if wired:
        return Needs(block.compute_dtype, backbone.head_dim, backbone.attention_dropout)
    if isinstance(backbone, keras_hub.LLAMAS):
        return Needs(block.compute_dtype, keras_hub.llama_head_dim(block))
    if getattr(backbone, "vision_encoder", None) is not None:
        return Needs(obstacle="images are attended to in both directions")
    layer = block.attention
    if getattr(layer, "use_bidirectional_attention", False):
        return Needs(obstacle="the model is not causal")
    return Needs(layer.compute_dtype, layer.head_dim, layer.dropout, layer.logit_soft_cap)


def choose(device: Any, needs: Needs, determinism: str, length: int | None = None) -> Attention:
    """Return the attention implementation for a device of JAX or of a topology description.

    determinism  of the config: bytes or steps
    length       tokens of a sequence, None if unknown
    """
    if device.platform == "cpu":
        return ON_CPU
    name = "splash" if device.platform == "tpu" else "cudnn"
    reason = needs.obstacle
    if reason is None and needs.dropout > 0:
        reason = f"kernels have no dropout of attention probabilities, here {needs.dropout:g}"
    if reason is None:
        reason = tpu_error(device) if name == "splash" else gpu_error(device, needs, determinism)
    if reason is None and length is not None:
        reason = length_error(name, length)
    return Attention("plain", reason) if reason else Attention(name)


def tpu_error(device: Any) -> str | None:
    """Return why this TPU cannot run splash attention, None if it can."""
    version = re.search(r"\d+", device.device_kind)
    return f"splash attention needs TPU v{FIRST_TPU}" if version and int(version[0]) < FIRST_TPU else None


def gpu_error(device: Any, needs: Needs, determinism: str) -> str | None:
    """Return why this GPU cannot run cuDNN's attention for a model, None if it can."""
    if determinism != "steps":
        return "cuDNN's attention adds up gradients in any order; determinism: steps allows it"
    if needs.dtype != "bfloat16":
        return f"cuDNN's attention computes in bfloat16, not {needs.dtype}"
    if needs.soft_cap is not None:
        return "cuDNN's attention has no soft cap"
    numbers = re.fullmatch(r"(\d+)\.(\d+)", str(device.compute_capability))
    capability = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if capability < FIRST_GPU:
        return f"cuDNN's attention needs an NVIDIA GPU of compute capability {FIRST_GPU[0]}.{FIRST_GPU[1]}"
    widest = 256 if capability >= HOPPER else 128
    if needs.head_dim > widest or needs.head_dim % 8:
        return f"cuDNN's attention takes heads of a multiple of 8, {widest} at most, not {needs.head_dim}"
    return None


def attention_of(model: keras.Model, distribution: Sharded, determinism: str, length: int | None = None) -> Attention:
    """Return the attention implementation of a model on its mesh, see `choose`."""
    device = distribution.device_mesh.backend_mesh.devices.ravel()[0]
    return choose(device, needs_of(model), determinism, length)


def fuse(model: keras.Model, kernel: Kernel) -> None:
    """Make a model attend by a kernel, except at lengths that it does not take and in cached generation.

    The attention then reads `padding_mask` as segment ids: with ones and zeros, tokens and padding are two documents.
    """
    if hasattr(model.backbone, "use_kernel"):
        model.backbone.use_kernel(kernel)
    else:
        for block in model.backbone.transformer_layers:
            keras_hub.attend_by_kernel(block, kernel)
