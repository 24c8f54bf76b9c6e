"""Train a Unigram model (Kudo 2018, https://aclanthology.org/P18-1007) by SentencePiece, from counted words."""

import io
import tempfile
from collections.abc import Iterable, Iterator

import numpy as np
import sentencepiece
from tokenizers.models import Unigram

from tpulm.tokenization.pipeline import BYTES, SPECIALS, Recipe
from tpulm.tokenization.words import LONGEST as LONGEST_WORD
from tpulm.tokenization.words import Words, code_points

REPEATED = 2  # a substring that occurs less often is not tried


def seed_pieces(counts: dict[str, int], most: int, longest: int) -> list[tuple[str, int]]:
    """Return the `most` substrings that cover the most characters, and their occurrences, the best first.

    counts   occurrences of each distinct word
    longest  characters of a substring; the shortest has two

    As in SentencePiece, a longer substring replaces one that the same character always follows.
    """
    text = "".join(counts)
    starts, lengths, totals = (np.concatenate(part) for part in zip(*substrings(counts, longest), strict=True))
    scores = lengths * totals
    if len(scores) > most:
        lowest = np.partition(scores, -most)[-most]
        chosen = scores >= lowest
        starts, lengths, totals = starts[chosen], lengths[chosen], totals[chosen]
    places = zip(starts.tolist(), lengths.tolist(), totals.tolist(), strict=True)
    pieces = [(text[start : start + length], total) for start, length, total in places]
    return sorted(pieces, key=lambda item: (-len(item[0]) * item[1], item[0]))[:most]


def substrings(counts: dict[str, int], longest: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield for each length the repeated substrings: start in the joined words, length and occurrences, all int64.

    Substrings of one length are numbered, and longer ones are pairs of number and character, so that nothing is hashed.
    A substring that does not repeat is not extended.
    """
    sizes = np.array([len(word) for word in counts])
    alphabet, codes = np.unique(code_points("".join(counts)), return_inverse=True)
    codes = codes.astype(np.int32)
    stops = np.repeat(np.cumsum(sizes, dtype=np.int32), sizes)
    weights = np.repeat(np.array(list(counts.values()), np.int64), sizes)
    start, node = np.arange(len(codes), dtype=np.int32), np.zeros(len(codes), np.int32)
    shorter = None
    for length in range(1, longest + 2):
        fits = start + (length - 1) < stops[start]
        start, node = start[fits], node[fits]
        pairs = node.astype(np.int64) * len(alphabet) + codes[start + (length - 1)]
        keys, first, node = np.unique(pairs, return_index=True, return_inverse=True)
        totals = np.bincount(node, weights[start], len(keys)).astype(np.int64)
        if shorter is not None and length > 2:
            likeliest = np.zeros(len(shorter[0]), np.int64)
            np.maximum.at(likeliest, keys // len(alphabet), totals)
            ends = likeliest < shorter[1]
            begin, total = shorter[0][ends], shorter[1][ends]
            yield begin, np.full(len(begin), length - 1), total
        repeated = totals >= REPEATED
        shorter = (start[first[repeated]].astype(np.int64), totals[repeated])
        extended = repeated[node]
        start, node = start[extended], (np.cumsum(repeated, dtype=np.int32) - 1)[node[extended]]


LONGEST = 16  # characters of a piece
SEEDS = 5  # substrings that are tried, per piece
MOST_SEEDS = 1_000_000  # SentencePiece's default, if those leave too few pieces
SHARE = 0.75  # share of the text's characters: if repeated words have so many, they are enough
DECIMALS = 6  # decimals of a score: exp and log differ in their last bits between processors
THREADS = 2  # threads of the trainer, a constant: EM sums floats, and another number of threads gives other pieces
# Characters that the trainer treats specially or drops: control characters, spaces, and its marks for unknown
# characters and for invalid bytes.
RESERVED = [*map(chr, range(0x21)), "\x7f", "\x85", "\u2028", "\u2029", "\u2585", "\ufeff", "\ufffd"]
UNKNOWN = "<unk>" * LONGEST  # longer than any piece


def model_of(words: Words, recipe: Recipe) -> Unigram:
    """Return a Unigram model with all characters of the words, of vocab_size pieces or all that the text has."""
    alphabet = set(words.characters)
    counts = words.counts | dict.fromkeys(sorted(alphabet.difference(*words.counts)), 1)
    size = recipe.vocab_size - len(recipe.fixed)
    scores = scored_pieces(counts, alphabet, size, SEEDS * size)
    if len(scores) < size:
        # Repeats of a few long words can take all seeds. MOST_SEEDS does not depend on the size, so that the number of
        # pieces that a message allows can be trained.
        scores = best(scored_pieces(counts, alphabet, MOST_SEEDS, MOST_SEEDS), alphabet, size)
    vocabulary = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    # The score is lower than the characters of a text that spells a byte's piece.
    never = 2 * len(BYTES[0]) * (vocabulary[-1][1] - 1)
    fixed = [(token, 0.0 if token in SPECIALS else never) for token in recipe.fixed]
    return Unigram(fixed + vocabulary, unk_id=SPECIALS.index("<unk>"), byte_fallback=recipe.byte_fallback)


def best(scores: dict[str, float], alphabet: set[str], size: int) -> dict[str, float]:
    """Return the scores of all characters, and of the best other pieces, `size` in total."""
    others = sorted(scores.keys() - alphabet, key=lambda piece: (-scores[piece], piece))
    return {piece: scores[piece] for piece in [*sorted(alphabet), *others[: size - len(alphabet)]]}


def scored_pieces(counts: dict[str, int], alphabet: set[str], most: int, seeds: int) -> dict[str, float]:
    """Return the scores of the pieces that SentencePiece's trainer keeps: all characters, at most `most` pieces.

    counts    occurrences of each distinct word, "▁" only at its beginning, or nothing else
    alphabet  characters of all words
    seeds     number of substrings that are tried
    """
    proto = io.BytesIO()
    to_safe, from_safe = stand_ins(alphabet)
    # The trainer's own search for seeds does not count how often a word occurs: 8 to 12 % more tokens, 300 MB more.
    tried = seed_pieces(counts, seeds, LONGEST)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="") as file:
        file.writelines(f"{line}\n" for line in lines(tried, to_safe))
        file.flush()
        fit(lines(enough(counts, alphabet).items(), to_safe), most + 1, file.name, proto)
    model = sentencepiece.SentencePieceProcessor(model_proto=proto.getvalue())
    pieces = range(1, model.vocab_size())  # 0 is the unknown piece
    return {model.id_to_piece(i).translate(from_safe): round(model.get_score(i), DECIMALS) for i in pieces}


def enough(counts: dict[str, int], alphabet: set[str]) -> dict[str, int]:
    """Return the counts of repeated words, and a word for each character that is in none of them.

    Words that occur once take more than half of the time and save 0.5 % of the tokens. They are kept if they are much
    of the text, as in a language without spaces.
    """
    repeated = {word: count for word, count in counts.items() if count > 1}
    characters, all_characters = (sum(len(word) * count for word, count in c.items()) for c in (repeated, counts))
    if characters < SHARE * all_characters:
        return counts
    return repeated | dict.fromkeys(sorted(alphabet.difference(*repeated)), 1)


def fit(words: Iterator[str], vocab_size: int, seeds: str, proto: io.BytesIO) -> None:
    """Run SentencePiece's trainer: choose pieces among seeds and characters, and write the model to `proto`.

    words       lines of "WORD<tab>COUNT"
    vocab_size  number of pieces at most, the unknown piece included
    seeds       file of the same form
    """
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=words,
        input_format="tsv",
        model_writer=proto,
        model_type="unigram",
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        seed_sentencepieces_file=seeds,
        character_coverage=1.0,
        max_sentencepiece_length=LONGEST,
        allow_whitespace_only_pieces=True,
        max_sentence_length=4 * LONGEST_WORD + 16,  # bytes
        num_threads=THREADS,
        # Words are only cut at spaces, as by the pre-tokenizer.
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        split_by_unicode_script=False,
        split_by_number=False,
        unk_id=0,
        unk_piece=UNKNOWN,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        minloglevel=2,
    )


def lines(counts: Iterable[tuple[str, int]], table: dict[int, str]) -> Iterator[str]:
    """Yield "WORD<tab>COUNT" for each word, its characters replaced by `table`."""
    for word, count in counts:
        yield f"{word.translate(table)}\t{count}"


def stand_ins(alphabet: set[str]) -> tuple[dict[int, str], dict[int, str]]:
    """Return two tables for str.translate: from RESERVED characters to unused ones, and back."""
    unused = (chr(code) for code in range(0x10FFFD, 0xFFFF, -1) if chr(code) not in alphabet)
    pairs = [(char, next(unused)) for char in RESERVED if char in alphabet]
    return {ord(char): safe for char, safe in pairs}, {ord(safe): char for char, safe in pairs}
