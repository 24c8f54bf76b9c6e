"""Train BPE (Sennrich 2016, https://aclanthology.org/P16-1162), of characters or bytes, and WordPiece.

The trainer of the `tokenizers` library merges the most frequent pairs of pieces. It gets the distinct words, each as
often as it occurs, and the characters in sorted order: among equally frequent pairs, the lowest ids win, while the
library's own order of words is random.
"""

import json
from collections.abc import Iterator

from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from tpulm.tokenization.pipeline import LONGEST_OF_WORDPIECE, PREFIX, SPECIALS, Recipe
from tpulm.tokenization.words import Words

REPEATED = 2  # a pair that occurs less often is not merged
BYTE_CHARACTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
LINE = 10_000  # characters that the trainer gets at a time


def bpe(words: Words, recipe: Recipe) -> models.BPE:
    """Return a BPE model that has all characters of the words."""
    model = train_merges(words.counts, recipe.vocab_size, recipe.fixed + sorted(words.characters), "")
    merges = [tuple(pair) for pair in model["merges"]]
    return models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=recipe.byte_fallback)


def byte_level(counts: dict[str, int], recipe: Recipe) -> models.BPE:
    """Return a BPE model of bytes, which the words write as BYTE_CHARACTERS."""
    model = train_merges(counts, recipe.vocab_size, recipe.fixed + BYTE_CHARACTERS, "")
    return models.BPE(model["vocab"], [tuple(pair) for pair in model["merges"]])


def wordpiece(words: Words, recipe: Recipe) -> models.WordPiece:
    """Return a WordPiece model: pieces inside of a word begin with "##".

    Its vocabulary is trained as that of BPE, as in the library's WordPieceTrainer; text is cut greedily.
    """
    characters = sorted(words.first) + [PREFIX + character for character in sorted(words.other)]
    # The trainer also keeps each character without the prefix.
    unused = words.other - words.first
    trained = train_merges(words.counts, recipe.vocab_size + len(unused), SPECIALS + characters, PREFIX)["vocab"]
    pieces = [piece for piece in sorted(trained, key=trained.__getitem__) if piece not in unused]
    return models.WordPiece(
        vocab={piece: index for index, piece in enumerate(pieces)},
        unk_token="<unk>",
        max_input_chars_per_word=LONGEST_OF_WORDPIECE,
        continuing_subword_prefix=PREFIX,
    )


def train_merges(counts: dict[str, int], vocab_size: int, first: list[str], prefix: str) -> dict:
    """Train a BPE model on counts of distinct words; return its vocabulary and merges, in the form of tokenizer.json.

    first  pieces with the lowest ids: special tokens and all characters; prefix  of pieces that do not begin a word
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=REPEATED,
        special_tokens=first,
        continuing_subword_prefix=prefix,
        show_progress=False,
    )
    tokenizer.train_from_iterator(words_repeated(counts), trainer)
    return json.loads(tokenizer.to_str())["model"]


def words_repeated(counts: dict[str, int]) -> Iterator[str]:
    """Yield each word as often as it occurs, separated by spaces, in strings of about LINE characters."""
    line: list[str] = []
    size = 0
    for word, count in counts.items():
        while count:
            times = min(count, max(1, (LINE - size) // (len(word) + 1)))
            line += [word] * times
            size += times * (len(word) + 1)
            count -= times
            if size >= LINE:
                yield " ".join(line)
                line, size = [], 0
    yield " ".join(line)
