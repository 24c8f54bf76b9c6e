"""How a tokenizer cuts a text. Needs tpulm.training.runtime.start first, for vocabularies that only Keras opens."""

from pathlib import Path

from tokenizers import Encoding, Tokenizer

from tpulm.core.errors import UserError
from tpulm.demo.choice import Prompt, Settings, Tell
from tpulm.specs.artifacts import TOKENIZER_FILES
from tpulm.tokenization.causal import CausalTokenizer, load_tokenizer
from tpulm.tokenization.folder import load, special_ids

SPACE = "\u2581"  # stands for one in pieces


def shown(tokenizer: CausalTokenizer, token: int) -> str:
    """Return a token of a causal model as it stands in a text."""
    plain = getattr(tokenizer, "behind", None) is None or token in tokenizer.special.values()
    return tokenizer.piece(token).replace(SPACE, " ") if plain else tokenizer.decode([token])


def shown_of(tokenizer: Tokenizer, encoding: Encoding) -> list[str]:
    """Return the tokens of a masked model with spaces for what stands for them; those of bytes decoded one by one."""
    if of_bytes(tokenizer):
        return [piece_of(tokenizer, token) for token in encoding.ids]
    return [token.replace(SPACE, " ") for token in encoding.tokens]


def of_bytes(tokenizer: Tokenizer) -> bool:
    """Return whether the pieces of a tokenizer of masked models are bytes."""
    return "ByteLevel" in repr(tokenizer.decoder)


def piece_of(tokenizer: Tokenizer, token: int) -> str:
    """Return a piece of a tokenizer of masked models, with its space if it has one."""
    if of_bytes(tokenizer):
        return tokenizer.decode([token], skip_special_tokens=False)
    return tokenizer.id_to_token(token).replace(SPACE, " ")


class Tokens:
    """A tokenizer."""

    def __init__(self, path: Path):
        """Open it: of masked models a tokenizer.json, of a causal one its preset folder."""
        self.causal = load_tokenizer(str(path), lambda: None) if path.is_dir() else None
        self.masked, self.unknown = None, None
        if not path.is_dir():
            self.masked = load(path)
            self.unknown = special_ids(self.masked, path.with_name(TOKENIZER_FILES["special_tokens_map"])).get("unk")

    def answer(self, prompt: Prompt, settings: Settings, tell: Tell) -> None:
        """Tell the tokens of a text, their ids, which id is unknown, and how many words it has, between white space."""
        if not isinstance(prompt, str):
            raise UserError("a tokenizer needs a text.")
        if self.causal:
            ids = self.causal.encode([prompt])[0]
            tokens = [shown(self.causal, token) for token in ids]
        if self.masked:
            encoding = self.masked.encode(prompt, add_special_tokens=False)
            ids, tokens = encoding.ids, shown_of(self.masked, encoding)
        tell({"tokens": tokens, "ids": ids, "words": len(prompt.split()), "unknown": self.unknown})
