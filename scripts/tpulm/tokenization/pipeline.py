"""What surrounds a vocabulary that is trained here: normalizer, pre-tokenizer, special tokens, template, decoder."""

import re
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tpulm.config.artifacts import SPECIAL_TOKENS
from tpulm.core.errors import UserError

SPECIALS = list(SPECIAL_TOKENS)
SPACE = "▁"
# Of a piece of WordPiece that does not begin a word.
PREFIX = "##"


@dataclass(frozen=True)
class Cutting:
    """How words are cut before a vocabulary is trained: longer ones into parts, one character always on its own.

    A vocabulary has no pieces across cuts. The memory of a trainer depends on the longest word.
    """

    longest: int
    alone: str = ""

    def parts(self, word: str) -> list[str]:
        """Return a word in parts of 1 to `longest` characters."""
        if len(word) <= self.longest and not (self.alone and self.alone in word):
            return [word]
        alone = re.escape(self.alone)
        return re.findall(f"{alone}|[^{alone}]{{1,{self.longest}}}" if alone else f"(?s).{{1,{self.longest}}}", word)


WHOLE = Cutting(longest=256)
# The time that WordPiece takes for a word grows with the square of its length. A word that begins with its prefix could
# not be told from the middle of another word.
SHORT = Cutting(longest=100, alone=PREFIX[0])


def untrained(model: models.Model) -> Tokenizer:
    """Return a tokenizer with the published procedure's normalizer, pre-tokenizer, template and decoder."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.Replace("''", '"')])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    if isinstance(model, models.WordPiece):
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(),
                pre_tokenizers.Split(SHORT.alone, "isolated"),
                pre_tokenizers.FixedLength(SHORT.longest),
            ]
        )
        tokenizer.decoder = decoders.Sequence([decoders.Replace(Regex(f"^{PREFIX}"), ""), decoders.Metaspace()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", SPECIALS.index("[CLS]")), ("[SEP]", SPECIALS.index("[SEP]"))],
    )
    return tokenizer


def assemble(model: models.Model) -> Tokenizer:
    """Return the tokenizer of a trained model, in which the special tokens have the ids 0 to 4."""
    tokenizer = untrained(model)
    # The space before a masked word belongs to that word: [MASK] takes it along.
    tokenizer.add_special_tokens([AddedToken(t, lstrip=t == "[MASK]", normalized=False) for t in SPECIALS])
    return tokenizer


def check_smallest(vocab_size: int, characters: int, what: str) -> None:
    """Check that a vocabulary can hold every character. Raises UserError.

    characters  pieces of one character that it needs
    what        describes them
    """
    smallest = characters + len(SPECIALS)
    if vocab_size < smallest:
        raise UserError(
            f"tokenizer.vocab_size is {vocab_size}; allowed: {smallest} or more, since the text has {what}, and "
            f"there are {len(SPECIALS)} special tokens."
        )


def check_largest(vocab_size: int, largest: int) -> None:
    """Check that the text has as many pieces as were asked for. Raises UserError."""
    if largest < vocab_size:
        raise UserError(
            f"tokenizer.vocab_size is {vocab_size}; allowed: {largest} or less, "
            "since the text has no more pieces that repeat."
        )
