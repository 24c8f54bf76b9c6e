"""Show the tokens of a text. Needs tpulm.training.runtime.start first, for vocabularies that only Keras opens."""

from pathlib import Path

from tokenizers import Encoding

from tpulm.core.errors import UserError
from tpulm.demo.choice import Prompt, Settings, Tell
from tpulm.specs.artifacts import TOKENIZER_FILES
from tpulm.tokenization.conversion import convert
from tpulm.tokenization.tokenizer import SPACE, TextTokenizer


def shown_of(tokenizer: TextTokenizer, encoding: Encoding) -> list[str]:
    """Return the readable tokens of an encoding: with real spaces, and tokens of bytes decoded one by one."""
    if tokenizer.byte_level:
        return list(map(tokenizer.shown, encoding.ids))
    return [token.replace(SPACE, " ") for token in encoding.tokens]


class Tokens:
    """A tokenizer of the demo."""

    def __init__(self, path: Path):
        """Open a tokenizer; path  tokenizer.json of masked models, or the preset folder of a causal model."""
        masked = path.with_name(TOKENIZER_FILES["special_tokens_map"])
        self.tokenizer = TextTokenizer(convert(path)) if path.is_dir() else TextTokenizer.load(path, masked)

    def answer(self, prompt: Prompt, settings: Settings, tell: Tell) -> None:
        """Send the tokens and ids of a text, the id of the unknown token, and the number of words."""
        if not isinstance(prompt, str):
            raise UserError("a tokenizer needs a text.")
        (encoding,) = self.tokenizer.encodings([prompt])
        tokens, unknown = shown_of(self.tokenizer, encoding), self.tokenizer.special.get("unk")
        tell({"tokens": tokens, "ids": encoding.ids, "words": len(prompt.split()), "unknown": unknown})
