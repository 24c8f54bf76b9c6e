"""Probabilities of Unigram pieces by expectation maximisation over all ways to cut words (Kudo 2018).

All sums are in a fixed order, and none depends on threads, so that the same words and pieces give the same numbers.
"""

from collections.abc import Iterator

import numpy as np

from tpulm.tokenization.words import code_points

ITERATIONS = 8  # the scores change little after five
PSEUDO_COUNT = 0.1  # added to every piece, so that none is impossible
DECIMALS = 6  # of a score: exp and log differ in their last bits between processors
CHUNK = 250_000  # characters whose lattices are evaluated together


def estimate_scores(counts: dict[str, int], pieces: list[str]) -> dict[str, float]:
    """Return the log-probability of each piece by expectation maximisation.

    counts  occurrences of each distinct word; every character of a word must be a piece
    """
    trie = Trie(pieces)
    lattices = [Lattice(items, trie) for items in chunks(counts)]
    expected = np.sum([lattice.occurrences() for lattice in lattices], axis=0)
    for iteration in range(ITERATIONS + 1):
        scores = np.log((expected + PSEUDO_COUNT) / (expected.sum() + PSEUDO_COUNT * len(pieces)))
        if iteration < ITERATIONS:
            gains = trie.gains(scores)
            expected = np.zeros(len(pieces))
            for lattice in lattices:
                expected += lattice.expectation(gains)
    return dict(zip(pieces, np.round(scores, DECIMALS).tolist(), strict=True))


def chunks(counts: dict[str, int]) -> list[list[tuple[str, int]]]:
    """Return words and counts in lists of about CHUNK characters, words of similar length together."""
    found: list[list[tuple[str, int]]] = []
    size = CHUNK
    for word, count in sorted(counts.items(), key=lambda item: (-len(item[0]), item[0])):
        if size >= CHUNK:
            found.append([])
            size = 0
        found[-1].append((word, count))
        size += len(word)
    return found


class Trie:
    """The prefixes of all pieces. A prefix of L characters is an index into the sorted array keys of levels[L - 1].

    levels  of each length: keys int64 [prefixes], the prefix without its last character * characters + that character;
            pieces int64 [prefixes], the piece that ends there, or -1
    """

    def __init__(self, pieces: list[str]):
        """Build the trie; the index of a piece is its place in the list."""
        lengths = np.array([len(piece) for piece in pieces])
        self.alphabet, codes = np.unique(code_points("".join(pieces)), return_inverse=True)
        self.starts = np.cumsum(lengths) - lengths
        self.levels: list[tuple[np.ndarray, np.ndarray]] = []
        chosen, node = np.arange(len(pieces)), np.zeros(len(pieces), np.int64)
        for length in range(1, int(lengths.max()) + 1):
            keys, node = np.unique(
                node * len(self.alphabet) + codes[self.starts[chosen] + length - 1], return_inverse=True
            )
            ends = lengths[chosen] == length
            pieces_here = np.full(len(keys), -1)
            pieces_here[node[ends]] = chosen[ends]
            self.levels.append((keys, pieces_here))
            chosen, node = chosen[~ends], node[~ends]
        # The piece that each character is, for all characters of all pieces one after the other.
        first_keys, first_pieces = self.levels[0]
        place = np.minimum(np.searchsorted(first_keys, codes), len(first_keys) - 1)
        self.characters = np.where(first_keys[place] == codes, first_pieces[place], -1)

    def gains(self, scores: np.ndarray) -> np.ndarray:
        """Return the probability of each piece divided by that of its characters one by one, float64 [pieces]."""
        return np.exp(scores - np.add.reduceat(scores[self.characters], self.starts))


class Lattice:
    """All ways to cut some words into pieces.

    Words are in order of falling length and their characters by place: first those at place 0 of all words, then
    those at place 1. So the words that have a place t are the first counts[t] words, and all edges of one length
    between two places are slices of arrays. An edge belongs to its first character, a node to the character before it.

    Probabilities are relative to those of cutting into single characters, which every word allows: neither short nor
    long words leave the range of floats, and no logarithms are needed.
    """

    def __init__(self, items: list[tuple[str, int]], trie: Trie):
        """Find the edges.

        items  words in order of falling length, with their occurrences
        """
        lengths = np.array([len(word) for word, _ in items])
        self.pieces = len(trie.starts)
        self.occurring = np.array([count for _, count in items], np.float64)
        self.counts = np.searchsorted(-lengths, -np.arange(lengths[0]), side="left")
        self.offsets = np.cumsum(self.counts) - self.counts
        self.size = int(lengths.sum())
        place = np.repeat(np.arange(lengths[0]), self.counts)
        word = np.arange(self.size) - self.offsets[place]
        self.last = self.offsets[lengths - 1] + np.arange(len(items))
        codes = code_points("".join(word for word, _ in items))
        characters = np.searchsorted(trie.alphabet, codes[(np.cumsum(lengths) - lengths)[word] + place])
        following = np.where(place + 1 < lengths[word], np.arange(self.size) + self.counts[place], -1)
        self.edges = list(self.find_edges(characters, following, trie))

    def find_edges(
        self, characters: np.ndarray, following: np.ndarray, trie: Trie
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield for each length the characters at which a piece starts, as packed bits, and those pieces."""
        kind = np.min_scalar_type(self.pieces)
        start = here = np.arange(self.size)
        node = np.zeros(self.size, np.int64)
        for keys, pieces in trie.levels:
            wanted = node * len(trie.alphabet) + characters[here]
            node = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            found = keys[node] == wanted
            start, here, node = start[found], here[found], node[found]
            ends = pieces[node] >= 0
            mask = np.zeros(self.size, bool)
            mask[start[ends]] = True
            yield np.packbits(mask), pieces[node[ends]].astype(kind)
            here = following[here]
            start, here, node = start[here >= 0], here[here >= 0], node[here >= 0]

    def mask(self, bits: np.ndarray) -> np.ndarray:
        """Unpack what find_edges packed, bool [characters]."""
        return np.unpackbits(bits, count=self.size).view(bool)

    def occurrences(self) -> np.ndarray:
        """Return how often each piece occurs anywhere in the words, float64 [pieces]."""
        counts = np.concatenate([self.occurring[:count] for count in self.counts])
        parts = [np.bincount(ids, counts[self.mask(bits)], self.pieces) for bits, ids in self.edges]
        return np.sum(parts, axis=0)

    def span(self, place: int, words: int) -> slice:
        """Return where the characters at a place of the first `words` words are."""
        return slice(self.offsets[place], self.offsets[place] + words)

    def expectation(self, gains: np.ndarray) -> np.ndarray:
        """Return how often each piece is expected in a cut drawn by its probability, float64 [pieces].

        gains  as Trie.gains returns them

        The forward pass sums over all ways to reach a node; the backward pass splits each node's share among the edges
        that lead to it, as in forward filtering and backward sampling.
        """
        weights = []
        for bits, ids in self.edges:
            weight = np.zeros(self.size)
            weight[self.mask(bits)] = gains[ids]
            weights.append(weight)
        # Of each node: the probability that the last cut before it is of one character, given a cut there.
        single = np.ones(self.size)
        for place, words in enumerate(self.counts.tolist()):
            total, window = np.ones(words), np.ones(words)
            for length in range(2, min(place + 1, len(weights)) + 1):
                span = self.span(place - length + 1, words)
                window *= single[span]
                total += weights[length - 1][span] * window
            np.divide(1, total, out=single[self.span(place, words)])
        share = np.zeros(self.size)
        share[self.last] = self.occurring
        for place in range(len(self.counts) - 1, -1, -1):
            words = self.counts[place]
            window = share[self.span(place, words)] * single[self.span(place, words)]
            for length in range(1, min(place + 1, len(weights)) + 1):
                span = self.span(place - length + 1, words)
                if length > 1:
                    window *= single[span]
                weights[length - 1][span] *= window
                if place >= length:
                    share[self.span(place - length, words)] += weights[length - 1][span]
        expected = np.zeros(self.pieces)
        for (bits, ids), weight in zip(self.edges, weights, strict=True):
            expected += np.bincount(ids, weight[self.mask(bits)], self.pieces)
        return expected
