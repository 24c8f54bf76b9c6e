"""Adapters of PEFT (LoRA, Hu et al. 2021), merged into the weights of a base model of keras-hub.

PEFT has an A [rank, inputs] and a B [outputs, rank] for each matrix [outputs, inputs] of transformers; Keras' LoRA
factors otherwise (see tpulm.models.peft_adapter), so that it cannot take such an adapter as it is.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tpulm.core.arrays import load_arrays
from tpulm.core.errors import UserError
from tpulm.core.files import read_json
from tpulm.models.transformers_names import LAYER, MODULES, WITH_HEADS

if TYPE_CHECKING:
    import keras

CONFIG, WEIGHTS = ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
TENSOR = re.compile(r"\.layers\.(\d+)\.((?:self_attn|mlp)\.\w+)\.lora_([AB])\.weight$")


def additions(folder: Path, where: str) -> dict[tuple[int, str], np.ndarray]:
    """Return what an adapter adds to each matrix, float32 [outputs, inputs], by block and PyTorch's name of the layer.

    Raises UserError, naming `where`, for what is no plain LoRA adapter of a causal model.
    """
    if not (folder / WEIGHTS).is_file():
        raise UserError(f"{where} is {folder}, which has no {WEIGHTS}; allowed: a folder that PEFT saved.")
    config, tensors = read_json(folder / CONFIG), load_arrays(folder / WEIGHTS)
    odd = [key for key in ("use_dora", "modules_to_save", "fan_in_fan_out", "lora_bias") if config.get(key)]
    if config.get("peft_type") != "LORA" or odd:
        found = odd[0] if odd else f"peft_type {config.get('peft_type')}"
        raise UserError(f"{where} is {folder}, an adapter with {found}; allowed: plain LoRA (peft_type LORA).")
    parts: dict[tuple[int, str], dict[str, np.ndarray]] = {}
    for name, array in tensors.items():
        match = TENSOR.search(name)
        if not match or match[2] not in MODULES.values():
            raise UserError(f"{where} is {folder}, which adapts {name}; allowed: {', '.join(set(MODULES.values()))}.")
        parts.setdefault((int(match[1]), match[2]), {})[match[3]] = array.astype(np.float32)
    return {place: scale(config, *place) * (pair["B"] @ pair["A"]) for place, pair in parts.items()}


def scale(config: Mapping[str, Any], block: int, module: str) -> float:
    """Return what PEFT multiplies the product of a layer by: alpha / rank, or alpha / sqrt(rank) with use_rslora."""
    name = f"model.layers.{block}.{module}"

    def of(pattern: str, default: float) -> float:
        patterns = config.get(pattern) or {}
        return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", name)), default)

    rank, alpha = of("rank_pattern", config["r"]), of("alpha_pattern", config["lora_alpha"])
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def merge_peft(model: "keras.Model", folder: Path, where: str) -> int:
    """Add an adapter of PEFT to the kernels of a causal model; return how many it changes.

    Raises UserError, naming `where`, where the adapter is of another model.
    """
    left = additions(folder, where)
    count = len(left)
    for variable in model.backbone.variables:
        layer, _, kind = variable.path.rpartition("/")
        match = LAYER.match(layer)
        if kind != "kernel" or not match or match[2] not in MODULES:
            continue
        added = left.pop((int(match[1]), MODULES[match[2]]), None)
        if added is None:
            continue
        if added.size != math.prod(variable.shape):
            raise UserError(
                f"{where} is {folder}, which adds {list(added.shape)} to {layer}, of the shape {list(variable.shape)}; "
                "allowed: an adapter of this base model."
            )
        variable.assign(np.asarray(variable, np.float32) + in_keras(layer, match[2], added, tuple(variable.shape)))
    if left:
        block, module = min(left)
        raise UserError(f"{where} is {folder}, which adapts {module} of block {block}, which the base model has not.")
    return count


def in_keras(path: str, layer: str, matrix: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a matrix [outputs, inputs] as a kernel of keras-hub has it; `path` of the layer, `shape` of the kernel."""
    if layer in WITH_HEADS and path.startswith("decoder_block"):  # [heads, hidden, width], as Gemma's
        heads, hidden, width = shape
        return matrix.T.reshape(hidden, heads, width).swapaxes(0, 1)
    return matrix.T.reshape(shape)
