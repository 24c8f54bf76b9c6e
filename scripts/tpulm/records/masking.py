"""Dynamic masking for masked language models: a pure function of its key and the position in the batch."""

from functools import lru_cache

import numpy as np

from tpulm.config.record_arrays import predictions_per_record
from tpulm.core.random_streams import generator


def mask_batch(
    input_ids: np.ndarray,
    key: tuple[int, ...],
    masking: dict,
    mask_id: int,
    special_ids: list[int],
    vocab_size: int,
    rows: slice = slice(None),
    batch_size: int | None = None,
) -> dict[str, np.ndarray]:
    """Choose the tokens to predict and hide them (Devlin et al. 2019: 80 % mask, 10 % random, 10 % kept).

    input_ids  integers of shape [records, sequence_length]
    key        non-negative integers; the same key gives the same choice, whatever else runs
    masking    rate, and of the chosen ones the shares `mask` and `random`
    rows       which of the `batch_size` records of a batch these are: they are masked as in the whole batch

    Returns input_ids (int32 [records, sequence_length], chosen tokens replaced), and of shape
    [records, predictions_per_record]: positions (int32), labels (int32, the true ids) and weights
    (float32, 1 for a prediction and 0 for padding). Special tokens are never chosen and never put
    in. Per record the count is rate x (tokens that are not special), rounded up or down at random
    so that its expectation is exact: a fixed shape, which a compiled step needs.
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
