"""Check, copy and index external TFRecord files of tf.train.Example."""

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.core.files import atomic_write
from tpulm.records.tfrecord import Example, decode, scan

NEEDED = ("input_ids", "attention_mask")
GZIP = b"\x1f\x8b"


def take_shard(source: str, records: str | Path, expected: Mapping) -> dict:
    """Copy a TFRecord file, write its index, and return the manifest's entry of the shard.

    source    a file, or gs://BUCKET/NAME, whose records have the int64 features input_ids and attention_mask; other
              features are not read
    records   SPLIT/NUMBER-of-SHARDS.tfrecord, the copy; the index next to it has the extension .index
    expected  tokens_per_record, packing, vocab_size, special_ids; length_key, the config key of the length

    Raises UserError, naming the file and the record, for the first record that is damaged or not as expected.
    """
    records = Path(records)
    index, split = records.with_suffix(".index"), records.parent.name
    with atomic_write(records) as partial:
        with bucket.opened(source) as original, open(partial, "wb") as copy:
            shutil.copyfileobj(original, copy, 1 << 22)
        # Checking the copy also finds a source that changed while it was copied.
        places, tokens = check_records(partial, source, expected)
        with open(partial, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    table = np.array(places, "<u8").tobytes()
    with atomic_write(index) as partial:
        partial.write_bytes(table)
    return {
        "file": f"{split}/{records.name}",
        "index": f"{split}/{index.name}",
        "tokens": tokens,
        "dropped_tokens": 0,
        "records": len(places) - 1,
        "bytes": places[-1],
        "sha256": digest,
        "index_sha256": hashlib.sha256(table).hexdigest(),
    }


def check_records(path: Path, source: str, expected: Mapping) -> tuple[list[int], int]:
    """Return the offsets of the records of a file, with its end, and their tokens. Raises as `take_shard` does."""
    with open(path, "rb") as file:
        if file.read(2) == GZIP and os.path.getsize(path) > 2:
            raise UserError(f"{source} is compressed with gzip; allowed: uncompressed TFRecord files.")
    places, tokens = [0], 0
    for stop, data in scan(path, source):
        problem = mistake_in(data, expected)
        if problem:
            raise UserError(f"{source}: in record {len(places) - 1} (bytes {places[-1]} to {stop}), {problem}")
        places.append(stop)
        tokens += int(decode(data, "attention_mask").sum())
    if len(places) == 1:
        raise UserError(f"{source} has no records; allowed: at least one.")
    return places, tokens


def mistake_in(data: bytes, expected: Mapping) -> str | None:
    """Return the first mistake in a record as the end of a message; None without any."""
    allowed = "allowed: a tf.train.Example with input_ids and attention_mask as int64."
    try:
        features = Example.FromString(data).features.feature
    except DecodeError:
        return f"the content is not a tf.train.Example; {allowed}"
    # Access to an absent feature would add it.
    counts = {name: len(features[name].int64_list.value) if name in features else 0 for name in NEEDED}
    if not all(counts.values()):
        names = ", ".join(sorted(features)) or "nothing"
        return f"the features are {names}, and {min(counts, key=counts.__getitem__)} has no integers; {allowed}"
    length = expected["tokens_per_record"]
    if set(counts.values()) != {length}:
        return (
            f"input_ids has {counts['input_ids']} values and attention_mask {counts['attention_mask']}; allowed: "
            + (f"{length} each, {expected['length_key']}.")
        )
    ids, mask = decode(data), decode(data, "attention_mask")
    outside = ids[(ids < 0) | (ids >= expected["vocab_size"])]
    if outside.size:
        return f"an id is {outside[0]}; allowed: 0 to {expected['vocab_size'] - 1}, the ids of the tokenizer."
    if expected["packing"] == "concat" and np.isin(mask, (0, 1)).all() and not mask.all():
        return "attention_mask is not 1 throughout: there is padding; for such records, set tfrecords.packing to pad."
    if expected["packing"] == "concat":
        return None if (mask == 1).all() else "there is an error: attention_mask is not 1 throughout."
    if not np.isin(mask, (0, 1)).all() or (np.diff(mask) > 0).any():
        return "there is an error: attention_mask is not 1 for the tokens and then 0."
    padding = (ids[mask == 0] == expected["special_ids"]["pad"]).all()
    return None if padding else "there is an error: a token where attention_mask is 0 is not padding."
