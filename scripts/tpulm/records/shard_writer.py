"""One shard: the ids of its documents packed into sequences and written as TFRecords."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tpulm.records.packing import Packer, pack
from tpulm.records.tfrecord import write_records


def write_shard(batches: Iterable[np.ndarray], sequence_length: int, records: str | Path, documents: int) -> dict:
    """Write a shard and its index; return what the manifest says of it.

    batches    the ids of the shard's documents, one after another, int32 of shape [tokens] each
    records    SPLIT/NUMBER-of-SHARDS.tfrecord; the index beside it has the extension .index
    documents  how many documents these are

    Raises UserError where they are too few for one record.
    """
    records = Path(records)
    split, (shard, _, shards) = records.parent.name, records.stem.partition("-of-")
    index = records.with_suffix(".index")
    packer = Packer(sequence_length)
    written = write_records(records, index, pack(batches, packer, split, int(shard), int(shards)))
    return {
        "file": f"{split}/{os.path.basename(records)}",
        "index": f"{split}/{os.path.basename(index)}",
        "documents": documents,
        "tokens": packer.tokens,
        "dropped_tokens": packer.dropped,
        **written,
    }
