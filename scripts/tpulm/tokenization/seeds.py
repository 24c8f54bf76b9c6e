"""The frequent substrings of words, from which the pieces of a Unigram vocabulary are chosen."""

from collections.abc import Iterator

import numpy as np

from tpulm.tokenization.words import code_points

REPEATED = 2  # a substring that occurs less often is none


def seed_pieces(counts: dict[str, int], most: int, longest: int) -> list[tuple[str, int]]:
    """Return the `most` substrings that cover the most characters, and their occurrences, the best first.

    counts   occurrences of each distinct word
    longest  characters of a substring; the shortest has two

    As in SentencePiece, a substring that is always followed by the same character is left out: the longer one takes its
    place.
    """
    text = "".join(counts)
    starts, lengths, totals = (np.concatenate(part) for part in zip(*substrings(counts, longest), strict=True))
    scores = lengths * totals
    if len(scores) > most:
        lowest = np.partition(scores, -most)[-most]
        chosen = scores >= lowest
        starts, lengths, totals = starts[chosen], lengths[chosen], totals[chosen]
    places = zip(starts.tolist(), lengths.tolist(), totals.tolist(), strict=True)
    found = [(text[start : start + length], total) for start, length, total in places]
    return sorted(found, key=lambda item: (-len(item[0]) * item[1], item[0]))[:most]


def substrings(counts: dict[str, int], longest: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield for each length the repeated substrings: where in the joined words one begins, its length, its occurrences.

    All int64. Substrings of one length are numbered, and those one longer are pairs of number and character, so that
    nothing is hashed; a substring that does not repeat is not extended.
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
        keys, first, node = number(node.astype(np.int64) * len(alphabet) + codes[start + (length - 1)])
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


def number(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct keys, sorted, where each occurs first, and the number of each key among the distinct ones.

    As np.unique does, in half of its memory.
    """
    order = np.argsort(keys, kind="stable").astype(np.int32)
    keys = keys[order]
    new = np.diff(keys, prepend=-1) != 0
    numbers = np.empty(len(keys), np.int32)
    numbers[order] = np.cumsum(new, dtype=np.int32) - 1
    return keys[new], order[new], numbers
