"""The sizes of a preset's backbone, without its weights, which a plan does not need.

Needs tpulm.training.runtime.start first.
"""

from dataclasses import replace
from pathlib import Path

import huggingface_hub
import keras
import keras_hub

from tpulm.compat.keras_hub import read_preset_file
from tpulm.config.published_models import published
from tpulm.config.training_step import CausalArchitecture, ModelSpec, Preset
from tpulm.core.errors import UserError
from tpulm.core.files import read_json
from tpulm.models.causal import backbone_class


class Unreachable(UserError):
    """What a plan needs to know could not be fetched: no result, another time it may be."""


def without_preset(spec: ModelSpec) -> ModelSpec:
    """Return a spec that says family and sizes where it named a preset. Raises UserError, see `preset_backbone`."""
    if not isinstance(spec.source, Preset):
        return spec
    family, arguments = preset_backbone(spec.source.name, spec.source.revision)
    sizes = {key: value for key, value in arguments.items() if key not in ("name", "trainable", "dtype")}
    vocabulary_size = sizes.pop("vocabulary_size")
    return replace(spec, source=CausalArchitecture(family.__name__, sizes, vocabulary_size))


def preset_backbone(preset: str, revision: str | None) -> tuple[type, dict]:
    """Return class and arguments of a preset's backbone: of a local folder, published, or asked from its hub.

    Raises Unreachable where the hub cannot be asked, UserError for a model that keras-hub does not know.
    """
    if (Path(preset) / "config.json").is_file():
        return backbone_class(preset), read_json(Path(preset) / "config.json")["config"]
    known = published(preset)
    if known:
        return getattr(keras_hub.models, known[0]), known[1]
    try:
        if preset.startswith("hf://"):
            name = preset.removeprefix("hf://")
            config = read_json(huggingface_hub.hf_hub_download(name, "config.json", revision=revision))
        else:
            config = read_preset_file(preset, "config.json")
    except Exception as error:
        raise Unreachable(f"the sizes of {preset} cannot be had: {' '.join(str(error).split())[:200]}") from None
    family = keras.saving.get_registered_object(config.get("registered_name", ""))
    if family is None:
        raise UserError(f"{preset} is not in Keras's format, or a model that keras-hub does not know.")
    return family, config["config"]
