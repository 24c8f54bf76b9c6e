"""Read masked language models from folders of transformers 4 or 5, and save them for both.

A saved folder has the files of an export, see MODEL_FILES of tpulm.specs.artifacts. The module imports neither PyTorch
nor TensorFlow.
"""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PretrainedConfig
from transformers.modeling_tf_pytorch_utils import apply_transpose, convert_tf_weight_name_to_pt_weight_name

from tpulm.core import hub
from tpulm.core.errors import UserError, first_line
from tpulm.core.files import write_text
from tpulm.core.foreign_folders import check_folder, check_hdf5
from tpulm.models.tensor_files import save_tensors, weight_files
from tpulm.specs.artifacts import MODEL_WEIGHTS
from tpulm.specs.masked_architectures import find_architecture
from tpulm.specs.masked_sizes import config_recipe, sizes_of


def pytorch_arrays(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a TensorFlow model's variables under PyTorch's names and in its layout (matrices transposed).

    Raises UserError if two variables have one name.
    """
    arrays = {}
    for name, array in weights.items():
        if "#" in name:
            raise UserError(
                f"two variables of this architecture have the name {name.split('#')[0]}, so that a model folder "
                "cannot hold both; train another architecture."
            )
        target, transpose = convert_tf_weight_name_to_pt_weight_name(name, tf_weight_shape=array.shape)
        arrays[target] = np.ascontiguousarray(apply_transpose(transpose, array, pt_to_tf=False))
    return arrays


HDF5 = "tf_model.h5"
# Buffers that old versions of transformers saved; they are computed, not learned.
BUFFERS = ("position_ids", "token_type_ids")
# Names of the first versions of BERT in PyTorch; then the bias of the head, which has had two names, one tied to the
# other, and files may have either.
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
BIASES = {
    "lm_head.decoder.bias": "lm_head.bias",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "predictions.decoder.bias": "predictions.bias",
}


def locate(name: str, revision: str | None, subject: str) -> Path:
    """Return a local folder with the files of a model, without pickles; arguments as for `hub.fetch`."""
    folder = hub.fetch(name, revision, subject, [*hub.TOKENIZER, "*.safetensors"])
    return folder if any(folder.glob("*.safetensors")) else hub.fetch(name, revision, subject, [*hub.TOKENIZER, HDF5])


def read_config(folder: Path, where: str, backend: str) -> PretrainedConfig:
    """Return the transformers config of a folder. Raises UserError, naming `where`, if it cannot be opened."""
    check_folder(folder, f"{where} is {folder}")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # classes of transformers raise any error for wrong values
        raise UserError(
            f"{where} is {folder}, whose config.json cannot be read ({first_line(error)}); allowed: a folder in the "
            "format of transformers."
        ) from None
    find_architecture(config.model_type, where, backend)
    config.torch_dtype = None
    if backend == "jax":
        sizes_of(config_recipe(config.to_dict()), f"{where} is {folder}, whose config")
    return config


def read_weights(folder: Path, where: str) -> dict[str, np.ndarray]:
    """Return the weights of a folder in float32, by the names that transformers 4 and 5 load.

    Raises UserError, naming `where`, for pickles, values that are not finite, or a missing head of the masked model.
    """
    arrays: dict[str, np.ndarray] = {}
    files = weight_files(folder)
    if all(file.is_file() for file in files):
        for file in files:
            arrays |= read_file(file, where)
    elif files == [folder / MODEL_WEIGHTS] and (folder / HDF5).is_file():
        arrays = read_hdf5(folder / HDF5, where)
    else:
        raise UserError(
            f"{where} is {folder}, which has no {MODEL_WEIGHTS}; allowed: weights in safetensors, or in {HDF5} "
            "(TensorFlow)."
        )
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise UserError(f"{where} is {folder}, where {name} has values that are no numbers (NaN or infinity).")
    for tied, name in BIASES.items():
        if tied in arrays and name not in arrays:
            arrays[name] = arrays[tied]
    if not any(
        word in name
        for name in arrays
        for word in ("lm_head", "cls.", "predictions", "vocab_", "pred_layer", "decoder.")
    ):
        raise UserError(
            f"{where} is {folder}, whose weights lack the head that predicts masked tokens; allowed: a masked model."
        )
    return arrays


def read_file(path: Path, where: str) -> dict[str, np.ndarray]:
    """Return the tensors of a safetensors file in float32 without buffers. Raises UserError if it is damaged."""
    try:
        with safe_open(path, "np") as file, np.errstate(over="ignore"):
            names = [name for name in file.keys() if not name.endswith(BUFFERS)]  # noqa: SIM118
            arrays = {name: np.ascontiguousarray(file.get_tensor(name), np.float32) for name in names}
    except (SafetensorError, AttributeError, TypeError) as error:  # the last two for types that NumPy lacks
        raise UserError(f"{where} is {path.parent}, where {path.name} cannot be read ({error}).") from None
    for old, new in OLD_NAMES.items():
        arrays = {name.replace(old, new): array for name, array in arrays.items()}
    return arrays


def read_hdf5(path: Path, where: str) -> dict[str, np.ndarray]:
    """Return the weights of a tf_model.h5 of transformers 4. Raises UserError if it is damaged."""
    import h5py

    check_hdf5(path, f"{where} is {path.parent}")
    named: dict[str, np.ndarray] = {}

    def keep(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):  # below the groups of its layers, under the variable's own name
            named[name.partition("/")[2]] = np.asarray(item, np.float32)

    try:
        with h5py.File(path) as file:
            file.visititems(keep)
    except (OSError, ValueError) as error:
        raise UserError(f"{where} is {path.parent}, where {path.name} cannot be read ({error}).") from None
    return pytorch_arrays(named)


def save_folder(folder: Path, where: str, backend: str, config_json: str, weights: str) -> PretrainedConfig:
    """Write the config.json and model.safetensors of a folder as runs export them; return the config.

    Raises UserError as `read_config` and `read_weights` do.
    """
    config, arrays = read_config(folder, where, backend), read_weights(folder, where)
    save_tensors(weights, arrays)
    write_text(config_json, config.to_json_string())
    return config
