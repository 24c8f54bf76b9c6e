"""Batches for masked language models, the same for both trainers: which records, and which tokens are masked."""

from collections.abc import Callable, Iterator

import numpy as np

from tpulm.records.masking import mask_batch
from tpulm.records.order import BLOCK, WINDOW, batch_records, blocks_ahead
from tpulm.records.tfrecord import Records

ALL = slice(None)
EVALUATION_BATCH = 64
# Keys of random streams: training masks by (seed, MASKS, step); evaluation by a key without a seed,
# so that every run is measured on the same masked tokens.
MASKS, EVALUATION = 1, 2
EVALUATION_MASKING = {"mlm_probability": 0.15, "mask_replace_prob": 0.8, "random_replace_prob": 0.1}


def training_batch(records: Records, recipe: dict, step: int, rows: slice = ALL) -> dict[str, np.ndarray]:
    """Return these rows of global batch `step` (counted from 0) of a run, masked; arrays as in `mask_batch`.

    recipe  batch_size, seed and masking of the run
    """
    seed, size = recipe["seed"], recipe["batch_size"]
    indices = batch_records(len(records), seed, size, step)
    vocabulary = records.manifest
    return mask_batch(
        records.read(indices[rows], lambda: blocks_ahead(len(records), seed, step * size)),
        (seed, MASKS, step),
        recipe["masking"],
        vocabulary["special_ids"]["mask"],
        sorted(set(vocabulary["special_ids"].values())),
        vocabulary["vocab_size"],
        rows,
        len(indices),
    )


def evaluation_batches(records: Records, most: int = EVALUATION_BATCH) -> Iterator[dict[str, np.ndarray]]:
    """Yield a whole split in its order, masked, in batches of one size; arrays as in `mask_batch`.

    most  records that may go at once: a power of two of them do. What is masked does not depend on it
    The last batches are filled up with records of weight 0.
    """
    size = min(EVALUATION_BATCH, 1 << (most.bit_length() - 1))
    vocabulary = records.manifest
    for start in range(0, len(records), EVALUATION_BATCH):
        indices = np.arange(start, start + EVALUATION_BATCH)
        batch = mask_batch(
            records.read(np.minimum(indices, len(records) - 1), following(records, start)),
            (EVALUATION, start),
            EVALUATION_MASKING,
            vocabulary["special_ids"]["mask"],
            sorted(set(vocabulary["special_ids"].values())),
            vocabulary["vocab_size"],
        )
        batch["weights"][indices >= len(records)] = 0
        for first in range(0, EVALUATION_BATCH, size):
            yield {name: array[first : first + size] for name, array in batch.items()}


def following(records: Records, start: int) -> Callable[[], range]:
    """Return a function that returns the blocks from record `start` on, of a split that is read in its order."""
    return lambda: range(start // BLOCK, min(start // BLOCK + WINDOW, -(-len(records) // BLOCK)))


def unigram_entropy(records: Records) -> float:
    """Return the entropy of a split's ordinary tokens, nats per token.

    It is the loss of a model that knows the frequencies of the very tokens it is tested on, and
    nothing of their context: -sum p ln p over the counts (Shannon 1948).
    """
    counts = np.zeros(records.manifest["vocab_size"], np.int64)
    for start in range(0, len(records), 4096):
        ids = records.read(np.arange(start, min(start + 4096, len(records))), following(records, start))
        counts += np.bincount(ids.ravel(), minlength=len(counts))
    counts[sorted(set(records.manifest["special_ids"].values()))] = 0
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
