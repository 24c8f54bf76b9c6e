"""RoBERTa masked language models: PyTorch's names for their variables. Keras is imported only where
a model is built.

Sizes are those of tpulm.specs.masked_sizes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tpulm.core.errors import UserError
from tpulm.core.random_streams import generator
from tpulm.specs.masked_sizes import ATTENTION_DROPOUT

if TYPE_CHECKING:
    import keras

PYTORCH_CLASS = "RobertaForMaskedLM"


def backbone_class() -> type:
    """Return the class of the model without its head."""
    from tpulm.models.roberta_layers import RobertaBackbone

    return RobertaBackbone


def build(sizes: Mapping, vocabulary_size: int, pad_id: int) -> "keras.Model":
    """Return a RobertaMaskedLM, its weights as Keras draws them.

    Of transformers' positions, those up to the pad id are never used; here there are only the others.
    """
    from tpulm.models.roberta_layers import RobertaMaskedLM

    sizes = {ATTENTION_DROPOUT: sizes["hidden_dropout_prob"], **sizes}
    backbone = backbone_class()(sizes, vocabulary_size, sizes["max_position_embeddings"] - pad_id - 1)
    return RobertaMaskedLM(backbone, sizes["layer_norm_eps"])


def draw_weights(model: "keras.Model", deviation: float, seed: int) -> None:
    """Draw embeddings and kernels anew: normal with this standard deviation (initializer_range), by `seed` only."""
    for index, variable in enumerate(model.trainable_variables):
        if variable.path.endswith(("kernel", "embeddings")):
            drawn = generator("initial weights", seed, index).standard_normal(variable.shape, np.float32)
            variable.assign(drawn * np.float32(deviation))


def names(layers: int) -> dict[str, str]:
    """Return PyTorch's name of each variable by its path in our model, word and position embeddings aside."""
    plain = {
        "embeddings_layer_norm": "roberta.embeddings.LayerNorm",
        "mlm_head/intermediate_dense": "lm_head.dense",
        "mlm_head/intermediate_layer_norm": "lm_head.layer_norm",
    }
    for number in range(layers):
        ours, theirs = f"transformer_layer_{number}", f"roberta.encoder.layer.{number}"
        for part in ("query", "key", "value"):
            plain[f"{ours}/self_attention_layer/{part}"] = f"{theirs}.attention.self.{part}"
        plain[f"{ours}/self_attention_layer/attention_output"] = f"{theirs}.attention.output.dense"
        plain[f"{ours}/self_attention_layer_norm"] = f"{theirs}.attention.output.LayerNorm"
        plain[f"{ours}/feedforward_intermediate_dense"] = f"{theirs}.intermediate.dense"
        plain[f"{ours}/feedforward_output_dense"] = f"{theirs}.output.dense"
        plain[f"{ours}/feedforward_layer_norm"] = f"{theirs}.output.LayerNorm"
    kinds = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}
    found = {"mlm_head/output_bias": "lm_head.bias"}
    for ours, theirs in plain.items():
        for kind in ("gamma", "beta") if ours.endswith("norm") else ("kernel", "bias"):
            found[f"{ours}/{kind}"] = f"{theirs}.{kinds[kind]}"
    return found


WORDS, POSITIONS = "embeddings/token_embedding/embeddings", "embeddings/position_embedding/embeddings"
PYTORCH_WORDS = "roberta.embeddings.word_embeddings.weight"
PYTORCH_POSITIONS = "roberta.embeddings.position_embeddings.weight"
PYTORCH_TYPES = "roberta.embeddings.token_type_embeddings.weight"


def to_pytorch(arrays: dict[str, np.ndarray], layers: int, pad_id: int) -> dict[str, np.ndarray]:
    """Return the variables of our model, by path, as those of transformers' RobertaForMaskedLM, by name.

    Kernels [inputs, outputs], those of attention with the heads as a dimension of their own, become matrices
    [outputs, inputs]; positions get the rows up to the pad id, of zeros; the one token type is zero.
    """
    hidden = arrays[WORDS].shape[1]
    positions = arrays[POSITIONS]
    found = {
        PYTORCH_WORDS: arrays[WORDS],
        PYTORCH_POSITIONS: np.concatenate([np.zeros((pad_id + 1, hidden), positions.dtype), positions]),
        PYTORCH_TYPES: np.zeros((1, hidden), positions.dtype),
    }
    for ours, theirs in names(layers).items():
        array = arrays[ours]
        if ours.endswith("attention_output/kernel"):
            array = array.reshape(-1, hidden)
        elif array.ndim == 3:
            array = array.reshape(hidden, -1)
        found[theirs] = np.ascontiguousarray(array.T if array.ndim == 2 and ours.endswith("kernel") else array.ravel())
    return found


def from_pytorch(arrays: dict[str, np.ndarray], layers: int, heads: int, pad_id: int) -> dict[str, np.ndarray]:
    """Return the variables of transformers' RobertaForMaskedLM, by name, as those of our model, by path.

    Raises UserError where one is missing.
    """
    missing = [theirs for theirs in (PYTORCH_WORDS, PYTORCH_POSITIONS, *names(layers).values()) if theirs not in arrays]
    if missing:
        raise UserError(
            f"the weights of the model folder lack {missing[0]}; allowed: the weights of a RobertaForMaskedLM."
        )
    hidden = arrays[PYTORCH_WORDS].shape[1]
    found = {
        WORDS: arrays[PYTORCH_WORDS],
        POSITIONS: arrays[PYTORCH_POSITIONS][pad_id + 1 :] + arrays[PYTORCH_TYPES][0],
    }
    for ours, theirs in names(layers).items():
        array = arrays[theirs]
        if ours.endswith("attention_output/kernel"):
            array = array.T.reshape(heads, -1, hidden)
        elif "self_attention_layer/" in ours and ours.endswith("kernel"):
            array = array.T.reshape(hidden, heads, -1)
        elif "self_attention_layer/" in ours and not ours.endswith("attention_output/bias"):
            array = array.reshape(heads, -1)
        elif ours.endswith("kernel"):
            array = array.T
        found[ours] = np.ascontiguousarray(array)
    return found
