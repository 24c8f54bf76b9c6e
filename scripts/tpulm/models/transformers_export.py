"""Save the variables of a masked language model as a file that every version of transformers loads."""

import numpy as np
from safetensors.numpy import save_file
from transformers.modeling_tf_pytorch_utils import apply_transpose, convert_tf_weight_name_to_pt_weight_name

from tpulm.core.errors import UserError
from tpulm.core.files import atomic_write


def pytorch_arrays(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a TensorFlow model's variables under PyTorch's names and in its layout (matrices transposed).

    Raises UserError where two variables have one name.
    """
    arrays = {}
    for name, array in weights.items():
        if "#" in name:
            raise UserError(
                f"two variables of this architecture have the name {name.split('#')[0]}, which a model folder cannot "
                "tell apart; train another architecture."
            )
        target, transpose = convert_tf_weight_name_to_pt_weight_name(name, tf_weight_shape=array.shape)
        arrays[target] = np.ascontiguousarray(apply_transpose(transpose, array, pt_to_tf=False))
    return arrays


def save_model(path: str, arrays: dict[str, np.ndarray]) -> None:
    """Write `model.safetensors`, arrays by PyTorch's names, marked `format: pt`, whole or not at all."""
    with atomic_write(path) as partial:
        save_file(arrays, partial, metadata={"format": "pt"})
