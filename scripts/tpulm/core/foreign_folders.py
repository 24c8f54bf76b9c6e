"""Check external folders - models, presets, tokenizers - before a library opens them.

Code in them is never run, pickles are never opened, and nothing outside of them is read.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from tpulm.core.errors import UserError
from tpulm.core.files import read_json

NO_CODE = "code from data is never run"
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy"}
HDF5 = b"\x89HDF\r\n\x1a\n"
INDEXES = (".index.json", ".weights.json")  # ends of the names of indexes, of transformers and of Keras
LARGEST_JSON = 256 * 2**20  # bytes; the tokenizer of Gemma 3 has 32 MiB
# Classes that Keras's JSON may name: all of these packages, and Keras's dtype policies and initializers.
PACKAGES = {"keras_hub", "keras_nlp"}
OF_KERAS = {"DTypePolicy", "DTypePolicyMap", "QuantizedDTypePolicy", "QuantizedFloat8DTypePolicy"}
INITIALIZERS = "keras.initializers"


def check_folder(folder: Path, source: str) -> None:
    """Raise UserError if a folder has links that leave it, or JSON that names code or files outside of it.

    source  beginning of the message: the config key, and its value
    """
    home = folder.resolve()
    # The cache of huggingface_hub has snapshots, COMMIT/, of links to blobs/.
    allowed = (home, home.parent.parent / "blobs")
    for path in sorted(folder.rglob("*")):
        name, target = path.relative_to(folder), path.resolve()
        if path.is_symlink() and not any(target.is_relative_to(place) for place in allowed):
            raise UserError(f"{source}, where {name} is a link to {target}; allowed: files of this folder.")
        if not (path.is_file() or path.is_dir()):
            raise UserError(f"{source}, where {name} is neither a file nor a folder.")
    for path in sorted(folder.glob("*.json")):
        described = content_of(path, source)
        # config.json, generation_config.json and tokenizer_config.json.
        if path.name.endswith("config.json") and not isinstance(described, dict):
            raise UserError(f"{source}, where {path.name} is no JSON object.")
        if isinstance(described, dict) and described.get("auto_map"):
            raise UserError(f"{source}, where {path.name} requires custom code (auto_map); {NO_CODE}.")
        if path.name.endswith(INDEXES):
            check_index(described, f"{source}, where {path.name}")


def content_of(path: Path, source: str) -> object:
    """Return the content of a JSON file. Raises UserError if it is invalid or too large."""
    if path.stat().st_size > LARGEST_JSON:
        raise UserError(f"{source}, where {path.name} is larger than {LARGEST_JSON // 2**20} MiB.")
    try:
        return read_json(path)
    except UserError as error:
        raise UserError(f"{source}, where {error}") from None
    except ValueError as error:
        raise UserError(f"{source}, where {path.name} is not JSON ({error}).") from None


def check_index(index: object, source: str) -> None:
    """Raise UserError if an index of weights in several files is invalid, or names files of other folders."""
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(files, dict) or not files:
        raise UserError(f"{source} has no weight_map, which says in which file each tensor is.")
    # Keras lists the files of a tensor in several files.
    for file in itertools.chain.from_iterable(
        names if isinstance(names, list) else [names] for names in files.values()
    ):
        if not isinstance(file, str) or Path(file).name != file or "\\" in file:
            raise UserError(f"{source} names {json.dumps(file)[:200]}; allowed: files of this folder.")


def check_preset(folder: Path, source: str) -> None:
    """Raise UserError if a folder is not a base model that can be opened safely, see `check_folder`."""
    check_folder(folder, source)
    for path in sorted(folder.rglob("*.json")):
        for module, name in named_classes(content_of(path, source)):
            of_keras = module.split(".")[0] == "keras" and (name in OF_KERAS or module.startswith(INITIALIZERS))
            if not (module.split(".")[0] in PACKAGES or of_keras) or name in ("Lambda", "__lambda__"):
                raise UserError(
                    f"{source}, where {path.name} names {module}.{name}, which no preset of keras-hub needs; {NO_CODE}."
                )
    for path in sorted(folder.rglob("*.h5")):
        check_hdf5(path, source)
    for path in sorted(path for end in ("*.spm", "tokenizer.model") for path in folder.rglob(end)):
        check_vocabulary(path, source)
    weights = {path for end in ("*.h5", "*.safetensors") for path in folder.rglob(end)}
    pickles = sorted(path for path in folder.rglob("*") if path.suffix in PICKLES)
    if pickles and not weights:
        raise UserError(
            f"{source}, whose weights are in {pickles[0].name}, a pickle, which can run code when it is loaded; "
            "allowed: weights in HDF5 or safetensors."
        )


def named_classes(value: object) -> Iterator[tuple[str, str]]:
    """Yield module and name of every class that Keras's JSON names."""
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            if isinstance(part.get("class_name"), str) and part.get("module") is not None:
                yield str(part["module"]), part["class_name"]
            elif part.get("class_name") in ("Lambda", "__lambda__"):
                yield "keras", part["class_name"]
            left += part.values()
        elif isinstance(part, list):
            left += part


def check_vocabulary(path: Path, source: str) -> None:
    """Raise UserError if a file is not a vocabulary of SentencePiece."""
    from sentencepiece import SentencePieceProcessor

    try:
        SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise UserError(f"{source}, where {path.name} is no vocabulary of SentencePiece ({error}).") from None


def check_hdf5(path: Path, source: str) -> None:
    """Raise UserError if an HDF5 file is damaged, or takes values from other files."""
    import h5py

    with open(path, "rb") as file:
        if file.read(len(HDF5)) != HDF5:
            raise UserError(
                f"{source}, where {path.name} is not an HDF5 file; allowed: weights in HDF5 or safetensors."
            )
    try:
        with h5py.File(path) as file:
            groups = [file]
            while groups:
                group = groups.pop()
                for name in group:
                    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                        raise UserError(f"{source}, where {name} of {path.name} is a link; allowed: arrays.")
                    item = group[name]
                    if isinstance(item, h5py.Group):
                        groups.append(item)
                    elif item.external or item.is_virtual:
                        raise UserError(f"{source}, where {name} of {path.name} is in other files; allowed: arrays.")
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise UserError(f"{source}, where {path.name} cannot be read ({error}).") from None
