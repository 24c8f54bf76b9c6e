"""The normalizer, pre-tokenizer, decoder and template of the tokenizers that are trained here."""

from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tpulm.specs.artifacts import SPECIAL_TOKENS
from tpulm.specs.byte_level import RULES

SPECIALS = list(SPECIAL_TOKENS)
MARK = "▁"
# The prefix of WordPiece for pieces that do not begin a word.
PREFIX = "##"
# Words of WordPiece are cut at this length, since its time grows with the square of it. The first character of its
# prefix is a word of its own: otherwise a word that begins with the prefix would look like the middle of another word.
LONGEST_OF_WORDPIECE, ALONE = 100, PREFIX[0]
# The pieces for the bytes of characters without a piece, as SentencePiece writes them.
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# Unicode's white space, and the steps of `whitespace: fold`: patterns and their replacements.
BLANKS = "[\t-\r\x1c- \x85\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
FOLD = ((BLANKS, " "), (r"\A | \z", ""))
# The words of `whitespace: runs`, where spaces are MARK: line breaks; of several spaces, all but the one before a
# word; a word with that one.
RUNS = f"[\r\n]+|{MARK}+(?={MARK}[^{MARK}\r\n])|{MARK}?[^{MARK}\r\n]+|{MARK}+"
BYTE_LEVEL = "byte-level-bpe"


@dataclass(frozen=True)
class Recipe:
    """The keys of the section `tokenizer` that describe a tokenizer that is trained here."""

    model: str
    vocab_size: int
    character_coverage: float | None = None
    byte_fallback: bool = False
    normalization: str | None = None
    whitespace: str = "keep"
    pre_tokenizer: str = "gpt2"
    special: tuple[str, ...] = tuple(SPECIALS)  # no key of the config; causal models have others

    @property
    def byte_level(self) -> bool:
        """Whether pieces are bytes, not characters."""
        return self.model == BYTE_LEVEL

    @property
    def fixed(self) -> list[str]:
        """The pieces that are in every vocabulary, which have the lowest ids."""
        return [*self.special, *(BYTES if self.byte_fallback else [])]


def tokenizer_around(model: models.Model, recipe: Recipe, alphabet: set[str] | None = None) -> Tokenizer:
    """Return a tokenizer with a recipe's normalizer, pre-tokenizer and decoder, and the template of [CLS] and [SEP].

    model     with or without a vocabulary; its special tokens are added by `assemble` alone
    alphabet  characters of the vocabulary, if it lacks some of the text; None if it has all
    """
    tokenizer = Tokenizer(model)
    steps = normalization(recipe)
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenization(recipe, alphabet)
    tokenizer.decoder = decoding(recipe)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", SPECIALS.index("[CLS]")), ("[SEP]", SPECIALS.index("[SEP]"))],
    )
    return tokenizer


def normalization(recipe: Recipe) -> list[normalizers.Normalizer]:
    """Return the normalizers of a recipe, in order."""
    blanks = [normalizers.Replace(Regex(pattern), content) for pattern, content in FOLD]
    choices: dict[str, list[normalizers.Normalizer]] = {
        "published": [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')],
        "nfkc": [normalizers.NFKC()],
        "nfc": [normalizers.NFC()],
        "none": [],
    }
    chosen = choices[recipe.normalization or ("none" if recipe.byte_level else "published")]
    # Some characters become a space and a mark in NFKC.
    return chosen + blanks if recipe.whitespace == "fold" else chosen


def pre_tokenization(recipe: Recipe, alphabet: set[str] | None) -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer of a recipe; for `alphabet`, see `tokenizer_around`."""
    if recipe.byte_level and recipe.pre_tokenizer == "gpt2":  # its words are built into the library
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if recipe.byte_level:
        words = pre_tokenizers.Split(Regex(RULES[recipe.pre_tokenizer].words), "isolated")
        return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    steps: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Metaspace()]
    if recipe.whitespace == "runs":
        steps = [pre_tokenizers.Metaspace(split=False), pre_tokenizers.Split(Regex(RUNS), "isolated")]
    if recipe.model == "wordpiece":
        if alphabet is not None:
            # One unknown character would make its whole word unknown.
            known = "".join(f"\\x{{{ord(character):x}}}" for character in sorted(alphabet))
            steps.append(pre_tokenizers.Split(Regex(f"[^{known}]"), "isolated"))
        steps += [pre_tokenizers.Split(ALONE, "isolated"), pre_tokenizers.FixedLength(LONGEST_OF_WORDPIECE)]
    return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)


def decoding(recipe: Recipe) -> decoders.Decoder:
    """Return the decoder of a recipe."""
    if recipe.byte_level:
        return decoders.ByteLevel()
    steps: list[decoders.Decoder] = [decoders.Metaspace()]
    if recipe.byte_fallback or recipe.whitespace == "runs":
        # Metaspace drops all marks of the first token, and bytes become characters before it.
        bytes_ = [decoders.ByteFallback()] if recipe.byte_fallback else []
        steps = [decoders.Replace(MARK, " "), *bytes_, decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    if recipe.model == "wordpiece":
        steps = [decoders.Replace(Regex(f"^{PREFIX}"), ""), *steps]
    return steps[0] if len(steps) == 1 else decoders.Sequence(steps)


def assemble(model: models.Model, recipe: Recipe, alphabet: set[str] | None = None) -> Tokenizer:
    """Return the tokenizer of a trained model; its special tokens have the ids 0 to 4; see `tokenizer_around`."""
    tokenizer = tokenizer_around(model, recipe, alphabet)
    # [MASK] includes the space before it, which belongs to the masked word.
    tokenizer.add_special_tokens([AddedToken(t, lstrip=t == "[MASK]", normalized=False) for t in SPECIALS])
    return tokenizer
