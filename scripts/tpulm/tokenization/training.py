"""Train the tokenizer of the masked models: the same bytes every time, for the same text."""

from collections.abc import Iterable

from tokenizers import Tokenizer

from tpulm.core.errors import UserError
from tpulm.tokenization import merges, unigram
from tpulm.tokenization.pipeline import BYTES, MARK, SPECIALS, Recipe, assemble
from tpulm.tokenization.words import Words, count_words, most_of

# Of the text, SentencePiece's default; and the share of a vocabulary up to which all characters are in it.
COVERAGE, SHARE_OF_CHARACTERS = 0.9995, 1 / 3


def train(batches: Iterable[list[str]], recipe: Recipe) -> tuple[Tokenizer, dict[str, int | float]]:
    """Train a tokenizer of `vocab_size` pieces, special tokens included.

    batches  lists of documents

    Returns it, and what metrics.json says of its characters, see `known_characters`; of bytes, nothing. Raises
    UserError when `vocab_size` cannot hold the characters, or is more than the text has pieces.
    """
    words = count_words(batches, recipe)
    record: dict[str, int | float] = {}
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
    return tokenizer, record


def known_characters(words: Words, recipe: Recipe) -> tuple[set[str], dict[str, int | float]]:
    """Return the characters of a vocabulary, and how many they are.

    characters_known, rare_characters  that the vocabulary has, and that it lacks
    character_coverage                 share of the text that the first ones are
    """
    coverage = recipe.character_coverage
    if coverage is None:
        coverage = 1.0 if len(words.characters) <= SHARE_OF_CHARACTERS * recipe.vocab_size else COVERAGE
    # Without its mark, no word would begin with a piece that is known.
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
    """Return what the smallest vocabulary follows from."""
    share = f", {record['character_coverage']:.2%} of the text" if record["rare_characters"] else ""
    if len(where) == 1:
        return f"the vocabulary has {len(where[0])} different characters{share}"
    first, other = where
    return (
        f"the vocabulary has {len(first)} characters at the beginning of words and {len(other)} inside of words{share}"
    )


def check_smallest(recipe: Recipe, characters: int, what: str) -> None:
    """Check that a vocabulary can hold its characters. Raises UserError.

    characters  pieces of one character that it needs; `what` describes them
    """
    smallest = characters + len(recipe.fixed)
    if recipe.vocab_size < smallest:
        others = f"{len(SPECIALS)} special tokens" + (" and 256 bytes" if recipe.byte_fallback else "")
        raise UserError(
            f"tokenizer.vocab_size is {recipe.vocab_size}; allowed: {smallest} or more, because {what}, and {others}."
        )
