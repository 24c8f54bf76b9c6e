"""How a tokenizer cuts a text. Needs tpulm.training.runtime.start first, for vocabularies that only Keras opens."""

from pathlib import Path

from tpulm.core.errors import UserError
from tpulm.demo.choice import Prompt, Settings, Tell
from tpulm.tokenization.causal import KerasHub, SentencePiece, load_tokenizer
from tpulm.tokenization.folder import load


def shown(tokenizer: SentencePiece | KerasHub, token: int) -> str:
    """Return a token of a causal model as it stands in a text."""
    plain = getattr(tokenizer, "behind", None) is None
    return tokenizer.piece(token).replace("\u2581", " ") if plain else tokenizer.decode([token])


class Tokens:
    """A tokenizer."""

    def __init__(self, path: Path):
        """Open it: of masked models a tokenizer.json, of a causal one its preset folder."""
        self.causal = load_tokenizer(str(path), lambda: None) if path.is_dir() else None
        self.masked = None if path.is_dir() else load(path)

    def answer(self, prompt: Prompt, settings: Settings, tell: Tell) -> None:
        """Tell the tokens of a text, their ids, and how many words it has, between white space."""
        if not isinstance(prompt, str):
            raise UserError("a tokenizer needs a text.")
        if self.causal:
            ids = self.causal.encode([prompt])[0]
            tokens = [shown(self.causal, token) for token in ids]
        if self.masked:
            encoding = self.masked.encode(prompt, add_special_tokens=False)
            ids, spans = encoding.ids, [None, *encoding.offsets]
            # What it stands for in the text; a part of a character, or what the text does not have, as it is written.
            tokens = [
                token if span == before or span[0] == span[1] else prompt[slice(*span)]
                for token, before, span in zip(encoding.tokens, spans, spans[1:], strict=False)
            ]
        tell({"tokens": tokens, "ids": ids, "words": len(prompt.split())})
