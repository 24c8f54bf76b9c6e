"""ModernBERT masked language models (Warner et al. 2024): PyTorch's names for their variables. Keras is imported only
where a model is built.

Sizes are those of tpulm.specs.masked_sizes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tpulm.core.errors import UserError
from tpulm.core.random_streams import generator

if TYPE_CHECKING:
    import keras

PYTORCH_CLASS = "ModernBertForMaskedLM"
CUTOFF = 2.0  # standard deviations: no weight is drawn farther from 0, as by transformers' initializer_cutoff_factor
# Kernels that write to the residual stream, and the head's.
OUTPUTS = ("attention_output/kernel", "feedforward_output_dense/kernel", "mlm_head/dense/kernel")
WORDS, BIAS = "token_embedding/embeddings", "mlm_head/output_bias"


def backbone_class() -> type:
    """Return the class of the model without its head."""
    from tpulm.models.modernbert_layers import ModernBertBackbone

    return ModernBertBackbone


def build(sizes: Mapping, vocabulary_size: int, pad_id: int) -> "keras.Model":
    """Return a ModernBertMaskedLM, its weights as Keras draws them. Padding is a document to it, whatever its id."""
    from tpulm.models.modernbert_layers import ModernBertMaskedLM

    return ModernBertMaskedLM(backbone_class()(sizes, vocabulary_size))


def draw_weights(model: "keras.Model", deviation: float, seed: int) -> None:
    """Draw embeddings and kernels anew by `seed` only: normal, but for what is beyond CUTOFF.

    The standard deviation is `deviation` (initializer_range), for OUTPUTS divided by the square root of twice the
    number of layers (Shoeybi et al. 2019).
    """
    from scipy.special import ndtr, ndtri

    smaller = deviation / np.sqrt(2 * model.backbone.num_layers)
    for index, variable in enumerate(model.trainable_variables):
        if variable.path.endswith(("kernel", "embeddings")):
            shares = generator("initial weights", seed, index).random(variable.shape)
            drawn = ndtri(ndtr(-CUTOFF) + shares * (ndtr(CUTOFF) - ndtr(-CUTOFF)))
            scale = smaller if variable.path.endswith(OUTPUTS) else deviation
            variable.assign((drawn * scale).astype(np.float32))


def plain_names(layers: int) -> dict[str, str]:
    """Return PyTorch's name of each variable that it has as it is, or transposed, by our path."""
    found = {
        WORDS: "model.embeddings.tok_embeddings.weight",
        "embeddings_layer_norm/gamma": "model.embeddings.norm.weight",
        "final_layer_norm/gamma": "model.final_norm.weight",
        "mlm_head/dense/kernel": "head.dense.weight",
        "mlm_head/layer_norm/gamma": "head.norm.weight",
        BIAS: "decoder.bias",
    }
    for number in range(layers):
        ours, theirs = f"transformer_layer_{number}", f"model.layers.{number}"
        if number:  # before the first layer, the embeddings are normalized
            found[f"{ours}/attention_layer_norm/gamma"] = f"{theirs}.attn_norm.weight"
        found[f"{ours}/feedforward_layer_norm/gamma"] = f"{theirs}.mlp_norm.weight"
        found[f"{ours}/attention_output/kernel"] = f"{theirs}.attn.Wo.weight"
        found[f"{ours}/feedforward_output_dense/kernel"] = f"{theirs}.mlp.Wo.weight"
    return found


def joined_names(layers: int) -> dict[str, list[str]]:
    """Return the paths of the kernels that PyTorch has in one matrix, one below the other, by its name."""
    found = {}
    for number in range(layers):
        ours, theirs = f"transformer_layer_{number}", f"model.layers.{number}"
        found[f"{theirs}.attn.Wqkv.weight"] = [f"{ours}/{part}/kernel" for part in ("query", "key", "value")]
        found[f"{theirs}.mlp.Wi.weight"] = [f"{ours}/feedforward_{part}_dense/kernel" for part in ("activated", "gate")]
    return found


def to_pytorch(arrays: dict[str, np.ndarray], layers: int, pad_id: int) -> dict[str, np.ndarray]:
    """Return our variables, by path, as those of transformers' ModernBertForMaskedLM, by name.

    Kernels [inputs, outputs], those of attention with the heads as a dimension of their own, become matrices
    [outputs, inputs].
    """
    hidden, found = arrays[WORDS].shape[1], {}
    for ours, theirs in plain_names(layers).items():
        array = arrays[ours]
        if ours.endswith("kernel"):
            array = array.reshape(-1, hidden).T
        found[theirs] = np.ascontiguousarray(array)
    for theirs, parts in joined_names(layers).items():
        found[theirs] = np.ascontiguousarray(np.concatenate([arrays[ours].reshape(hidden, -1).T for ours in parts]))
    return found


def from_pytorch(arrays: dict[str, np.ndarray], layers: int, heads: int, pad_id: int) -> dict[str, np.ndarray]:
    """Return the variables of transformers' ModernBertForMaskedLM, by name, as ours, by path.

    Raises UserError where one is missing.
    """
    names, found = plain_names(layers), {}
    missing = [theirs for theirs in (*names.values(), *joined_names(layers)) if theirs not in arrays]
    if missing:
        raise UserError(
            f"the weights of the model folder lack {missing[0]}; allowed: the weights of a {PYTORCH_CLASS}."
        )
    hidden = arrays[names[WORDS]].shape[1]
    for ours, theirs in names.items():
        array = arrays[theirs]
        if ours.endswith("attention_output/kernel"):
            array = array.T.reshape(heads, -1, hidden)
        elif ours.endswith("kernel"):
            array = array.T
        found[ours] = np.ascontiguousarray(array)
    for theirs, parts in joined_names(layers).items():
        for ours, array in zip(parts, np.split(arrays[theirs], len(parts)), strict=True):
            array = array.T if "feedforward" in ours else array.T.reshape(hidden, heads, -1)
            found[ours] = np.ascontiguousarray(array)
    return found
