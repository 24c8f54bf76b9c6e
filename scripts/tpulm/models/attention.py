"""The implementation of a model's attention: which one its devices, its sizes and the config allow, and its use.

plain   what keras-hub does: scores of all pairs of tokens, in memory
splash  on a TPU from v4 on; cudnn  on an NVIDIA GPU: see tpulm.models.fused_attention

Trainer and plan both ask here, so that what trains is what was planned. Needs tpulm.training.runtime.start first.
"""

import re
from typing import Any, NamedTuple

import keras
import keras_hub
import numpy as np
from keras import ops

from tpulm.models.fused_attention import Kernel, length_error
from tpulm.models.modernbert_layers import ModernBertBackbone
from tpulm.models.sharding import Sharded

FIRST_TPU = 4  # the compiler refuses the kernel's bfloat16 multiplication for those before
FIRST_GPU = (8, 0)  # compute capability of Ampere, and of Hopper
HOPPER = (9, 0)
# The families whose decoder blocks are built like Llama's.
LLAMA = (
    keras_hub.models.LlamaBackbone,
    keras_hub.models.MistralBackbone,
    keras_hub.models.QwenBackbone,
    keras_hub.models.Qwen3Backbone,
)


class Attention(NamedTuple):
    """Which implementation a model has, and why not a kernel where it is plain."""

    implementation: str
    reason: str | None = None

    def __str__(self) -> str:
        return self.implementation if self.reason is None else f"{self.implementation} ({self.reason})"

    @property
    def note(self) -> dict:
        """The same for a checkpoint's state and metrics; nothing where no kernel could be, on a CPU."""
        return {} if self == ON_CPU else {"attention": self._asdict()}


ON_CPU = Attention("plain", "there is no kernel for a CPU")


class Needs(NamedTuple):
    """What a model's attention asks of a kernel.

    dtype     of its arithmetic
    dropout   of the attention probabilities, which no kernel has
    soft_cap  of the scores, or None
    obstacle  why no kernel does for this model; None where one may
    """

    dtype: str = "float32"
    head_dim: int = 0
    dropout: float = 0.0
    soft_cap: float | None = None
    obstacle: str | None = None


def needs_of(model: keras.Model) -> Needs:
    """Return what a model's attention asks of a kernel."""
    backbone = model.backbone
    if isinstance(backbone, keras_hub.models.RobertaBackbone):
        layer = backbone.transformer_layers[0]._self_attention_layer
        return Needs(layer.compute_dtype, layer._key_dim, layer._dropout)
    if isinstance(backbone, ModernBertBackbone):
        block = backbone.transformer_layers[0]
        return Needs(block.compute_dtype, block.head_dim)
    if isinstance(backbone, LLAMA):
        layer = backbone.transformer_layers[0]._self_attention_layer
        return Needs(layer.compute_dtype, layer._query_dense.partial_output_shape[-1])
    if not isinstance(backbone, (keras_hub.models.GemmaBackbone, keras_hub.models.Gemma3Backbone)):
        return Needs(obstacle=f"no kernel is wired to {type(backbone).__name__}")
    if getattr(backbone, "vision_encoder", None) is not None:
        return Needs(obstacle="images are attended to in both directions")
    layer = backbone.transformer_layers[0].attention
    if getattr(layer, "use_bidirectional_attention", False):
        return Needs(obstacle="the model is not causal")
    return Needs(layer.compute_dtype, layer.head_dim, layer.dropout, layer.logit_soft_cap)


def choose(device: Any, needs: Needs, determinism: str, length: int | None = None) -> Attention:
    """Return the implementation for a device, as JAX or a topology description has them.

    determinism  of the config: bytes or steps
    length       tokens of a sequence, if they are known
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
    """Return why splash attention cannot be on this TPU; None where it can."""
    version = re.search(r"\d+", device.device_kind)
    return f"splash attention needs TPU v{FIRST_TPU}" if version and int(version[0]) < FIRST_TPU else None


def gpu_error(device: Any, needs: Needs, determinism: str) -> str | None:
    """Return why cuDNN's attention cannot be on this GPU; None where it can."""
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
    """Return the implementation of a model on its mesh, see `choose`."""
    device = distribution.device_mesh.backend_mesh.devices.ravel()[0]
    return choose(device, needs_of(model), determinism, length)


def fuse(model: keras.Model, kernel: Kernel) -> None:
    """Let a model's attention be a kernel, wherever the length of the sequences fits it, but for cached generation.

    In place of a mask of pairs, the attention then reads segment ids: `padding_mask` as it stands. With ones and zeros
    there, the tokens are one document and the padding another.
    """
    for block in model.backbone.transformer_layers:
        if isinstance(model.backbone, keras_hub.models.RobertaBackbone):
            fuse_encoder(block._self_attention_layer, kernel)
        elif isinstance(model.backbone, ModernBertBackbone):
            block.kernel = kernel
        elif isinstance(model.backbone, LLAMA):
            fuse_llama(block, kernel)
        else:
            fuse_decoder(block, kernel)


def fuse_encoder(layer: keras.layers.MultiHeadAttention, kernel: Kernel) -> None:
    """Replace, of a layer of RoBERTa, what it makes of a mask [records, 1, tokens], and how it attends with it."""
    mask_of, attend = layer._compute_attention_mask, layer._compute_attention

    def is_fused(mask: Any, length: int) -> bool:
        return mask is not None and mask.shape[1] == 1 and kernel.fits(length)

    def masked(query: Any, value: Any, attention_mask: Any = None, **more: Any) -> Any:
        if is_fused(attention_mask, query.shape[1]):
            return attention_mask
        return mask_of(query, value, attention_mask=attention_mask, **more)

    def fused(query: Any, key: Any, value: Any, attention_mask: Any = None, *more: Any, **others: Any) -> tuple:
        if not is_fused(attention_mask, query.shape[1]):
            return attend(query, key, value, attention_mask, *more, **others)
        scaled = query * ops.cast(layer._inverse_sqrt_key_dim, query.dtype)
        return kernel(scaled, key, value, attention_mask[:, 0], causal=False), None

    layer._compute_attention_mask, layer._compute_attention = masked, fused


def fuse_decoder(block: keras.layers.Layer, kernel: Kernel) -> None:
    """Replace, of a decoder block of Gemma, the mask by segment ids [records, tokens, 1], and how it attends."""
    layer = block.attention
    mask_of, attend = block._compute_attention_mask, layer._compute_attention
    width = layer.head_dim if layer.query_head_dim_normalize else block.hidden_dim // layer.num_query_heads
    window = layer.sliding_window_size if layer.use_sliding_window_attention else None

    def masked(x: Any, padding_mask: Any, *more: Any) -> Any:
        cache = more[-2]
        if cache is None and kernel.fits(x.shape[1]):
            return ops.cast(padding_mask, "int32")[:, :, None]
        return mask_of(x, padding_mask, *more)

    def fused(query: Any, key: Any, value: Any, attention_mask: Any, **more: Any) -> Any:
        if attention_mask.shape[-1] != 1 or not kernel.fits(query.shape[1]):
            return attend(query, key, value, attention_mask, **more)
        scaled = query * ops.cast(1 / np.sqrt(width), query.dtype)
        segments = attention_mask[:, :, 0]
        return kernel(scaled, key, value, segments, causal=True, window=window, soft_cap=layer.logit_soft_cap)

    block._compute_attention_mask, layer._compute_attention = masked, fused


def fuse_llama(block: keras.layers.Layer, kernel: Kernel) -> None:
    """Replace, of a decoder block of Llama or one built like it, what `fuse_decoder` does of Gemma's.

    Of these, Mistral alone has a window in its mask; where Qwen has one, keras-hub's attention on JAX does not see it.
    """
    layer = block._self_attention_layer
    mask_of, attend = block._compute_self_attention_mask, layer._compute_attention
    window = getattr(block, "sliding_window", None)

    def masked(**given: Any) -> Any:
        if given["self_attention_cache"] is None and kernel.fits(given["decoder_sequence"].shape[1]):
            return ops.cast(given["decoder_padding_mask"], "int32")[:, :, None]
        return mask_of(**given)

    def fused(query: Any, key: Any, value: Any, attention_mask: Any = None, **more: Any) -> Any:
        if attention_mask.shape[-1] != 1 or not kernel.fits(query.shape[1]):
            return attend(query, key, value, attention_mask, **more)
        scaled = query * ops.cast(layer._inv_norm_factor, query.dtype)
        return kernel(scaled, key, value, attention_mask[:, :, 0], causal=True, window=window)

    block._compute_self_attention_mask, layer._compute_attention = masked, fused
