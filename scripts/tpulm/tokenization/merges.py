"""Train BPE (Sennrich 2016, https://aclanthology.org/P16-1162) and WordPiece tokenizers to the same bytes every time.

The trainer of the `tokenizers` library merges the most frequent pairs of pieces. It is given the distinct words, each
as often as it occurs, and the characters in sorted order: among pairs of the same frequency the lowest ids win, so that
the ids of the characters decide, and the library's own order of words is random.
"""

import json
from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from tpulm.tokenization.words import (
    PREFIX,
    SHORT,
    SPECIALS,
    WHOLE,
    assemble,
    check_largest,
    check_smallest,
    count_words,
)

REPEATED = 2  # a pair that occurs less often is not merged
LINE = 10_000  # characters that the trainer is given at a time


def train_bpe(batches: Iterable[list[str]], vocab_size: int) -> Tokenizer:
    """Train a BPE tokenizer of `vocab_size` pieces, special tokens included.

    batches  lists of documents

    Raises UserError when `vocab_size` cannot hold every character, or is more than the text has pieces.
    """
    words = count_words(batches, WHOLE)
    alphabet = sorted(words.first | words.other)
    check_smallest(vocab_size, len(alphabet), f"{len(alphabet)} different characters")
    model = merge(words.counts, vocab_size, SPECIALS + alphabet, "")
    check_largest(vocab_size, len(model["vocab"]))
    merges = [tuple(pair) for pair in model["merges"]]
    return assemble(models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True))


def train_wordpiece(batches: Iterable[list[str]], vocab_size: int) -> Tokenizer:
    """Train a WordPiece tokenizer: like train_bpe, but pieces inside of a word begin with "##".

    Its vocabulary is chosen like that of BPE, as by the library's own WordPieceTrainer; text is cut greedily.
    """
    words = count_words(batches, SHORT)
    what = f"{len(words.first)} different characters at the beginning of words and {len(words.other)} inside words"
    check_smallest(vocab_size, len(words.first) + len(words.other), what)
    characters = sorted(words.first) + [PREFIX + character for character in sorted(words.other)]
    # The trainer also keeps each character without the prefix.
    unused = words.other - words.first
    trained = merge(words.counts, vocab_size + len(unused), SPECIALS + characters, PREFIX)["vocab"]
    pieces = [piece for piece in sorted(trained, key=trained.__getitem__) if piece not in unused]
    check_largest(vocab_size, len(pieces))
    return assemble(
        models.WordPiece(
            vocab={piece: index for index, piece in enumerate(pieces)},
            unk_token="<unk>",
            max_input_chars_per_word=SHORT.longest,
            continuing_subword_prefix=PREFIX,
        )
    )


def merge(counts: dict[str, int], vocab_size: int, first: list[str], prefix: str) -> dict:
    """Return the vocabulary and the merges of a trained BPE model, as tokenizer.json has them.

    counts  occurrences of each distinct word
    first   the pieces with the lowest ids: special tokens and all characters
    prefix  of each piece that does not begin a word
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
    tokenizer.train_from_iterator(repeated(counts), trainer)
    return json.loads(tokenizer.to_str())["model"]


def repeated(counts: dict[str, int]) -> Iterator[str]:
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
