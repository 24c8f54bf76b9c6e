"""Build RoBERTa masked models (Liu et al. 2019), and draw their weights. Importing this imports no Keras.

Sizes are those of tpulm.specs.masked_sizes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tpulm.core.random_streams import generator
from tpulm.specs.masked_sizes import ATTENTION_DROPOUT

if TYPE_CHECKING:
    import keras

PYTORCH_CLASS = "RobertaForMaskedLM"


def backbone_class() -> type:
    """Return the backbone class."""
    from tpulm.models.roberta_layers import RobertaBackbone

    return RobertaBackbone


def build(sizes: Mapping, vocabulary_size: int, pad_id: int) -> "keras.Model":
    """Return a RobertaMaskedLM with Keras's initial weights.

    It lacks the positions up to the pad id, which transformers has and never uses.
    """
    from tpulm.models.roberta_layers import RobertaMaskedLM

    sizes = {ATTENTION_DROPOUT: sizes["hidden_dropout_prob"], **sizes}
    backbone = backbone_class()(sizes, vocabulary_size, sizes["max_position_embeddings"] - pad_id - 1)
    return RobertaMaskedLM(backbone, sizes["layer_norm_eps"])


def draw_weights(model: "keras.Model", deviation: float, seed: int) -> None:
    """Draw embeddings and kernels by `seed`: normal with standard deviation `deviation` (initializer_range)."""
    for index, variable in enumerate(model.trainable_variables):
        if variable.path.endswith(("kernel", "embeddings")):
            drawn = generator("initial weights", seed, index).standard_normal(variable.shape, np.float32)
            variable.assign(drawn * np.float32(deviation))
