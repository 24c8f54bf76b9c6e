"""Folders from untrusted sources: refuse whatever would run code, before any library opens it."""

import json
from collections.abc import Iterator
from pathlib import Path

from tpulm.core.errors import UserError

NO_CODE = "code from data is never run"
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy"}
HDF5 = b"\x89HDF\r\n\x1a\n"
TRUSTED = ("keras", "keras_hub", "keras_nlp", "builtins")


def refuse_code(folder: Path, given: str) -> None:
    """Raise UserError where a JSON file of `folder` asks for code beside it; `given` opens the sentence."""
    for path in sorted(folder.glob("*.json")):
        described = read(path)
        if isinstance(described, dict) and described.get("auto_map"):
            raise UserError(f"{given}, where {path.name} asks to run code of its own (auto_map); {NO_CODE}.")


def refuse_unsafe_preset(folder: Path, given: str) -> None:
    """Raise UserError where a preset folder would run code or open a pickle when it is loaded."""
    refuse_code(folder, given)
    for path in sorted(folder.rglob("*.json")):
        for module, name in named_classes(read(path)):
            if module.split(".")[0] not in TRUSTED or name in ("Lambda", "__lambda__"):
                raise UserError(f"{given}, where {path.name} names {module}.{name}, no class of Keras; {NO_CODE}.")
    for path in sorted(folder.rglob("*.h5")):
        with open(path, "rb") as file:
            if file.read(len(HDF5)) != HDF5:
                raise UserError(f"{given}, where {path.name} is no HDF5 file; allowed: weights in HDF5 or safetensors.")
    weights = {path for end in ("*.h5", "*.safetensors") for path in folder.rglob(end)}
    pickles = sorted(path for path in folder.rglob("*") if path.suffix in PICKLES)
    if pickles and not weights:
        raise UserError(
            f"{given}, whose weights are in {pickles[0].name}, a pickle, which can run code when it is opened; "
            "allowed: weights in HDF5 or safetensors."
        )


def read(path: Path) -> object:
    """Return what a JSON file holds, None where it is none: whoever needs it will say so."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None


def named_classes(value: object) -> Iterator[tuple[str, str]]:
    """Yield module and name of every class that a description by Keras names."""
    if isinstance(value, dict):
        if isinstance(value.get("class_name"), str) and value.get("module") is not None:
            yield str(value["module"]), value["class_name"]
        elif value.get("class_name") in ("Lambda", "__lambda__"):
            yield "keras", value["class_name"]
        for part in value.values():
            yield from named_classes(part)
    elif isinstance(value, list):
        for part in value:
            yield from named_classes(part)
