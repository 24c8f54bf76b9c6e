"""LoRA weights in the form of PEFT: written of those of Keras, and merged into the weights of a base model.

PEFT factors the matrix [outputs, inputs] of a projection as B' @ A' (Hu et al. 2021). Keras factors the last axis of a
kernel, whatever it is:

- A kernel with the outputs last, [..., outputs], as A [..., rank] @ B [rank, outputs]: a feed-forward layer, and the
  attention's output projection, whose inputs are heads and their width. PEFT has both transposed, the inputs as one.
- A query, key or value projection has heads, too: Gemma's [heads, hidden, width] as A [heads, hidden, rank] and
  B [rank, width], Llama's and its like's [hidden, heads, width] with A [hidden, heads, rank]. Each head has its own A,
  all share B. With A' = the heads' A one above the other, transposed, and B' block-diagonal, a transposed B for each
  head, both give the same matrix; PEFT's rank is heads * rank.

PEFT has an A [rank, inputs] and a B [outputs, rank] for each matrix [outputs, inputs] of transformers; Keras' LoRA
factors otherwise, so that it cannot take such an adapter as it is.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tpulm.core.errors import UserError, describe
from tpulm.core.files import read_json
from tpulm.core.foreign_folders import read_safetensors
from tpulm.models.transformers_causal import LAYER, MODULES, WITH_HEADS

if TYPE_CHECKING:
    import keras

LARGEST = 1e6  # of a rank, or of the alpha that it is divided by
CONFIG, WEIGHTS = ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
# Of names of layers. Another expression may take for ever.
PATTERN = re.compile(r"(?:\\d\+?|\\\.|[\w.^$|])*")
TENSOR = re.compile(r"\.layers\.(\d{1,5})\.((?:self_attn|mlp)\.\w+)\.lora_([AB])\.weight$")


def scaled(arrays: dict[str, np.ndarray], factor: float) -> dict[str, np.ndarray]:
    """Return LoRA variables, by Keras path, that add `factor` times as much: every B is multiplied by it."""
    return {
        path: (array * factor).astype(array.dtype) if path.endswith("lora_kernel_b") else array
        for path, array in arrays.items()
    }


def factor(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return PEFT's A' [heads * rank, hidden] and B' [heads * width, heads * rank] for Keras' A and B.

    a  [heads, hidden, rank]; b  [rank, width]
    """
    heads, hidden, rank = a.shape
    lora_a = a.transpose(0, 2, 1).reshape(heads * rank, hidden)
    return lora_a, np.kron(np.eye(heads, dtype=b.dtype), b.T)


def tensors_of(block: str, layer: str, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return PEFT's A' and B', float32, for Keras' A and B of a layer; `block` as its path begins."""
    a, b = a.astype(np.float32), b.astype(np.float32)
    if layer in WITH_HEADS:
        lora_a, lora_b = factor(a if block.startswith("decoder_block") else a.swapaxes(0, 1), b)
    else:
        lora_a, lora_b = a.reshape(-1, a.shape[-1]).T, b.T
    return np.ascontiguousarray(lora_a), np.ascontiguousarray(lora_b)


def peft(
    arrays: dict[str, np.ndarray], base: str | None, revision: str | None = None
) -> tuple[dict[str, np.ndarray], dict]:
    """Return tensors and adapter_config of PEFT for the LoRA variables of a causal model, float32.

    arrays  by Keras path, such as decoder_block_0/attention/query/lora_kernel_a; what is added is A @ B, unscaled
    base    name of the base model on the Hugging Face hub, and its revision; None where it has none
    Raises UserError for a variable that has no place in a model of transformers.
    """
    tensors, ranks = {}, {}
    for path in arrays:
        layer, kind = path.rsplit("/", 1)
        match = LAYER.match(layer)
        if not match or match[2] not in MODULES or kind not in ("lora_kernel_a", "lora_kernel_b"):
            raise UserError(f"the variable {path} has no counterpart among PEFT's {', '.join(set(MODULES.values()))}.")
        if kind == "lora_kernel_b":
            continue
        a, b = (np.asarray(arrays[f"{layer}/lora_kernel_{part}"]) for part in "ab")
        lora_a, lora_b = tensors_of(layer, match[2], a, b)
        name = f"base_model.model.model.layers.{match[1]}.{MODULES[match[2]]}"
        tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"] = lora_a, lora_b
        ranks[MODULES[match[2]].split(".")[1]] = len(lora_a)
    rank = max(ranks.values())
    others = {module: n for module, n in ranks.items() if n != rank}  # the rank depends on the number of heads
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "revision": revision,
        "r": rank,
        "lora_alpha": rank,  # PEFT scales by lora_alpha / r: by 1
        "rank_pattern": others,
        "alpha_pattern": others,
        "target_modules": sorted(ranks),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    return tensors, config


class Addition(NamedTuple):
    """What an adapter adds to a matrix [outputs, inputs]: factor * b @ a.

    a  float32 [rank, inputs]; b  float32 [outputs, rank]
    """

    factor: float
    a: np.ndarray
    b: np.ndarray


def additions(folder: Path, where: str) -> dict[tuple[int, str], Addition]:
    """Return what an adapter adds to each matrix, by block and PyTorch's name of the layer.

    Raises UserError, naming `where`, for what is no plain LoRA adapter of a causal model.
    """
    given = f"{where} is {folder}"
    if not (folder / WEIGHTS).is_file():
        raise UserError(f"{given}, which has no {WEIGHTS}; allowed: a folder that PEFT saved.")
    config, tensors = read_json(folder / CONFIG), read_safetensors(folder / WEIGHTS, given)
    odd = [key for key in ("use_dora", "modules_to_save", "fan_in_fan_out", "lora_bias") if config.get(key)]
    if config.get("peft_type") != "LORA" or odd:
        found = odd[0] if odd else f"peft_type {config.get('peft_type')}"
        raise UserError(f"{given}, an adapter with {found}; allowed: plain LoRA (peft_type LORA).")
    parts: dict[tuple[int, str], dict[str, np.ndarray]] = {}
    for name, array in tensors.items():
        match = TENSOR.search(name)
        if not match or match[2] not in MODULES.values():
            raise UserError(f"{given}, which adapts {name}; allowed: {', '.join(set(MODULES.values()))}.")
        parts.setdefault((int(match[1]), match[2]), {})[match[3]] = array
    return {place: addition(config, place, pair, given) for place, pair in parts.items()}


def addition(config: Mapping[str, Any], place: tuple[int, str], pair: Mapping[str, np.ndarray], given: str) -> Addition:
    """Return what an adapter adds to the matrix of block and layer `place`.

    pair  its A and B. Raises UserError, whose sentence begins with `given`.
    """
    layer = f"model.layers.{place[0]}.{place[1]}"
    a, b = pair.get("A", np.empty(0)), pair.get("B", np.empty(0))
    if a.ndim != 2 or b.ndim != 2 or len(a) != b.shape[1]:
        raise UserError(f"{given}, whose A {list(a.shape)} and B {list(b.shape)} of {layer} do not fit each other.")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise UserError(f"{given}, where A or B of {layer} has values that are no numbers (NaN or infinity).")
    values: dict[str, Any] = {"r": config.get("r"), "lora_alpha": config.get("lora_alpha")}
    for key, pattern in (("r", "rank_pattern"), ("lora_alpha", "alpha_pattern")):
        patterns = config.get(pattern) or {}
        if not isinstance(patterns, dict):
            raise UserError(f"{given}, whose {pattern} is {describe(patterns)}; allowed: a JSON object.")
        for expression, value in patterns.items():
            if not PATTERN.fullmatch(expression):
                raise UserError(
                    f"{given}, whose {pattern} has {describe(expression)}; allowed: names of layers, with "
                    r"\d, \d+, ^, $ and |."
                )
            if re.match(rf"(.*\.)?({expression})$", layer):
                values[key] = value
                break
        if not isinstance(values[key], int | float) or not 0 < values[key] < LARGEST:
            said = f"{given}, whose {key} is {describe(values[key])} for {layer}"
            raise UserError(f"{said}; allowed: numbers above 0 and below {LARGEST:,.0f}.")
    rank, alpha = values["r"], values["lora_alpha"]
    # As PEFT scales, with rank-stabilized LoRA (Kalajdzievski 2023) by the root.
    return Addition(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank), a, b)


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
        if len(added.b) * added.a.shape[1] != math.prod(variable.shape):
            raise UserError(
                f"{where} is {folder}, which adds {[len(added.b), added.a.shape[1]]} to {layer}, of the shape "
                f"{list(variable.shape)}; allowed: an adapter of this base model."
            )
        with np.errstate(over="ignore", invalid="ignore"):
            matrix = np.float32(added.factor) * (added.b @ added.a)
        if not np.isfinite(matrix).all():
            raise UserError(f"{where} is {folder}, which adds values to {layer} that are no numbers (NaN or infinity).")
        variable.assign(np.asarray(variable, np.float32) + in_keras(layer, match[2], matrix, tuple(variable.shape)))
    if left:
        block, module = min(left)
        raise UserError(
            f"{where} is {folder}, which adapts {module} of block {block}, which the base model does not have."
        )
    return count


def in_keras(path: str, layer: str, matrix: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a matrix [outputs, inputs] as a kernel of keras-hub has it; `path` of the layer, `shape` of the kernel."""
    if layer in WITH_HEADS and path.startswith("decoder_block"):  # [heads, hidden, width], as Gemma's
        heads, hidden, width = shape
        return matrix.T.reshape(hidden, heads, width).swapaxes(0, 1)
    return matrix.T.reshape(shape)
