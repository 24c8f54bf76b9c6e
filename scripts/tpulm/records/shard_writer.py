"""One shard: the ids of its documents packed into records and written as TFRecords."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from tpulm.core.errors import UserError
from tpulm.records.packing import Documents, Features, Layout, pack
from tpulm.records.tfrecord import write_records


def write_shard(
    documents: Iterable[Documents], recipe: Mapping, pad: int, closing: int, records: str | Path, count: int
) -> dict:
    """Write a shard and its index; return what the manifest says of it.

    documents     as `pack` takes them; pad, closing  see `Layout`
    recipe        packing, sequence_length, tokens_per_record; shards_key and length_key, their names in the config
    records       SPLIT/NUMBER-of-SHARDS.tfrecord; the index beside it has the extension .index
    count         how many documents these are

    Raises UserError where they are too few for one record.
    """
    records = Path(records)
    index = records.with_suffix(".index")
    split, (shard, _, shards) = records.parent.name, records.stem.partition("-of-")
    layout = Layout(recipe["packing"], recipe["sequence_length"], recipe["tokens_per_record"], pad, closing)
    packer = layout.packer()

    def reason() -> str:
        keys = f"{recipe['shards_key']}.{split} is {int(shards)} with {recipe['length_key']} {layout.sequence_length}"
        return (
            f"{keys}, but shard {int(shard)} has only {packer.tokens} tokens; allowed: so few shards, or so short a "
            "sequence, that each shard has one record at least."
        )

    written = write_records(records, index, some(pack(documents, packer), reason))
    return {
        "file": f"{split}/{records.name}",
        "index": f"{split}/{index.name}",
        "documents": count,
        "tokens": packer.tokens,
        "dropped_tokens": packer.dropped,
        **written,
    }


def some(blocks: Iterable[Features], reason: Callable[[], str]) -> Iterator[Features]:
    """Yield all blocks. Raises UserError, with a reason, at the end where there was none."""
    empty = True
    for block in blocks:
        empty = False
        yield block
    if empty:
        raise UserError(reason())
