"""Train the tokenizer of the masked models, or one of causal models; the same text gives the same bytes."""

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, processors

from tpulm.core.errors import UserError
from tpulm.specs.byte_level import Vocabulary
from tpulm.tokenization import merges, unigram
from tpulm.tokenization.byte_level import cut_as_published
from tpulm.tokenization.pipeline import BYTE_LEVEL, BYTES, MARK, SPECIALS, Recipe, assemble
from tpulm.tokenization.words import Words, count_words, most_of

# SentencePiece's default share of the text; and the largest share of a vocabulary that all characters may take.
COVERAGE, SHARE_OF_CHARACTERS = 0.9995, 1 / 3


def train(batches: Iterable[list[str]], recipe: Recipe) -> tuple[Tokenizer, dict[str, int | float]]:
    """Train a tokenizer of `vocab_size` pieces, special tokens included; batches  of documents.

    Returns it and a record of its characters, see `known_characters`, which is empty for bytes. long_word_characters
    counts those of words that are too long to make pieces. Raises UserError if `vocab_size` cannot hold the characters,
    or if the text has fewer pieces.
    """
    words = count_words(batches, recipe)
    record: dict[str, int | float] = {}
    more_record = {"long_word_characters": words.long} if words.long else {}
    if recipe.byte_level:
        check_smallest(recipe, len(merges.BYTE_CHARACTERS), "the vocabulary has all 256 bytes")
        tokenizer = assemble(merges.byte_level(words.counts, recipe), recipe)
    else:
        alphabet, record = known_characters(words, recipe)
        known = words.restricted(alphabet)
        where = [known.first, known.other] if recipe.model == "wordpiece" else [alphabet]
        check_smallest(recipe, sum(map(len, where)), needs(where, record))
        trainer = {"unigram": unigram.model_of, "bpe": merges.bpe, "wordpiece": merges.wordpiece}[recipe.model]
        tokenizer = assemble(trainer(known, recipe), recipe, alphabet if record["rare_characters"] else None)
    if tokenizer.get_vocab_size() < recipe.vocab_size:
        raise UserError(
            f"tokenizer.vocab_size is {recipe.vocab_size}; allowed: {tokenizer.get_vocab_size()} or less, "
            "because the text has no more pieces that repeat."
        )
    return tokenizer, record | more_record


def train_byte_level(batches: Iterable[list[str]], vocabulary: Vocabulary, vocab_size: int, where: str) -> Tokenizer:
    """Train a tokenizer of byte-level BPE for causal models, of `vocab_size` pieces, special tokens included.

    batches  of documents; where  config key of the size

    Its template puts bos and eos around a document. Raises UserError, naming the key, for an impossible size.
    """
    rules = vocabulary.rules
    normalization = "nfc" if rules.nfc else "none"
    recipe = Recipe(
        BYTE_LEVEL, vocab_size, normalization=normalization, pre_tokenizer=rules.name, special=tuple(vocabulary.special)
    )
    smallest = len(recipe.fixed) + len(merges.BYTE_CHARACTERS)
    if vocab_size < smallest:
        raise UserError(
            f"{where} is {vocab_size}; allowed: {smallest} or more, because the vocabulary has all 256 bytes and "
            f"{len(recipe.fixed)} special tokens."
        )
    tokenizer = Tokenizer(merges.byte_level(count_words(batches, recipe).counts, recipe))
    if tokenizer.get_vocab_size() < vocab_size:
        most = tokenizer.get_vocab_size()
        raise UserError(f"{where} is {vocab_size}; the text has pieces for at most {most}.")
    cut_as_published(tokenizer, rules)
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False) for piece in vocabulary.special])
    before = [vocabulary.bos] if vocabulary.bos else []
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", vocabulary.eos],
        special_tokens=[(piece, vocabulary.special.index(piece)) for piece in (*before, vocabulary.eos)],
    )
    return tokenizer


def known_characters(words: Words, recipe: Recipe) -> tuple[set[str], dict[str, int | float]]:
    """Return the characters of a vocabulary, and figures of them.

    characters_known, rare_characters  number of the text's characters that the vocabulary has, and lacks
    character_coverage                 share of the text with known characters
    """
    coverage = recipe.character_coverage
    if coverage is None:
        coverage = 1.0 if len(words.characters) <= SHARE_OF_CHARACTERS * recipe.vocab_size else COVERAGE
    # Without the mark, no word would begin with a known piece.
    alphabet = most_of(words.characters, coverage) | ({MARK} & set(words.characters))
    if recipe.byte_fallback:  # a text that spells a byte's piece never needs that piece
        alphabet |= set("".join(BYTES))
    known = alphabet & set(words.characters)
    share = sum(words.characters[character] for character in known) / sum(words.characters.values())
    return alphabet, {
        "characters_known": len(known),
        "rare_characters": len(words.characters) - len(known),
        "character_coverage": round(share, 9),
    }


def needs(where: list[set[str]], record: dict[str, int | float]) -> str:
    """Return a part of a sentence that says why a vocabulary cannot be smaller."""
    share = f", {record['character_coverage']:.2%} of the text" if record["rare_characters"] else ""
    if len(where) == 1:
        return f"the vocabulary has {len(where[0])} different characters{share}"
    first, inner = where
    return (
        f"the vocabulary has {len(first)} characters at the beginning of words and {len(inner)} inside of words{share}"
    )


def check_smallest(recipe: Recipe, characters: int, what: str) -> None:
    """Raise UserError if a vocabulary cannot hold its `characters` pieces of one character; what  describes them."""
    smallest = characters + len(recipe.fixed)
    if recipe.vocab_size < smallest:
        others = f"{len(SPECIALS)} special tokens" + (" and 256 bytes" if recipe.byte_fallback else "")
        raise UserError(
            f"tokenizer.vocab_size is {recipe.vocab_size}; allowed: {smallest} or more, because {what}, and {others}."
        )
