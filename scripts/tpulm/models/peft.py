"""Convert the LoRA variables of Keras to tensors and config of PEFT.

PEFT factors the matrix [outputs, inputs] of a projection as B' @ A' (Hu et al. 2021). Keras factors the last axis of a
kernel, whatever it is:

- A kernel with the outputs last, [..., outputs], as A [..., rank] @ B [rank, outputs]: a feed-forward layer, and the
  attention's output projection, whose inputs are heads and their width. PEFT has both transposed, the inputs as one.
- A query, key or value projection has heads, too: Gemma's [heads, hidden, width] as A [heads, hidden, rank] and
  B [rank, width], Llama's and its like's [hidden, heads, width] with A [hidden, heads, rank]. Each head has its own A,
  all share B. With A' = the heads' A one above the other, transposed, and B' block-diagonal, a transposed B for each
  head, both give the same matrix; PEFT's rank is heads * rank.
"""

from collections import defaultdict

import numpy as np

from tpulm.core.errors import UserError
from tpulm.models.transformers_causal import LAYER, MODULES
from tpulm.models.weight_names import WITH_HEADS


def scaled(arrays: dict[str, np.ndarray], factor: float) -> dict[str, np.ndarray]:
    """Return LoRA variables, by Keras path, that add `per_head_factors` times as much: every B is multiplied by it."""
    return {
        path: (array * factor).astype(array.dtype) if path.endswith("lora_kernel_b") else array
        for path, array in arrays.items()
    }


def per_head_factors(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return PEFT's A' [heads * rank, hidden] and B' [heads * width, heads * rank] for Keras' A and B.

    a  [heads, hidden, rank]; b  [rank, width]
    """
    heads, hidden, rank = a.shape
    lora_a = a.transpose(0, 2, 1).reshape(heads * rank, hidden)
    return lora_a, np.kron(np.eye(heads, dtype=b.dtype), b.T)


def tensors_of(block: str, layer: str, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return PEFT's A' and B', float32, for Keras' A and B of a layer.

    block  path of the layer, which begins with its block; layer  keras-hub's name of it, a key of MODULES
    """
    a, b = a.astype(np.float32), b.astype(np.float32)
    if layer in WITH_HEADS:
        lora_a, lora_b = per_head_factors(a if block.startswith("decoder_block") else a.swapaxes(0, 1), b)
    else:
        lora_a, lora_b = a.reshape(-1, a.shape[-1]).T, b.T
    return np.ascontiguousarray(lora_a), np.ascontiguousarray(lora_b)


def peft(
    arrays: dict[str, np.ndarray], base: str | None, revision: str | None = None
) -> tuple[dict[str, np.ndarray], dict]:
    """Return tensors and adapter_config of PEFT for the LoRA variables of a causal model, float32.

    arrays  by Keras path, such as decoder_block_0/attention/query/lora_kernel_a; what is added is A @ B, unscaled
    base    name of the base model on the Hugging Face hub, and its revision; None where it has none
    Raises UserError for a variable without a counterpart in transformers.
    """
    tensors, ranks = {}, defaultdict[str, dict[str, int]](dict)
    for path in arrays:
        layer, kind = path.rsplit("/", 1)
        match = LAYER.match(layer)
        if not match or match[2] not in MODULES or kind not in ("lora_kernel_a", "lora_kernel_b"):
            raise UserError(f"the variable {path} has no counterpart among PEFT's {', '.join(set(MODULES.values()))}.")
        if kind == "lora_kernel_b":
            continue
        a, b = (np.asarray(arrays[f"{layer}/lora_kernel_{part}"]) for part in "ab")
        lora_a, lora_b = tensors_of(layer, match[2], a, b)
        module = f"layers.{match[1]}.{MODULES[match[2]]}"
        name = f"base_model.model.model.{module}"
        tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"] = lora_a, lora_b
        ranks[MODULES[match[2]].split(".")[1]][module] = len(lora_a)
    rank = max(n for by_block in ranks.values() for n in by_block.values())
    others: dict[str, int] = {}  # the rank depends on the number of heads, which may differ between blocks
    for kind, by_block in ranks.items():
        named = {kind: next(iter(by_block.values()))} if len(set(by_block.values())) == 1 else by_block
        others |= {module: n for module, n in named.items() if n != rank}
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
