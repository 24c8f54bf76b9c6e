"""Build ModernBERT masked models (Warner et al. 2024), and draw their weights. Importing this imports no Keras.

Sizes are those of tpulm.specs.masked_sizes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tpulm.core.random_streams import generator

if TYPE_CHECKING:
    import keras

PYTORCH_CLASS = "ModernBertForMaskedLM"
CUTOFF = 2.0  # standard deviations: no weight is drawn farther from 0, as by transformers' initializer_cutoff_factor
# Kernels that write to the residual stream, and the head's.
OUTPUTS = ("attn.Wo/kernel", "mlp.Wo/kernel", "head/dense/kernel")


def backbone_class() -> type:
    """Return the backbone class."""
    from tpulm.models.modernbert_layers import ModernBertBackbone

    return ModernBertBackbone


def build(sizes: Mapping, vocabulary_size: int, pad_id: int) -> "keras.Model":
    """Return a ModernBertMaskedLM with Keras's initial weights; it has no use for the pad id."""
    from tpulm.models.modernbert_layers import ModernBertMaskedLM

    return ModernBertMaskedLM(backbone_class()(sizes, vocabulary_size))


def draw_weights(model: "keras.Model", deviation: float, seed: int) -> None:
    """Draw embeddings and kernels by `seed`: normal, without values beyond CUTOFF.

    The standard deviation is `deviation` (initializer_range), for OUTPUTS divided by the square root of twice the
    number of layers (Shoeybi et al. 2019).
    """
    from scipy.special import ndtr, ndtri

    smaller = deviation / np.sqrt(2 * model.backbone.num_layers)
    for index, variable in enumerate(model.trainable_variables):
        if variable.path.endswith(("kernel", "embeddings")):
            quantiles = generator("initial weights", seed, index).random(variable.shape)
            drawn = ndtri(ndtr(-CUTOFF) + quantiles * (ndtr(CUTOFF) - ndtr(-CUTOFF)))
            scale = smaller if variable.path.endswith(OUTPUTS) else deviation
            variable.assign((drawn * scale).astype(np.float32))
