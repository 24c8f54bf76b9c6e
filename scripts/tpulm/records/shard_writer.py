"""One shard: the ids of its documents packed into records and written as TFRecords."""

from collections import Counter
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
    recipe        packing, sequence_length, tokens_per_record; shards_key and length_key, their names in the config;
                  responses, true where records say which tokens belong to one
    records       SPLIT/NUMBER-of-SHARDS.tfrecord; the index beside it has the extension .index
    count         how many documents these are

    Raises UserError where they are too few for one record.
    """
    records = Path(records)
    index = records.with_suffix(".index")
    split, (shard, _, shards) = records.parent.name, records.stem.partition("-of-")
    sizes = recipe["sequence_length"], recipe["tokens_per_record"]
    layout = Layout(recipe["packing"], *sizes, pad, closing, recipe.get("responses", False))
    packer = layout.packer()

    def reason() -> str:
        keys = f"{recipe['shards_key']}.{split} is {int(shards)} with {recipe['length_key']} {layout.sequence_length}"
        return (
            f"{keys}, but shard {int(shard)} has only {packer.tokens} tokens; allowed: so few shards, or so short a "
            "sequence, that each shard has one record at least."
        )

    counts = Counter(loss_tokens=0, target_tokens=0, records_without_loss=0) if layout.responses else Counter()
    blocks = counted(pack(documents, packer), counts)
    written = write_records(records, index, some(blocks, reason))
    return {
        "file": f"{split}/{records.name}",
        "index": f"{split}/{index.name}",
        "documents": count,
        "tokens": packer.tokens,
        "dropped_tokens": packer.dropped,
        **counts,
        **written,
    }


def counted(blocks: Iterable[Features], counts: Counter) -> Iterator[Features]:
    """Yield all blocks; count what is to be predicted of records that say which tokens belong to a response.

    counts  takes target_tokens, all tokens but the first of each record; loss_tokens, those of a response; and
            records_without_loss, which have none
    """
    for block in blocks:
        if "loss_mask" in block:
            predicted = block["loss_mask"][:, 1:].sum(axis=1)
            counts["loss_tokens"] += int(predicted.sum())
            counts["target_tokens"] += int(block["attention_mask"][:, 1:].sum())
            counts["records_without_loss"] += int((predicted == 0).sum())
        yield block


def some(blocks: Iterable[Features], reason: Callable[[], str]) -> Iterator[Features]:
    """Yield all blocks. Raises UserError, with a reason, at the end where there was none."""
    empty = True
    for block in blocks:
        empty = False
        yield block
    if empty:
        raise UserError(reason())
