"""Cut words into the most likely pieces of a Unigram vocabulary (Kudo 2018), many words at once.

The algorithm is that of `tokenizers` (Unigram::encode_optimized) for all words of a batch together, in a quarter of the
time: positions in order, at each position pieces from short to long, in float64. So the cuts are the same, also if two
are equally likely.
"""

import numpy as np

# Ids of texts, one text after another, int32 [tokens]; and the number of tokens of each text, int64 [texts].
Ids = tuple[np.ndarray, np.ndarray]


def flat(encodings: list) -> Ids:
    """Return the concatenated ids of encodings of `tokenizers`, and their lengths."""
    parts = [np.array(encoding.ids, np.int32) for encoding in encodings]
    return np.concatenate(parts or [np.empty(0, np.int32)]), np.array([len(part) for part in parts], np.int64)


def interleaved(where: np.ndarray, ones: Ids, others: Ids) -> Ids:
    """Return the ids of texts in their order: `ones` where `where`, bool of shape [texts], is true, else `others`."""
    lengths = np.empty(len(where), np.int64)
    lengths[where], lengths[~where] = ones[1], others[1]
    source = np.repeat(where, lengths)
    ids = np.empty(len(source), np.int32)
    ids[source], ids[~source] = ones[0], others[0]
    return ids, lengths


LONGEST = 64  # characters of a word that is cut here
MOST_TRANSITIONS = 1 << 25  # most entries of the table of transitions, 4 bytes each


class Segmenter:
    """Cuts words by a vocabulary.

    In the trie of the pieces, each prefix of a piece is a node. Node 0 stands for all other strings.

    first  node of each character at the beginning of a word, int32 of shape [code points]
    next   node after a node and a character, int32 of shape [nodes with children x classes of characters]
    rows   where the row of each node in `next` begins; 0 for a node without children: int32 of shape [nodes]
    pieces id + 1 of the piece at a node; 0 without a piece: int32 of shape [nodes]
    """

    def __init__(self, vocabulary: list[tuple[str, float]]):
        """Build the trie of the pieces, whose ids are their indices. Raises ValueError if it would be too large."""
        ids = {piece: number for number, (piece, _) in enumerate(vocabulary) if piece}
        nodes = {piece[:stop]: 0 for piece in ids for stop in range(1, len(piece) + 1)}
        nodes = {prefix: number for number, prefix in enumerate(nodes, start=1)}
        inner = dict.fromkeys(prefix[:-1] for prefix in nodes if len(prefix) > 1)
        classes = {character: 0 for piece in ids for character in piece[1:]}
        classes = {character: number for number, character in enumerate(classes, start=1)}
        width = len(classes) + 1
        # Row 0 stands for nodes without a row.
        if (len(inner) + 1) * width > MOST_TRANSITIONS:
            raise ValueError("too many transitions")
        self.score = np.array([0.0, *(score for _, score in vocabulary)])
        self.pieces, self.rows = np.zeros((2, len(nodes) + 1), np.int32)
        self.classes, self.first = np.zeros((2, 0x110000), np.int32)
        self.next = np.zeros((len(inner) + 1) * width, np.int32)
        rows = {prefix: width * number for number, prefix in enumerate(inner, start=1)}
        single = [prefix for prefix in nodes if len(prefix) == 1]
        longer = [prefix for prefix in nodes if len(prefix) > 1]
        self.pieces[[nodes[piece] for piece in ids]] = np.array(list(ids.values())) + 1
        self.rows[[nodes[prefix] for prefix in rows]] = list(rows.values())
        self.classes[list(map(ord, classes))] = list(classes.values())
        self.first[list(map(ord, single))] = [nodes[prefix] for prefix in single]
        places = [rows[prefix[:-1]] + classes[prefix[-1]] for prefix in longer]
        self.next[places] = [nodes[prefix] for prefix in longer]

    def fits(self, characters: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return whether each word is short enough, and each of its characters a piece: bool of shape [words].

        characters  code points of all words, integers of shape [characters]; lengths  of the words, none 0
        """
        if not len(lengths):
            return np.empty(0, bool)
        known = self.pieces[self.first[characters]] > 0
        return np.logical_and.reduceat(known, np.cumsum(lengths) - lengths) & (lengths <= LONGEST)

    def encode(self, characters: np.ndarray, lengths: np.ndarray) -> Ids:
        """Return the ids of words that fit: int32 [tokens], and the tokens of each word, int64 [words]."""
        # With the longest words first, the words that reach a position are a prefix of all.
        order = np.argsort(-lengths, kind="stable")
        long_first = lengths[order]
        starts = (np.cumsum(lengths) - lengths)[order]
        counts = np.searchsorted(-long_first, -np.arange(long_first[0] if len(lengths) else 0))  # words that reach it
        columns = [characters[starts[:count] + place] for place, count in enumerate(counts.tolist())]
        backs, ends = self.best(columns, len(lengths))
        return traced(backs, ends, order, long_first)

    def best(self, columns: list[np.ndarray], words: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the last piece of the most likely cut up to each position of each word.

        columns  code points at each position of the words that reach it, the longest words first

        Two lists, with an entry for each number of characters and the words that have so many: the length of the last
        piece, uint8, and its id + 1, int32; both of shape [words].
        """
        sizes = [words, *map(len, columns)]
        classes = [self.classes[column] for column in columns]
        best = [np.full(size, -np.inf) for size in sizes]
        best[0][:] = 0.0
        backs, ends = [np.zeros(size, np.uint8) for size in sizes], [np.zeros(size, np.int32) for size in sizes]
        for place, column in enumerate(columns):
            node = self.first[column]
            word = np.arange(len(column))
            for stop in range(place + 1, len(columns) + 1):
                piece = self.pieces[node]
                matches = piece.nonzero()[0]
                at, id_ = word[matches], piece[matches]
                likelihood = best[place][at] + self.score[id_]
                better = (likelihood > best[stop][at]).nonzero()[0]
                at = at[better]
                best[stop][at], backs[stop][at], ends[stop][at] = likelihood[better], stop - place, id_[better]
                if stop == len(columns):
                    break
                row = self.rows[node]
                going = row[: word.searchsorted(len(columns[stop]))].nonzero()[0]
                word = word[going]
                node = self.next[row[going] + classes[stop][word]]
                alive = node.nonzero()[0]
                word, node = word[alive], node[alive]
                if not len(word):
                    break
        return backs, ends


def traced(backs: list[np.ndarray], ends: list[np.ndarray], order: np.ndarray, lengths: np.ndarray) -> Ids:
    """Return the ids of all words, read from the result of `Segmenter.best`.

    backs, ends     as `Segmenter.best` returns them
    order, lengths  index in the batch, and length, of each word, the longest first
    """
    bases = np.cumsum([0, *map(len, backs)])
    back, end = np.concatenate(backs), np.concatenate(ends)
    counts = np.zeros(len(order), np.int64)
    word, place, steps = np.arange(len(order)), lengths, []
    while len(word):
        node = bases[place] + word
        steps.append((word, end[node]))
        counts[word] += 1
        place = place - back[node]
        left = np.flatnonzero(place)
        word, place = word[left], place[left]
    in_batch = np.empty_like(counts)
    in_batch[order] = counts
    stops = np.cumsum(in_batch)[order]
    ids = np.empty(int(counts.sum()), np.int32)
    for step, (word, piece) in enumerate(steps, start=1):
        ids[stops[word] - step] = piece - 1
    return ids, in_batch
