"""Compute the minimum FLOPs of a training step, for the model FLOPs utilisation (MFU)."""

import math
from collections.abc import Mapping
from typing import Protocol

import keras

from tpulm.core.accelerators import peak_flops
from tpulm.specs.training_step import MaskedArchitecture, TrainingStep


class Built(Protocol):
    """A run whose model is built, with values or without."""

    @property
    def step(self) -> TrainingStep:
        """The training step."""

    @property
    def model(self) -> keras.Model:
        """The model, its trainable variables set."""


def seconds_at_peak(run: Built, devices: Mapping[str, int]) -> float | None:
    """Return the minimum seconds of a step at the published bfloat16 peak of its devices, None without one.

    devices  number of devices by kind, which is the same for all
    """
    (kind, number), *_ = devices.items()
    peak = peak_flops(kind)
    return model_flops_of(run) / (peak * number) if peak else None


def model_flops_of(run: Built) -> float:
    """Return the minimum FLOPs of a step (Chowdhery et al. 2022, appendix B).

    Two per weight of a matrix and token, and 4 x width x length / 2 per token and layer for attention over what
    lies before (all of it in a masked model, or what its local attention sees); the same again for gradients of
    activations, and for gradients of trained weights. The head counts only at predicted tokens.
    """
    step, backbone = run.step, run.model.backbone
    length = step.sequence_length
    table = backbone.token_embedding.embeddings
    inside, everywhere = (
        sum(math.prod(v.shape) for v in part.variables if len(v.shape) > 1 and v.path.endswith("kernel"))
        for part in (backbone, run.model)
    )
    head = everywhere - inside + math.prod(table.shape)
    heads = getattr(backbone, "num_query_heads", None) or backbone.num_heads
    width = heads * (getattr(backbone, "head_dim", None) or backbone.hidden_dim // heads)
    linear = (getattr(backbone, "layer_types", None) or []).count("linear_attention")  # these see a state, not tokens
    seen = backbone.tokens_seen(length) if hasattr(backbone, "tokens_seen") else (backbone.num_layers - linear) * length
    predicted = step.predictions_per_record / length
    if isinstance(step.model.source, MaskedArchitecture):
        width *= 2
    forward = 2 * inside + 2 * head * predicted + 2 * width * seen
    passes = 2 if step.model.only_lora else 3
    return float(step.tokens_per_step * forward * passes)
