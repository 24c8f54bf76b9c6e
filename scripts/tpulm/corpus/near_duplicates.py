"""Drop near-duplicates by MinHash (Broder 1997) with locality-sensitive hashing in bands (Indyk and Motwani 1998).

Two documents whose sets of word n-grams have the Jaccard similarity s agree in a band of r minima with probability
s^r, and in at least one of b bands with 1 - (1 - s^r)^b. Documents that do count as near-duplicates.
"""

import tempfile
from collections.abc import Sequence
from functools import cache

import numpy as np

from tpulm.core.random_streams import generator
from tpulm.corpus.decontamination import FACTOR, hash_ngrams, hash_words, mix
from tpulm.corpus.documents import (
    EXAMPLE_CHARACTERS,
    EXAMPLES,
    NEAR_DUPLICATE,
    TEST,
    TRAIN,
    VALIDATION,
    read_columns,
    read_texts,
)

MOST = 256  # files that are open at once


class Partitions:
    """Rows of 64-bit numbers, the first a hash, in temporary files of about the same size by ranges of hashes."""

    def __init__(self, rows: int, size: int, width: int):
        """Open files for `rows` rows of `width` numbers, about `size` rows each."""
        self.count, self.width = min(1 + rows // size, MOST), width
        self.files = [tempfile.TemporaryFile() for _ in range(self.count)]

    def add(self, *columns: np.ndarray) -> None:
        """Write rows, given by their columns: uint64 of shape [rows]."""
        partition = (columns[0] >> np.uint64(32)) * np.uint64(self.count) >> np.uint64(32)
        order = np.argsort(partition, kind="stable")
        rows = np.stack(columns, axis=1)[order]
        bounds = np.searchsorted(partition[order], np.arange(self.count + 1))
        for number in np.flatnonzero(np.diff(bounds)):
            self.files[number].write(rows[bounds[number] : bounds[number + 1]].tobytes())

    def read(self, partition: int) -> np.ndarray:
        """Return the rows of a file in the order in which they were added, uint64 of shape [width, rows]."""
        file = self.files[partition]
        file.seek(0)
        return np.frombuffer(file.read(), np.uint64).reshape(-1, self.width).T


PERMUTATIONS = 128  # most permutations of the hashes of n-grams
PARTITION = 16_000_000  # about so many documents have a band in memory at once


@cache
def bands_and_rows(threshold: float) -> tuple[int, int]:
    """Return bands, and minima per band, that separate best at a similarity (Zhu et al. 2016, section 5.3)."""
    similarity = (np.arange(1000) + 0.5) / 1000
    below = similarity < threshold
    best = (np.inf, 1, 1)
    for bands in range(1, PERMUTATIONS + 1):
        for rows in range(1, PERMUTATIONS // bands + 1):
            probability = 1 - (1 - similarity**rows) ** bands
            wrong = np.where(below, probability, 1 - probability).mean()
            best = min(best, (round(float(wrong), 9), bands, rows))
    return best[1], best[2]


def band_names(threshold: float) -> list[str]:
    """Return the names of the columns of a part that hold the bands."""
    return [f"band{number:03d}" for number in range(bands_and_rows(threshold)[0])]


def hash_bands(texts: Sequence[str], recipe: dict, seed: int) -> np.ndarray:
    """Return a hash of each band of each text's signature, uint64 of shape [bands, texts].

    recipe  threshold, and ngram (words). The hashes of a text without words are 0.
    """
    bands, rows = bands_and_rows(recipe["threshold"])
    ngrams, counts = hash_ngrams(*hash_words(texts), recipe["ngram"], short=True)
    drawn = generator("near-duplicates", seed).integers(0, 2**63, (bands * rows, 2), np.uint64)
    factors = drawn * np.uint64(2) + np.uint64(1)
    full = np.flatnonzero(counts)
    starts = (np.cumsum(counts) - counts)[full]
    result = np.zeros((bands, len(texts)), np.uint64)
    for number, (factor, shift) in enumerate(factors if len(full) else []):
        minima = np.minimum.reduceat(ngrams * factor + shift, starts)
        result[number // rows, full] = result[number // rows, full] * FACTOR + mix(minima)
    return mix(result)


def find_clusters(parts: Sequence[str], names: Sequence[str], rank: np.ndarray) -> np.ndarray:
    """Return the lowest rank in the cluster of near-duplicates of each document, integers [ranks], by its rank.

    parts  paths of the parts, with the columns `names`
    rank   place of each document in the order in which they win, integers of shape [documents]; -1 for those left out
    """
    lowest = np.arange(int((rank >= 0).sum()), dtype=rank.dtype)
    for name in names:
        hashes = Partitions(len(rank), PARTITION, 2)
        first = 0
        for part in parts:
            for batch in read_columns(part, name):
                values = batch[name].to_numpy(zero_copy_only=False)
                part_ranks = rank[first : first + len(values)]
                rows = (part_ranks >= 0) & (values != 0)
                hashes.add(values[rows], part_ranks[rows].astype(np.uint64))
                first += len(values)
        for partition in range(hashes.count):
            members, starts = agreeing(*hashes.read(partition))
            if len(members):
                join(lowest, members.astype(rank.dtype), starts)
    return lowest


def agreeing(values: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranks of documents that agree in a band, by groups, and where each group begins.

    values  hash of the band for each document
    """
    order = np.argsort(values, kind="stable")
    values = values[order]
    equal = np.zeros(len(values) + 1, bool)
    equal[1:-1] = values[1:] == values[:-1]
    grouped = equal[1:] | equal[:-1]
    return ranks[order[grouped]], np.flatnonzero(~equal[:-1][grouped])


def join(lowest: np.ndarray, members: np.ndarray, starts: np.ndarray) -> None:
    """Put each group of members into one cluster, in `lowest`: the lowest member of each document's cluster."""
    sizes = np.diff(np.append(starts, len(members)))
    while True:
        roots = lowest[members]
        least = np.repeat(np.minimum.reduceat(roots, starts), sizes)
        if (roots == least).all():
            return
        np.minimum.at(lowest, roots, least)
        while (lowest != lowest[lowest]).any():
            lowest[:] = lowest[lowest]


def drop_near_duplicates(parts: Sequence[str], codes: np.ndarray, threshold: float) -> list[dict[str, str]]:
    """Mark all but one document of each near-duplicate cluster in `codes`; return examples, texts dropped and kept.

    Kept is the first document of test, else of validation, else of train.

    parts  paths of the parts, with a column for each band
    codes  split of each document, uint8 of shape [documents]; that of the others becomes NEAR_DUPLICATE

    Returns up to EXAMPLES dictionaries with the keys dropped and kept, texts of at most EXAMPLE_CHARACTERS.
    """
    number = np.int32 if len(codes) < 2**31 else np.int64  # memory holds three numbers for each document
    winners = np.concatenate([np.flatnonzero(codes == split).astype(number) for split in (TEST, VALIDATION, TRAIN)])
    rank = np.full(len(codes), -1, number)
    rank[winners] = np.arange(len(winners), dtype=number)
    lowest = find_clusters(parts, band_names(threshold), rank)
    dropped = winners[lowest != np.arange(len(lowest), dtype=number)]
    codes[dropped] = NEAR_DUPLICATE
    shown = [(int(row), int(winners[lowest[rank[row]]])) for row in np.sort(dropped)[:EXAMPLES]]
    wanted = np.unique(np.array(shown, np.int64))
    texts = dict(zip(wanted.tolist(), (text for batch in read_texts(parts, wanted) for text in batch), strict=True))
    pairs = [{"dropped": texts[row], "kept": texts[winner]} for row, winner in shown]
    return [{name: text[:EXAMPLE_CHARACTERS] for name, text in pair.items()} for pair in pairs]
