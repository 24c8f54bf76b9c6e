"""What is wrong with a record, if anything."""

from collections.abc import Mapping

import numpy as np

from tpulm.config.record_arrays import LOSS_MASK
from tpulm.records.example import decode


def damage_of(data: bytes, manifest: Mapping) -> str | None:
    """Return what is wrong with a record; None for one that is whole.

    manifest  tokens_per_record, vocab_size, packing, special_ids; where records say which tokens count, responses
    """
    ids, mask = decode(data), decode(data, "attention_mask")
    length, vocabulary, packing = manifest["tokens_per_record"], manifest["vocab_size"], manifest["packing"]
    if len(ids) != length or len(mask) != length:
        return f"{len(ids)} ids and {len(mask)} of attention_mask, not {length}."
    if ids.min() < 0 or ids.max() >= vocabulary:
        return f"an id is outside of 0 to {vocabulary - 1}."
    if manifest.get("responses"):
        loss_mask = decode(data, LOSS_MASK)
        if len(loss_mask) != length or not np.isin(loss_mask, (0, 1)).all() or (loss_mask > mask).any():
            return f"{LOSS_MASK} is not 0 or 1 for each of {length} tokens, and 0 for padding."
    if packing == "pad":
        if not np.isin(mask, (0, 1)).all() or (np.diff(mask) > 0).any():
            return "attention_mask is not 1 for the tokens and then 0."
        padding = (ids[mask == 0] == manifest["special_ids"]["pad"]).all()
        return None if padding else "where attention_mask is 0, there is no padding."
    if not (mask == 1).all():
        return "attention_mask is not 1 throughout."
    if packing == "segments":
        segments = decode(data, "segment_ids")
        if len(segments) != length or segments[0] != 1 or not np.isin(np.diff(segments), (0, 1)).all():
            return f"segment_ids do not number the documents of {length} tokens from 1."
    return None
