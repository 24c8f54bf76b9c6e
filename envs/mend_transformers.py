"""Mend three faults of transformers 4.57.6 with TensorFlow.

- `pipeline(...)` names `torch` without asking whether it is installed, and gives its `dtype` to TensorFlow's models.
- `TF...from_pretrained` walks over an open safetensors file, which is no iterable, when the file has PyTorch's
  names, as nearly all have (huggingface/transformers issue 40028; TensorFlow support is no longer maintained).
- Models of the RoBERTa family take the pad id for 1, whatever their config says, so that the same weights give
  other logits than in PyTorch.

`make` runs this on .venv, for the user's own sessions. The workflow's scripts do not rely on it.
"""

import importlib.util
import os
from pathlib import Path

MENDS = {
    "pipelines/__init__.py": (
        "    if dtype is not None:\n        if isinstance(dtype, str)",
        "    if dtype is not None and is_torch_available():\n        if isinstance(dtype, str)",
    ),
    "modeling_tf_pytorch_utils.py": (
        "    for key in pt_state_dict:\n        new_key = None",
        "    for key in pt_state_dict.keys():\n        new_key = None",
    ),
} | {
    f"models/{name}/modeling_tf_{name}.py": ("self.padding_idx = 1\n", "self.padding_idx = config.pad_token_id\n")
    for name in ("camembert", "longformer", "mpnet", "roberta", "roberta_prelayernorm", "xlm_roberta")
}


def mend(folder: Path, mends: dict[str, tuple[str, str]] = MENDS) -> None:
    """Mend the files of the installed package in `folder`, once. Raises ValueError for another version.

    mends  for each file the lines that are wrong, and those that take their place
    """
    for name, (wrong, right) in mends.items():
        path = folder / name
        text = path.read_text(encoding="utf-8")
        if right in text:
            continue
        if text.count(wrong) != 1:
            raise ValueError(f"{path} is of another version: the lines to mend are not in it")
        # A new file in the place of the old: the installer shares the old one with its cache.
        partial = path.with_suffix(".partial")
        partial.write_text(text.replace(wrong, right), encoding="utf-8")
        os.replace(partial, path)


if __name__ == "__main__":
    mend(Path(importlib.util.find_spec("transformers").origin).parent)
