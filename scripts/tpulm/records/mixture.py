"""The training records of a phase: those of several sources, mixed by a pure function of (seed, step).

Each block of MIXED neighbouring positions of a phase has the share of each source, to the nearest position, in an order
drawn by the seed. A source is read in the order of tpulm.records.order, from where the phases before have left it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tpulm.core import processes
from tpulm.core.random_streams import generator
from tpulm.records.order import blocks_ahead, epochs, record_range
from tpulm.records.reader import Records, open_records, open_to_train

MIXED = 2048  # positions of a block: shares are multiples of 1 / MIXED


def places_of(shares: Sequence[float]) -> np.ndarray:
    """Return the positions of a block that each source has, int64 [sources], by largest remainders; at least one."""
    exact = np.array(shares) * MIXED
    counts = np.maximum(np.floor(exact), 1).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    rest = MIXED - int(counts.sum())
    counts[order[:rest] if rest > 0 else np.argmax(counts)] += 1 if rest > 0 else rest
    return counts


def block_order(counts: np.ndarray, seed: int, first: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the source of each position of a block, and its number among those of the source so far, int64 [MIXED].

    counts  of `places_of`; first  step before the phase
    """
    sources = np.repeat(np.arange(len(counts)), counts)
    sources = generator("mixture", seed, first, block).permutation(sources)
    within = np.cumsum(sources[:, None] == np.arange(len(counts)), axis=0)[np.arange(MIXED), sources] - 1
    return sources, block * counts[sources] + within


def mixed(counts: np.ndarray, seed: int, first: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what `block_order` does for the positions `start` to `stop` of a phase."""
    blocks = range(start // MIXED, -(-stop // MIXED))
    parts = [block_order(counts, seed, first, block) for block in blocks]
    within = slice(start - blocks.start * MIXED, stop - blocks.start * MIXED)
    sources, numbers = (np.concatenate(arrays)[within] for arrays in zip(*parts, strict=True))
    return sources, numbers


def taken(counts: np.ndarray, seed: int, first: int, positions: int) -> np.ndarray:
    """Return how many records of each source a phase has taken after so many positions, int64 [sources]."""
    blocks, rest = divmod(positions, MIXED)
    sources, _ = block_order(counts, seed, first, blocks)
    return blocks * counts + np.bincount(sources[:rest], minlength=len(counts))


class Mixture:
    """The training records of a phase, which batches read as those of one set, see `Records`."""

    def __init__(self, sets: Sequence[Records], phases: Sequence[Mapping], seed: int):
        """Mix the training splits of the sources of the last of `phases`.

        sets    in the order of the phase's shares
        phases  of the recipe of a segment: first, batch_size, sequence_length and shares of the phase and of those
                before; seed  of the run
        """
        self.sets, (*before, phase) = list(sets), phases
        self.manifest, self.sequence_length = self.sets[0].manifest, self.sets[0].sequence_length
        self.names, self.first, self.seed = list(phase["shares"]), phase["first"], seed
        self.counts = places_of(list(phase["shares"].values()))
        self.starts = dict.fromkeys(self.names, 0)
        for earlier, after in zip(before, phases[1:], strict=True):
            if earlier["sequence_length"] == phase["sequence_length"]:
                counts = places_of(list(earlier["shares"].values()))
                positions = (after["first"] - earlier["first"]) * earlier["batch_size"]
                numbers = taken(counts, seed, earlier["first"], positions).tolist()
                for name, number in zip(earlier["shares"], numbers, strict=True):
                    if name in self.starts:
                        self.starts[name] += number

    def batch(
        self, names: Sequence[str], seed: int, size: int, step: int, rows: slice = slice(None)
    ) -> dict[str, np.ndarray]:
        """Return features of `rows` of global batch `step`, as `Records.batch` does."""
        start = (step - self.first) * size
        sources, numbers = (part[rows] for part in mixed(self.counts, seed, self.first, start, start + size))
        shape = len(sources), self.manifest["tokens_per_record"]
        features = {name: np.empty(shape, np.int32) for name in names}
        for source in np.unique(sources).tolist():
            records, places = self.sets[source], np.flatnonzero(sources == source)
            begin = self.starts[self.names[source]] + int(numbers[places[0]])
            indices = record_range(len(records), seed, begin, begin + len(places))
            read = records.features(indices, names, lambda r=records, b=begin: blocks_ahead(len(r), seed, b))
            for name in names:
                features[name][places] = read[name]
        return features

    def epochs_of(self, recipe: Mapping) -> str:
        """Return the share and the epochs of each source in a segment in words."""
        words = []
        for number, (name, records) in enumerate(zip(self.names, self.sets, strict=True)):
            steps = (recipe[step] - self.first for step in ("first", "last"))
            ends = [
                self.starts[name] + int(taken(self.counts, self.seed, self.first, n * recipe["batch_size"])[number])
                for n in steps
            ]
            low, high = (epochs(1, end, len(records)) for end in ends)
            share = f"{100 * self.counts[number] / MIXED:.1f} % {name or 'of all sources'}"
            words.append(f"{share}: epochs {low:,.2f} to {high:,.2f}, of {len(records):,} records")
        return "; ".join(words)


def open_segment(manifest: str, mixture: Sequence[str], recipe: Mapping) -> tuple["Records | Mixture", Records]:
    """Return the training records of a segment and the validation records of its run, see `open_to_train`.

    manifest  of the run's own records; mixture  those of its phase, in the order of its shares, none without phases
    recipe    of the segment

    Raises UserError as it does.
    """
    if not mixture:
        return open_to_train(manifest)
    sets = [open_records(place, "train") for place in mixture]
    if not processes.is_worker():
        for records in sets:
            records.verify()
    validation = open_records(manifest, "validation")
    if not processes.is_worker():
        validation.verify()
    return Mixture(sets, recipe["phases"], recipe["seed"]), validation
