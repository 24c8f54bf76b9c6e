"""The order in which training reads its records: a pure function of the seed and the position."""

from collections.abc import Mapping

import numpy as np

from tpulm.core.random_streams import generator

BLOCK = 1024  # neighbouring records that are read together, so that a bucket is read in long runs
WINDOW = 16  # blocks whose records are mixed with each other


def epochs(steps: int, batch_size: int, records: int) -> float:
    """Return the mean number of times that training has read each record after `steps` steps."""
    return steps * batch_size / records


def epochs_of(recipe: Mapping, records: int) -> str:
    """Return the epochs of a segment in words.

    recipe  first, last and batch_size of the segment; records  of the training split
    """
    first, last = (epochs(recipe[step], recipe["batch_size"], records) for step in ("first", "last"))
    return f"epochs {first:,.2f} to {last:,.2f}, of {records:,} records"


def epoch_order(records: int, seed: int, epoch: int, start: int, stop: int) -> np.ndarray:
    """Return positions `start` to `stop` of one epoch's permutation of range(records), int64.

    Blocks of BLOCK neighbouring records are permuted, then the records within each WINDOW of those blocks. Only the
    windows of the range are computed.
    """
    blocks = generator("order of blocks", seed, epoch).permutation(-(-records // BLOCK))
    sizes = np.minimum(BLOCK, records - blocks * BLOCK)
    ends = np.cumsum(sizes)
    pieces = []
    for first in range(0, len(blocks), WINDOW):
        window = slice(first, first + WINDOW)
        low, high = ends[window][0] - sizes[first], ends[window][-1]
        if high <= start or low >= stop:
            continue
        members = np.concatenate(
            [np.arange(b * BLOCK, b * BLOCK + n) for b, n in zip(blocks[window], sizes[window], strict=True)]
        )
        mixed = generator("order in a window", seed, epoch, first // WINDOW).permutation(members)
        pieces.append(mixed[max(start - low, 0) : stop - low])
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def batch_records(records: int, seed: int, batch_size: int, step: int) -> np.ndarray:
    """Return the record indices of global batch `step` (counted from 0), int64 of shape [batch_size].

    Epochs follow each other without a gap: a batch may end one and begin the next.
    """
    return record_range(records, seed, step * batch_size, (step + 1) * batch_size)


def record_range(records: int, seed: int, start: int, stop: int) -> np.ndarray:
    """Return the record indices at positions `start` to `stop` of the endless stream of epochs, int64."""
    pieces = []
    while start < stop:
        epoch, offset = divmod(start, records)
        end = min(records, offset + stop - start)
        pieces.append(epoch_order(records, seed, epoch, offset, end))
        start += end - offset
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def blocks_ahead(records: int, seed: int, start: int) -> list[int]:
    """Return the blocks of the window with position `start` of the endless stream, and of the next window."""
    numbers: dict[int, None] = {}
    stop = start + min(WINDOW * BLOCK, records)
    while start <= stop:
        epoch, offset = divmod(start, records)
        blocks = generator("order of blocks", seed, epoch).permutation(-(-records // BLOCK))
        ends = np.cumsum(np.minimum(BLOCK, records - blocks * BLOCK))
        first = int(np.searchsorted(ends, offset, side="right")) // WINDOW * WINDOW
        numbers |= dict.fromkeys(blocks[first : first + WINDOW].tolist())
        start = epoch * records + int(ends[first : first + WINDOW][-1])
    return list(numbers)
