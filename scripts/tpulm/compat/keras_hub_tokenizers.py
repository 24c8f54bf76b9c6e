"""Private names of the tokenizers of keras-hub 0.32, in a module that jobs without Keras can import."""

from typing import Any


def tokenizer_of(tokenizer: Any) -> Any:
    """Return the tokenizer of the library `tokenizers` that a byte-pair tokenizer wraps; None for others.

    Why: it returns the characters of tokens, for the loss on responses, and can be saved for transformers. keras-hub
    passes its pattern of words to it as a plain string, which no text contains, so that keras-hub's tokenizers merge
    across words, see `tpulm.tokenization.byte_level.cut_words`.
    Until: keras-hub's tokenizers return offsets, are saved for transformers, and pass a Regex.
    """
    return getattr(tokenizer, "_tokenizer", None)
