"""What is changed of the TensorFlow models of transformers 4.57, the last version that has them."""

from collections.abc import Iterable
from typing import Any


def follow_pad_id(layers: Iterable[Any], pad_id: int) -> None:
    """Let the layers of a model that count positions from the pad id count from this one.

    Why: models of the RoBERTa family take the pad id for 1, whatever the config says. PyTorch's follow the config, and
    the same weights would give other logits.
    Until: `backend: tensorflow` goes.
    """
    for layer in layers:
        if hasattr(layer, "padding_idx"):
            layer.padding_idx = pad_id
