"""LoRA weights of Keras in the form that PEFT reads.

Keras factors the kernel of a projection with heads, [heads, hidden, head_dim], as A @ B with A of shape
[heads, hidden, rank] and B of shape [rank, head_dim]: each head has its own A, all share B. PEFT factors the
matrix [heads * head_dim, hidden] as B' @ A' (Hu et al. 2021). With A' = the heads' A one above the other,
transposed, and B' block-diagonal, a transposed B for each head, both give the same matrix; PEFT's rank is
heads * rank.
"""

import re

import numpy as np

from tpulm.core.errors import UserError

LAYER = re.compile(r"(\d+)/(?:self_)?attention/(query|value)$")
MODULES = {"query": "q_proj", "value": "v_proj"}


def factor(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return PEFT's A' [heads * rank, hidden] and B' [heads * head_dim, heads * rank] for Keras' A and B.

    a  [heads, hidden, rank]; b  [rank, head_dim]
    """
    heads, hidden, rank = a.shape
    lora_a = a.transpose(0, 2, 1).reshape(heads * rank, hidden)
    lora_b = np.kron(np.eye(heads, dtype=b.dtype), b.T)
    return np.ascontiguousarray(lora_a), lora_b


def peft(
    arrays: dict[str, np.ndarray], base: str | None, revision: str | None = None
) -> tuple[dict[str, np.ndarray], dict]:
    """Return tensors and adapter_config of PEFT for the LoRA variables of a Gemma, float32.

    arrays  by Keras path, such as decoder_block_0/attention/query/lora_kernel_a
    base    name of the base model on the Hugging Face hub, and its revision; None where it has none
    Raises UserError for a variable that has no place in a Gemma of transformers.
    """
    tensors, ranks = {}, {}
    for path in arrays:
        layer, kind = path.rsplit("/", 1)
        match = LAYER.search(layer)
        if not match or kind not in ("lora_kernel_a", "lora_kernel_b"):
            raise UserError(f"the variable {path} has no counterpart among PEFT's q_proj and v_proj.")
        if kind == "lora_kernel_b":
            continue
        module = MODULES[match[2]]
        lora_a, lora_b = factor(*(np.asarray(arrays[f"{layer}/lora_kernel_{part}"], np.float32) for part in "ab"))
        name = f"base_model.model.model.layers.{match[1]}.self_attn.{module}"
        tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"] = lora_a, lora_b
        ranks[module] = len(lora_a)
    rank = ranks["q_proj"]
    others = {module: n for module, n in ranks.items() if n != rank}  # fewer key-value than query heads
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "revision": revision,
        "r": rank,
        "lora_alpha": rank,  # PEFT scales by lora_alpha / r, Keras by 1
        "rank_pattern": others,
        "alpha_pattern": others,
        "target_modules": sorted(ranks),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    return tensors, config
