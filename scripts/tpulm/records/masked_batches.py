"""Batches of records with masked tokens for masked language models, the same for both trainers."""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tpulm.core.random_streams import Key, generator
from tpulm.records.order import BLOCK, WINDOW
from tpulm.records.reader import Records
from tpulm.specs.record_arrays import EVALUATION_BATCH, MORE_FEATURES, predictions_per_record

if TYPE_CHECKING:
    from tpulm.records.mixture import Mixture


def mask_batch(
    input_ids: np.ndarray,
    key: Key,
    masking: dict,
    mask_id: int,
    special_ids: list[int],
    vocab_size: int,
    rows: slice = slice(None),
    batch_size: int | None = None,
) -> dict[str, np.ndarray]:
    """Return records with the tokens to predict masked (Devlin et al. 2019: 80 % mask, 10 % random, 10 % unchanged).

    input_ids  integers of shape [records, sequence_length]
    key        of `tpulm.core.random_streams.generator`; the same key gives the same choice
    masking    mlm_probability; mask_replace_prob and random_replace_prob, shares of the chosen tokens
    rows       indices of these records among the `batch_size` of a batch: they are masked as in the whole batch

    Returns input_ids (int32 [records, sequence_length], chosen tokens replaced), and of shape
    [records, predictions_per_record]: positions (int32), labels (int32, the true ids) and weights (float32, 1 for a
    prediction and 0 for padding). Special tokens are never chosen and never inserted. Each record has mlm_probability x
    (ordinary tokens) predictions, rounded up or down at random so that the expectation is exact.
    """
    records, length = input_ids.shape
    whole = batch_size or records
    random = generator(*key)
    mask, random_token = masking["mask_replace_prob"], masking["random_replace_prob"]
    most = predictions_per_record(length, masking["mlm_probability"])
    special = np.isin(input_ids, special_ids)
    rank = np.where(special, 2.0, random.random((whole, length))[rows])
    positions = np.argsort(rank, axis=1, kind="stable")[:, :most]
    wanted = (length - special.sum(axis=1)) * masking["mlm_probability"] + random.random(whole)[rows]
    chosen = np.arange(most) < np.minimum(np.floor(wanted + 1e-9), most)[:, None]
    positions = np.where(chosen, positions, 0)

    labels = np.take_along_axis(input_ids, positions, axis=1)
    fate = random.random((whole, most))[rows]
    ordinary = ordinary_ids(vocab_size, tuple(special_ids))
    anything = ordinary[random.integers(0, len(ordinary), (whole, most))[rows]]
    replaced = np.where(fate < mask, mask_id, np.where(fate < mask + random_token, anything, labels))
    hidden = input_ids.copy()
    row = np.broadcast_to(np.arange(records)[:, None], positions.shape)
    hidden[row[chosen], positions[chosen]] = replaced[chosen]
    return {
        "input_ids": hidden.astype(np.int32),
        "positions": positions.astype(np.int32),
        "labels": np.where(chosen, labels, 0).astype(np.int32),
        "weights": chosen.astype(np.float32),
    }


@lru_cache(maxsize=1)
def ordinary_ids(vocab_size: int, special_ids: tuple[int, ...]) -> np.ndarray:
    """Return the ids of a vocabulary without the special ones, ascending: int64, read-only."""
    ids = np.setdiff1d(np.arange(vocab_size), special_ids)
    ids.flags.writeable = False
    return ids


ALL = slice(None)
ROW = ("input_ids", "segment_ids", "positions", "labels", "weights")  # arrays of batches with several documents
# The key of evaluation has no seed, so that every run is measured on the same masked tokens.
EVALUATION_MASKING = {"mlm_probability": 0.15, "mask_replace_prob": 0.8, "random_replace_prob": 0.1}


def training_batch(records: "Records | Mixture", recipe: dict, step: int, rows: slice = ALL) -> dict[str, np.ndarray]:
    """Return `rows` of global batch `step` (counted from 0) of a run, see `apply_masking`.

    recipe  batch_size, seed and masking of the run
    """
    seed, size = recipe["seed"], recipe["batch_size"]
    features = records.batch(features_of(records), seed, size, step, rows)
    return apply_masking(records, features, ("masks", seed, step), recipe["masking"], rows, size)


def features_of(records: "Records | Mixture") -> tuple[str, ...]:
    """Return the features that batches have by the packing of their records: input_ids, and a mask or segment ids."""
    return ("input_ids", *MORE_FEATURES[records.manifest["packing"]])


def apply_masking(
    records: "Records | Mixture",
    features: dict[str, np.ndarray],
    key: Key,
    masking: dict,
    rows: slice = ALL,
    batch_size: int | None = None,
) -> dict[str, np.ndarray]:
    """Return the arrays of `mask_batch` for `features_of` records, and those of the packing."""
    vocabulary = records.manifest
    special = vocabulary["special_ids"]
    ids, known = features["input_ids"], sorted(set(special.values()))
    return features | mask_batch(ids, key, masking, special["mask"], known, vocabulary["vocab_size"], rows, batch_size)


def evaluation_batches(records: Records, most: int = EVALUATION_BATCH) -> Iterator[dict[str, np.ndarray]]:
    """Yield a whole split in order, in batches of one size, see `apply_masking`.

    most  records of a batch, rounded down to a power of two; the masked tokens do not depend on it
    The last batches are padded with records of weight 0.
    """
    size = min(EVALUATION_BATCH, 1 << (most.bit_length() - 1))
    for start in range(0, len(records), EVALUATION_BATCH):
        indices = np.arange(start, start + EVALUATION_BATCH)
        known = np.minimum(indices, len(records) - 1)
        features = records.features(known, features_of(records), blocks_from(records, start))
        batch = apply_masking(records, features, ("masks of evaluation", start), EVALUATION_MASKING)
        batch["weights"][indices >= len(records)] = 0
        for first in range(0, EVALUATION_BATCH, size):
            yield {name: array[first : first + size] for name, array in batch.items()}


def documents_apart(batches: Iterable[dict[str, np.ndarray]], pad: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches of records with segment ids as batches of documents, one per row, for a model without segment ids.

    No document attends to another in either. Rows are padded to the length of a record, with an attention_mask; a batch
    has EVALUATION_BATCH rows, the last one padded with rows of weight 0.
    """
    waiting: list[dict[str, np.ndarray]] = []
    for batch in batches:
        for row in zip(*(batch[name] for name in ROW), strict=True):
            waiting += split_documents(row, pad)
        while len(waiting) >= EVALUATION_BATCH:
            yield stacked(waiting[:EVALUATION_BATCH])
            waiting = waiting[EVALUATION_BATCH:]
    if waiting:
        nothing = {name: np.zeros_like(array) for name, array in waiting[0].items()}
        yield stacked(waiting + [nothing] * (EVALUATION_BATCH - len(waiting)))


def split_documents(row: tuple[np.ndarray, ...], pad: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield each document of a record, whose arrays are as in ROW, as a record of its own."""
    ids, segments, positions, labels, weights = row
    for number in range(1, int(segments.max()) + 1):
        inside = segments == number
        start, count = int(inside.argmax()), int(inside.sum())
        chosen = (segments[positions] == number) & (weights > 0)
        document_ids = np.full_like(ids, pad)
        document_ids[:count] = ids[inside]
        yield {
            "input_ids": document_ids,
            "attention_mask": (np.arange(len(ids)) < count).astype(np.int32),
            "positions": np.where(chosen, positions - start, 0).astype(np.int32),
            "labels": np.where(chosen, labels, 0).astype(np.int32),
            "weights": chosen.astype(np.float32),
        }


def stacked(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return rows as a batch."""
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def blocks_from(records: Records, start: int) -> Callable[[], range]:
    """Return a function that returns the upcoming blocks from record `start` on, of a split that is read in order."""
    return lambda: range(start // BLOCK, min(start // BLOCK + WINDOW, -(-len(records) // BLOCK)))


def masked_lm(batch: dict) -> tuple:
    """Return inputs, labels (at masked positions) and weights of a masked model for a batch.

    labels   int32 [records, predictions]; weights  float32 of that shape, 0 where nothing is predicted
    """
    import jax.numpy as jnp

    tokens = batch["input_ids"]
    padding_mask = next((batch[name] for name in ("segment_ids", "attention_mask") if name in batch), None)
    padding_mask = jnp.ones_like(tokens) if padding_mask is None else padding_mask
    inputs = {"token_ids": tokens, "padding_mask": padding_mask, "mask_positions": batch["positions"]}
    return inputs, batch["labels"], batch["weights"]
