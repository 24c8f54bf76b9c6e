"""What is used of the tokenizers of keras-hub 0.32 beyond their documented interface; apart, for jobs without Keras."""

from typing import Any


def tokenizer_of(tokenizer: Any) -> Any:
    """Return what is behind a tokenizer with byte-pair encoding: one of the library `tokenizers`; None for others.

    Why: which characters a token has (for the loss on responses), and the same tokenizer for transformers.
    Until: keras-hub's tokenizers return offsets, and are saved for transformers.
    """
    return getattr(tokenizer, "_tokenizer", None)
