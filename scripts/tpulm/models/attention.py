"""The implementation of a model's attention: which one its devices, its sizes and the config allow, and its use.

plain   what keras-hub does: scores of all pairs of tokens, in memory
splash  on a TPU from v4 on; cudnn  on an NVIDIA GPU: see tpulm.models.fused_attention

Trainer and plan both ask here, so that what trains is what was planned. Needs tpulm.training.runtime.start first.
"""

import re
from typing import Any, NamedTuple

import keras

from tpulm.compat import keras_hub
from tpulm.models.fused_attention import Kernel, length_error
from tpulm.models.sharding import Sharded

FIRST_TPU = 4  # the compiler refuses the kernel's bfloat16 multiplication for those before
FIRST_GPU = (8, 0)  # compute capability of Ampere, and of Hopper
HOPPER = (9, 0)


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
    if hasattr(model.backbone, "use_kernel"):
        model.backbone.use_kernel(kernel)
    else:
        for block in model.backbone.transformer_layers:
            keras_hub.attend_by_kernel(block, kernel)
