"""What is used of the tokenizers of keras-hub 0.32 beyond their documented interface; apart, for jobs without Keras."""

from typing import Any


def tokenizer_of(tokenizer: Any) -> Any:
    """Return the tokenizer of the library `tokenizers` that a byte-pair tokenizer wraps; None for others.

    Why: which characters a token has (for the loss on responses), and the same tokenizer for transformers. And
    keras-hub gives its pattern of words to the library as a plain string, which no text contains, so that its
    tokenizers merge across words, see `tpulm.tokenization.byte_level.cut_words`.
    Until: keras-hub's tokenizers return offsets, are saved for transformers, and give the library a Regex.
    """
    return getattr(tokenizer, "_tokenizer", None)
