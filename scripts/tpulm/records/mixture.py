"""The training records of a phase: those of several sources, mixed by a pure function of (seed, step).

Each block of MIXED neighbouring positions of a phase has the share of each source, to the nearest position, in an order
drawn by the seed. A source is read in the order of tpulm.records.order, from where the phases before have left it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tpulm.core import processes
from tpulm.core.random_streams import generator
from tpulm.records.reader import Records, open_records, open_to_train
from tpulm.specs.phases import MIXED


def places_of(shares: Sequence[float]) -> np.ndarray:
    """Return how many positions of a block each source has, int64 [sources]."""
    return np.diff(np.floor(np.cumsum([0.0, *shares]) * MIXED + 0.5).astype(np.int64))


def block_order(counts: np.ndarray, seed: int, first: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the source of each position of a block, and its number among those of the source so far, int64 [MIXED].

    counts  of `places_of`; first  step before the phase
    """
    sources = generator("mixture", seed, first, block).permutation(np.repeat(np.arange(len(counts)), counts))
    within = np.cumsum(sources[:, None] == np.arange(len(counts)), axis=0)[np.arange(MIXED), sources] - 1
    return sources, block * counts[sources] + within


def records_read(phase: Mapping, seed: int, steps: int) -> dict[str, int]:
    """Return how many records of each source the first `steps` steps of a phase take."""
    counts = places_of(list(phase["shares"].values()))
    blocks, rest = divmod(steps * phase["batch_size"], MIXED)
    sources, _ = block_order(counts, seed, phase["first"], blocks)
    numbers = blocks * counts + np.bincount(sources[:rest], minlength=len(counts))
    return dict(zip(phase["shares"], numbers.tolist(), strict=True))


class Mixture:
    """The training records of a phase, which batches read as those of one set, see `Records`."""

    def __init__(self, sets: Sequence[Records], phases: Sequence[Mapping], seed: int):
        """Mix the training splits of the sources of the last of `phases`.

        sets    in the order of the phase's shares
        phases  of the recipe of a segment, see tpulm.specs.phases; seed  of the run
        """
        self.sets, (*before, self.phase), self.seed = list(sets), phases, seed
        self.manifest, self.sequence_length = self.sets[0].manifest, self.sets[0].sequence_length
        self.starts = dict.fromkeys(self.phase["shares"], 0)
        for earlier, after in zip(before, phases[1:], strict=True):
            if earlier["sequence_length"] == self.phase["sequence_length"]:
                for name, number in records_read(earlier, seed, after["first"] - earlier["first"]).items():
                    self.starts[name] = self.starts.get(name, 0) + number

    def batch(
        self, names: Sequence[str], seed: int, size: int, step: int, rows: slice = slice(None)
    ) -> dict[str, np.ndarray]:
        """Return features of `rows` of global batch `step`, as `Records.batch` does."""
        counts, first = places_of(list(self.phase["shares"].values())), self.phase["first"]
        start = (step - first) * size
        blocks = range(start // MIXED, -(-(start + size) // MIXED))
        orders = [block_order(counts, seed, first, block) for block in blocks]
        begin = start - blocks.start * MIXED
        sources, numbers = (np.concatenate(parts)[begin : begin + size][rows] for parts in zip(*orders, strict=True))
        features = {name: np.empty((len(sources), self.manifest["tokens_per_record"]), np.int32) for name in names}
        for number, (source, records) in enumerate(zip(self.phase["shares"], self.sets, strict=True)):
            places = np.flatnonzero(sources == number)
            if len(places):
                position = self.starts[source] + int(numbers[places[0]])
                read = records.batch_from(names, seed, position, len(places))
                for name in names:
                    features[name][places] = read[name]
        return features

    def epochs_of(self, recipe: Mapping) -> str:
        """Return the share and the epochs of each source in a segment in words."""
        until = records_read(self.phase, self.seed, recipe["last"] - self.phase["first"])
        return "; ".join(
            f"{100 * share:.1f} % {source or 'of all sources'}, until epoch "
            f"{(self.starts[source] + until[source]) / len(records):,.2f} of {len(records):,} records"
            for (source, share), records in zip(self.phase["shares"].items(), self.sets, strict=True)
        )


def open_segment(manifest: str, mixture: Sequence[str], recipe: Mapping) -> tuple["Records | Mixture", Records]:
    """Return the training records of a segment and the validation records of its run, see `open_to_train`.

    manifest  of the run's own records; mixture  those of its phase, in the order of its shares, none without phases
    recipe    of the segment

    Raises UserError as it does.
    """
    if not mixture:
        return open_to_train(manifest)
    sets, validation = [open_records(place, "train") for place in mixture], open_records(manifest, "validation")
    if not processes.is_worker():
        for records in [*sets, validation]:
            records.verify()
    return Mixture(sets, recipe["phases"], recipe["seed"]), validation
