"""Assign documents to shards, and pack token ids into sequences of one length."""

from collections.abc import Iterable, Iterator

import numpy as np

from tpulm.core.errors import UserError


def plan_ranges(lengths: np.ndarray, shards: int, split: str) -> list[dict[str, int]]:
    """Cut documents into `shards` contiguous ranges of about as many characters each.

    lengths  characters of each document, integers of shape [documents]

    Returns start, stop (exclusive), documents and characters of each range. A range has one document at least.
    Raises UserError when there are more shards than documents.
    """
    documents = len(lengths)
    if shards > documents:
        raise UserError(
            f"tfrecords.shards.{split} is {shards}; allowed: 1 to {documents}, the number of documents in this split."
        )
    ends = np.cumsum(lengths, dtype=np.int64)
    targets = np.arange(1, shards) * (int(ends[-1]) / shards)
    # The cut goes after the document whose end is nearest; then neighbours are moved apart where they meet.
    below = np.searchsorted(ends, targets)
    nearest = below + (ends[below] - targets <= targets - np.where(below, ends[below - 1], 0))
    place = np.arange(1, shards)
    nearest = np.maximum.accumulate(nearest - place) + place
    cuts = np.clip(nearest, place, documents - shards + place)
    bounds = [0, *cuts.tolist(), documents]
    sums = [0, *ends[np.array(bounds[1:]) - 1].tolist()]
    return [
        {"start": start, "stop": stop, "documents": stop - start, "characters": high - low}
        for start, stop, low, high in zip(bounds[:-1], bounds[1:], sums[:-1], sums[1:], strict=True)
    ]


class Packer:
    """Cuts a stream of ids into sequences; what is left at the end is dropped.

    tokens   ids taken so far
    dropped  ids that no sequence holds yet, at most sequence_length - 1
    """

    def __init__(self, sequence_length: int):
        self.sequence_length = sequence_length
        self.tokens = 0
        self.rest = np.empty(0, np.int32)

    @property
    def dropped(self) -> int:
        """Return the number of ids that no sequence holds yet."""
        return len(self.rest)

    def add(self, ids: np.ndarray) -> np.ndarray:
        """Take more ids (int32) and return the sequences they complete, int32 of shape [n, sequence_length]."""
        self.tokens += len(ids)
        stream = np.concatenate([self.rest, ids])
        whole = len(stream) // self.sequence_length * self.sequence_length
        self.rest = stream[whole:]
        return stream[:whole].reshape(-1, self.sequence_length)


def pack(batches: Iterable[np.ndarray], packer: Packer, split: str, shard: int, shards: int) -> Iterator[np.ndarray]:
    """Yield the sequences of one shard, int32 of shape [n, sequence_length]; `packer` then knows tokens and dropped.

    Raises UserError at the end when there was not one sequence.
    """
    for ids in batches:
        yield packer.add(ids)
    if packer.tokens < packer.sequence_length:
        raise UserError(
            f"tfrecords.shards.{split} is {shards} with tfrecords.sequence_length {packer.sequence_length}, but shard "
            f"{shard} has only {packer.tokens} tokens; allowed: so few shards, or so short a sequence, that each shard "
            "has one record at least."
        )


def merge(sidecars: list[dict]) -> dict:
    """Return a split's entry of the manifest: its shards in order, and the sums over them."""
    keys = ("documents", "records", "tokens", "dropped_tokens", "bytes")
    return {**{key: sum(shard[key] for shard in sidecars) for key in keys}, "shards": sidecars}
