"""Train a Unigram tokenizer (Kudo 2018, https://aclanthology.org/P18-1007) to the same bytes every time.

The trainer of the `tokenizers` library chooses the pieces. It walks hash tables in random order, so that its
scores and the order of its pieces differ from run to run; the set of pieces does not. Only that set is used here:
the scores are estimated anew by expectation maximisation over the distinct words, in a fixed order.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram
from tokenizers.trainers import UnigramTrainer

from tpulm.config.artifacts import SPECIAL_TOKENS
from tpulm.core.errors import UserError

SPECIALS = list(SPECIAL_TOKENS)
SPECIAL = re.compile("|".join(map(re.escape, SPECIALS)))
SPACE = "▁"
ITERATIONS = 8  # of expectation maximisation; the scores change little after five
PSEUDO_COUNT = 0.1  # added to every piece, so that none is impossible
DECIMALS = 6  # of a score: exp and log differ in their last bits between processors
CHUNK = 100_000  # words whose lattices are held in one group of arrays
LONGEST = 256  # characters; longer words (text without spaces) are scored in parts


def untrained() -> Tokenizer:
    """Return the published procedure's tokenizer without pieces: normalizer, pre-tokenizer, template, decoder."""
    tokenizer = Tokenizer(Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.Replace("''", '"')])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", SPECIALS.index("[CLS]")), ("[SEP]", SPECIALS.index("[SEP]"))],
    )
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def assemble(scores: dict[str, float]) -> Tokenizer:
    """Return a tokenizer with these pieces (log-probabilities), ordered by falling score, then by piece."""
    vocabulary = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    tokenizer = untrained()
    tokenizer.model = Unigram([(token, 0.0) for token in SPECIALS] + vocabulary, unk_id=SPECIALS.index("<unk>"))
    # The space before a masked word belongs to that word: [MASK] takes it along.
    tokenizer.add_special_tokens([AddedToken(t, lstrip=t == "[MASK]", normalized=False) for t in SPECIALS])
    return tokenizer


def without_specials(batches: Iterable[list[str]]) -> Iterator[list[str]]:
    """Put a space in place of special tokens that stand in the text: they are never cut into pieces."""
    for texts in batches:
        yield [SPECIAL.sub(" ", text) for text in texts]


def words(text: str) -> list[str]:
    """Split a text as the normalizer and the pre-tokenizer do: "a  b" gives ["▁a", "▁", "▁b"]."""
    parts = text.replace("``", '"').replace("''", '"').replace(SPACE, " ").split(" ")
    # A text that begins with a space gets no second one.
    return [SPACE + part for part in (parts if parts[0] else parts[1:])]


def count_words(batches: Iterable[list[str]]) -> dict[str, int]:
    """Return how often each distinct word occurs, in sorted order."""
    counts: Counter[str] = Counter()
    for texts in batches:
        for text in texts:
            counts.update(words(text))
    return dict(sorted(counts.items()))


def train(read: Callable[[], Iterator[list[str]]], vocab_size: int) -> Tokenizer:
    """Train a tokenizer of `vocab_size` pieces, special tokens included.

    read  returns the batches of documents from the start; called twice

    Raises UserError when `vocab_size` cannot hold every character, or is more than the text has pieces.
    """
    counts = count_words(without_specials(read()))
    alphabet = set().union(*counts)
    if vocab_size < len(alphabet) + len(SPECIALS):
        raise UserError(
            f"tokenizer.vocab_size is {vocab_size}; allowed: {len(alphabet) + len(SPECIALS)} or more, since the text "
            f"has {len(alphabet)} different characters and there are {len(SPECIALS)} special tokens."
        )
    pieces = choose_pieces(without_specials(read()), vocab_size)
    if len(pieces) + len(SPECIALS) < vocab_size:
        raise UserError(
            f"tokenizer.vocab_size is {vocab_size}; allowed: {len(pieces) + len(SPECIALS)} or less, "
            "since the text has no more pieces that repeat."
        )
    return assemble(estimate_scores(counts, pieces))


def choose_pieces(batches: Iterable[list[str]], vocab_size: int) -> list[str]:
    """Return the pieces that the library's trainer keeps, sorted, special tokens left out."""
    trainer = UnigramTrainer(vocab_size=vocab_size, unk_token="<unk>", special_tokens=SPECIALS, show_progress=False)
    tokenizer = untrained()
    tokenizer.train_from_iterator(batches, trainer=trainer)
    return sorted(set(tokenizer.get_vocab(with_added_tokens=False)) - set(SPECIALS))


def estimate_scores(counts: dict[str, int], pieces: list[str]) -> dict[str, float]:
    """Return the log-probability of each piece by expectation maximisation over all ways to cut each word.

    counts  occurrences of each distinct word; every character of a word must be a piece
    """
    ids = {piece: index for index, piece in enumerate(pieces)}
    parts: Counter[str] = Counter()
    for word, count in counts.items():
        for start in range(0, len(word), LONGEST):
            parts[word[start : start + LONGEST]] += count
    items = sorted(parts.items())
    lattices = [Lattice(items[start : start + CHUNK], ids) for start in range(0, len(items), CHUNK)]
    none = np.zeros(len(pieces))
    expected = sum((lattice.occurrences(len(pieces)) for lattice in lattices), none)
    for iteration in range(ITERATIONS + 1):
        scores = np.log((expected + PSEUDO_COUNT) / (expected.sum() + PSEUDO_COUNT * len(pieces)))
        if iteration < ITERATIONS:
            expected = sum((lattice.expectation(scores) for lattice in lattices), none)
    return dict(zip(pieces, np.round(scores, DECIMALS).tolist(), strict=True))


class Lattice:
    """All ways to cut some words into pieces: nodes are the places between characters, edges are pieces.

    Node `base[w] + i` stands before character i of word w. Edges are arrays (source node, target node, piece),
    all int32, in the order of their target's place in its word; `back` is their order by source, last place first.
    """

    def __init__(self, items: list[tuple[str, int]], ids: dict[str, int]):
        longest = max(map(len, ids))
        sizes = np.array([len(word) for word, _ in items])
        self.counts = np.array([count for _, count in items], np.float64)
        self.first = np.cumsum(sizes + 1) - sizes - 1
        self.last = self.first + sizes
        edges: list[tuple[int, int, int, int, int]] = []  # source, target, piece, place, length
        for base, (word, _) in zip(self.first.tolist(), items, strict=True):
            for start in range(len(word)):
                for stop in range(start + 1, min(start + longest, len(word)) + 1):
                    index = ids.get(word[start:stop])
                    if index is not None:
                        edges.append((base + start, base + stop, index, start, stop - start))
        source, target, piece, place, length = np.array(edges, np.int32).reshape(-1, 5).T
        order = np.lexsort((source, target, place + length))
        self.source, self.target, self.piece = source[order], target[order], piece[order]
        self.back = np.lexsort((target[order], source[order], -place[order])).astype(np.int32)
        self.ahead_steps = steps(self.target, (place + length)[order])
        self.back_steps = steps(self.source[self.back], place[order][self.back])
        word_of_node = np.repeat(np.arange(len(items)), sizes + 1)
        self.word = word_of_node[self.source]

    def occurrences(self, pieces: int) -> np.ndarray:
        """Return how often each piece occurs anywhere in the words, float64 of shape [pieces]."""
        return np.bincount(self.piece, self.counts[self.word], pieces)

    def expectation(self, scores: np.ndarray) -> np.ndarray:
        """Return how often each piece is expected in a cut drawn by `scores`, float64 of shape [pieces].

        The forward-backward algorithm (Baum 1972), in logarithms since long words underflow.
        """
        ahead = np.full(self.last[-1] + 1, -np.inf)
        behind = np.full(self.last[-1] + 1, -np.inf)
        ahead[self.first], behind[self.last] = 0, 0
        weight = scores[self.piece]
        for edges, groups in self.ahead_steps:
            values = ahead[self.source[edges]] + weight[edges]
            ahead[self.target[edges][groups]] = log_sum(values, groups)
        for edges, groups in self.back_steps:
            chosen = self.back[edges]
            values = behind[self.target[chosen]] + weight[chosen]
            behind[self.source[chosen[groups]]] = log_sum(values, groups)
        total = ahead[self.last]
        posterior = np.exp(ahead[self.source] + weight + behind[self.target] - total[self.word])
        return np.bincount(self.piece, posterior * self.counts[self.word], len(scores))


def steps(node: np.ndarray, place: np.ndarray) -> list[tuple[slice, np.ndarray]]:
    """Cut edges, sorted by place and then by node, into one step per place.

    Returns for each step its range of edges, and where in it each node's edges begin.
    """
    bounds = np.flatnonzero(np.diff(place, prepend=-1, append=-1)) if len(place) else np.empty(0, int)
    cut = []
    for low, high in zip(bounds[:-1], bounds[1:], strict=True):
        nodes = node[low:high]
        cut.append((slice(low, high), np.flatnonzero(np.diff(nodes, prepend=nodes[0] - 1))))
    return cut


def log_sum(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return ln sum exp of each group of neighbouring values; `groups` is where each begins."""
    highest = np.maximum.reduceat(values, groups)
    sizes = np.diff(groups, append=len(values))
    return highest + np.log(np.add.reduceat(np.exp(values - np.repeat(highest, sizes)), groups))
