"""Write shards: assign documents to them, pack these into records of one length, and describe them in a manifest."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.records.tfrecord import write_records
from tpulm.specs.shards import files_of_shard, shards_of_files

SPELLED = "special_tokens_in_text"  # a key of sidecars and manifests in which there are such tokens
TOKENS_AT_ONCE = 1 << 20  # tokens of records that are packed together, about
Features = dict[str, np.ndarray]
Documents = tuple[np.ndarray, ...]


def range_of(lengths: Sequence[np.ndarray], shard: int, shards: int, files: int, key: str) -> dict[str, int]:
    """Return the documents of a shard: a range, as in `plan_ranges`, of those in the files of the shard.

    lengths        characters of the documents of each file of `files_of_shard`, integers of shape [documents]
    shards, files  numbers of the split
    key            config key of `shards`

    Raises UserError if the files have fewer documents than shards.
    """
    file_range = files_of_shard(shard, shards, files)
    sharing = shards_of_files(shard, shards, files)
    joined = np.concatenate(lengths)
    if len(sharing) > len(joined) and len(file_range) < files:
        raise UserError(
            f"{key} is {shards}, but {len(sharing)} shards share the {len(joined)} documents of file "
            f"{file_range.start} of {files}; allowed: fewer."
        )
    return plan_ranges(joined, len(sharing), key)[shard - sharing.start]


def range_of_job(lengths: Sequence[str], recipe: Mapping, split: str, shard: int, shards: int) -> dict[str, int]:
    """Return the documents of the shard that a job writes, see `range_of`.

    lengths        paths of NumPy files, also in a bucket, each with the lengths of a file of documents
    recipe         shards, files of the split; shards_key
    shard, shards  of the file to write

    Raises UserError if the config has another number of shards.
    """
    key = f"{recipe['shards_key']}.{split}"
    if shards != recipe["shards"] or shard >= shards:
        raise UserError(f"{key} is {recipe['shards']}: there is no shard {shard:05d}-of-{shards:05d}.")
    return range_of(list(map(bucket.array, lengths)), shard, shards, recipe["files"], key)


def plan_ranges(lengths: np.ndarray, shards: int, key: str) -> list[dict[str, int]]:
    """Cut documents into `shards` contiguous ranges of about as many characters each.

    lengths  characters of each document, integers of shape [documents]
    key      config key of `shards`

    Returns start, stop (exclusive), documents and characters of each range. A range has at least one document.
    Raises UserError if there are more shards than documents.
    """
    documents = len(lengths)
    if shards > documents:
        raise UserError(f"{key} is {shards}; allowed: 1 to {documents}, the number of documents in this split.")
    ends = np.cumsum(lengths, dtype=np.int64)
    targets = np.arange(1, shards) * (int(ends[-1]) / shards)
    # A cut goes after the document whose end is nearest to its target; equal cuts are then moved apart.
    below = np.searchsorted(ends, targets)
    nearest = below + (ends[below] - targets <= targets - np.where(below, ends[below - 1], 0))
    numbers = np.arange(1, shards)
    nearest = np.maximum.accumulate(nearest - numbers) + numbers
    cuts = np.clip(nearest, numbers, documents - shards + numbers)
    bounds = [0, *cuts.tolist(), documents]
    sums = [0, *ends[np.array(bounds[1:]) - 1].tolist()]
    return [
        {"start": start, "stop": stop, "documents": stop - start, "characters": high - low}
        for start, stop, low, high in zip(bounds[:-1], bounds[1:], sums[:-1], sums[1:], strict=True)
    ]


@dataclass(frozen=True)
class Layout:
    """How documents become records.

    packing            concat: documents end to end, cut into windows; segments: the same, and records number their
                       documents; pad: a document per record
    sequence_length    tokens of a record that a model reads
    tokens_per_record  one more for a causal model: windows overlap by it, so that each token but the first is predicted
                       once
    pad                id of the padding
    suffix_tokens      number of special tokens at the end of each document, also of a truncated one
    responses          whether records mark the tokens of responses
    """

    packing: str
    sequence_length: int
    tokens_per_record: int
    pad: int
    suffix_tokens: int
    responses: bool = False

    def packer(self) -> "Windows | OnePerRecord":
        """Return the packer of one shard."""
        return OnePerRecord(self) if self.packing == "pad" else Windows(self)


class Windows:
    """Cuts documents, end to end, into windows; an incomplete window at the end is dropped; tokens  ids so far."""

    def __init__(self, layout: Layout):
        self.stride, self.width = layout.sequence_length, layout.tokens_per_record
        self.segments = layout.packing == "segments"
        self.tokens = self.documents = 0
        self.rest = np.empty((1 + layout.responses + self.segments, 0), np.int32)

    @property
    def dropped(self) -> int:
        """The number of ids that no record holds yet."""
        held = self.width - self.stride if self.tokens >= self.width else 0  # tokens that the last window holds, too
        return self.rest.shape[1] - held

    def add(self, documents: Documents) -> Iterator[Features]:
        """Add documents, and yield the records that they complete, see `pack`."""
        ids, lengths, *loss_mask = documents
        more = loss_mask
        if self.segments:
            # Parities tell neighbouring documents apart; documents without tokens do not count.
            lengths = lengths[lengths > 0]
            more = [*loss_mask, np.repeat(((self.documents + np.arange(len(lengths))) % 2).astype(np.int32), lengths)]
        self.tokens, self.documents = self.tokens + len(ids), self.documents + len(lengths)
        stream = np.concatenate([self.rest, np.stack([ids, *more])], axis=1, dtype=np.int32)
        records = max((stream.shape[1] - self.width) // self.stride + 1, 0)
        self.rest = stream[:, records * self.stride :]
        if not records:
            return
        rows, *masks = np.lib.stride_tricks.sliding_window_view(stream, self.width, axis=1)[:, :: self.stride]
        block = unpadded(rows) | ({"segment_ids": numbered(masks.pop())} if self.segments else {})
        yield block | dict(zip(("loss_mask",), masks, strict=False))


def numbered(parities: np.ndarray) -> np.ndarray:
    """Return the number of each token's document within its record, 1, 2, ...: int32 of shape [n, tokens_per_record].

    parities  0 or 1 of that shape, alternating between documents
    """
    begins = np.diff(parities, axis=1, prepend=parities[:, :1]) != 0
    return 1 + np.cumsum(begins, axis=1, dtype=np.int32)


class OnePerRecord:
    """Makes a record of each document, truncated or padded; tokens  ids so far; dropped  ids that were cut off."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.tokens = self.dropped = 0

    def add(self, documents: Documents) -> Iterator[Features]:
        """Add documents, and yield their records, see `pack`."""
        ids, lengths, *loss_mask = documents
        layout, width = self.layout, self.layout.tokens_per_record
        ends = np.cumsum(lengths)
        self.tokens += len(ids)
        self.dropped += int(np.maximum(lengths - width, 0).sum())
        for first in range(0, len(lengths), max(TOKENS_AT_ONCE // width, 1)):
            part = slice(first, first + max(TOKENS_AT_ONCE // width, 1))
            held = np.arange(width) < lengths[part, None]
            places = ((ends - lengths)[part, None] + np.arange(width))[held]
            rows = np.full(held.shape, layout.pad, np.int32)
            rows[held] = ids[places]
            cut = lengths[part] > width
            suffix = ends[part][cut, None] - np.arange(layout.suffix_tokens, 0, -1)
            rows[cut, width - layout.suffix_tokens :] = ids[suffix]
            block = {"input_ids": rows, "attention_mask": held.astype(np.int32)}
            for mask in loss_mask:
                block["loss_mask"] = np.zeros(held.shape, np.int32)
                block["loss_mask"][held] = mask[places]
                # A truncated response does not end there.
                block["loss_mask"][cut, width - layout.suffix_tokens :] = 0
            yield block


def unpadded(ids: np.ndarray) -> Features:
    """Return the features of records without padding; ids  integers of shape [n, tokens_per_record]."""
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def pack(documents: Iterable[Documents], packer: Windows | OnePerRecord) -> Iterator[Features]:
    """Yield the records of one shard: int32 arrays of shape [n, tokens_per_record] by name.

    documents  batches of ids, one document after another, int32 [tokens]; tokens of each document, int64 [documents];
               if the responses count, their mask, int32 [tokens]
    packer     counts tokens and dropped ones

    input_ids; attention_mask, 1 for a token and 0 for padding; with packing: segments also segment_ids, see `numbered`;
    if the responses count also loss_mask, 1 for a token to predict
    """
    for batch in documents:
        yield from packer.add(batch)


def write_shard(
    documents: Iterable[Documents],
    recipe: Mapping,
    pad: int,
    suffix_tokens: int,
    records: str | Path,
    count: int,
    counts: Counter | None = None,
) -> dict:
    """Write a shard and its index; return the manifest's entry of the shard.

    documents     as `pack` takes them; pad, suffix_tokens  see `Layout`
    recipe        packing, sequence_length, tokens_per_record; shards_key and length_key, config keys; responses, true
                  if records mark the tokens of responses
    records       SPLIT/NUMBER-of-SHARDS.tfrecord; the index next to it has the extension .index
    count         number of documents; counts  of `special_counted`, which the entry has, too

    Raises UserError if they are too few for one record.
    """
    records = Path(records)
    index = records.with_suffix(".index")
    split, (shard, _, shards) = records.parent.name, records.stem.partition("-of-")
    sizes = recipe["sequence_length"], recipe["tokens_per_record"]
    layout = Layout(recipe["packing"], *sizes, pad, suffix_tokens, recipe.get("responses", False))
    packer = layout.packer()

    def reason() -> str:
        keys = f"{recipe['shards_key']}.{split} is {int(shards)} with {recipe['length_key']} {layout.sequence_length}"
        return (
            f"{keys}, but shard {int(shard)} has only {packer.tokens} tokens; allowed: fewer shards, or shorter "
            "sequences, so that each shard has at least one record."
        )

    counts = Counter() if counts is None else counts
    if layout.responses:
        counts.update(loss_tokens=0, target_tokens=0, records_without_loss=0)
    blocks = counted(pack(documents, packer), counts)
    written = write_records(records, index, require_nonempty(blocks, reason))
    return {
        "file": f"{split}/{records.name}",
        "index": f"{split}/{index.name}",
        "documents": count,
        "tokens": packer.tokens,
        "dropped_tokens": packer.dropped,
        **counts,
        **written,
    }


def special_counted(
    documents: Iterable[Documents], special: Iterable[int], inserted: int, counts: Counter
) -> Iterator[Documents]:
    """Yield all documents, and count the special tokens that their texts spell, such as [MASK].

    special   ids; inserted  how many of them a template puts around each document
    counts    gets special_tokens_in_text, if there are any
    """
    ids_of_special = np.array(sorted(special))
    for batch in documents:
        spelled = int(np.isin(batch[0], ids_of_special).sum()) - inserted * len(batch[1])
        if spelled:
            counts[SPELLED] += spelled
        yield batch


def counted(blocks: Iterable[Features], counts: Counter) -> Iterator[Features]:
    """Yield all blocks, and count the predicted tokens of records with loss_mask.

    counts  gets target_tokens, all tokens but the first of each record; loss_tokens, those of responses; and
            records_without_loss
    """
    for block in blocks:
        if "loss_mask" in block:
            predicted = block["loss_mask"][:, 1:].sum(axis=1)
            counts["loss_tokens"] += int(predicted.sum())
            counts["target_tokens"] += int(block["attention_mask"][:, 1:].sum())
            counts["records_without_loss"] += int((predicted == 0).sum())
        yield block


def require_nonempty(blocks: Iterable[Features], reason: Callable[[], str]) -> Iterator[Features]:
    """Yield all blocks. Raises UserError, with a reason, if there is none."""
    empty = True
    for block in blocks:
        empty = False
        yield block
    if empty:
        raise UserError(reason())


def merge_sidecars(splits: dict[str, list[dict]], layout: dict) -> dict:
    """Return the manifest of a set of records; splits  sidecars of each split's shards, in order.

    layout  sequence_length, tokens_per_record, packing; responses, if they count

    Raises UserError if a split has no token of a response, although responses count.
    """
    keys = ["documents", "records", "tokens", "dropped_tokens", "bytes"]
    # The number of documents in external records is not known.
    keys = [key for key in keys if all(key in sidecar for sidecars in splits.values() for sidecar in sidecars)]
    if layout.get("responses"):
        keys += ["loss_tokens", "target_tokens", "records_without_loss"]
    vocabulary: dict = {}
    entries = {}
    for split, sidecars in splits.items():
        shards = [{key: value for key, value in sidecar.items() if key != "vocabulary"} for sidecar in sidecars]
        vocabulary = sidecars[0]["vocabulary"]
        sums = {key: sum(shard[key] for shard in shards) for key in keys}
        if spelled := sum(shard.get(SPELLED, 0) for shard in shards):
            sums[SPELLED] = spelled
        if not sums.get("loss_tokens", 1):
            raise UserError(
                f"no record of {split} has a token of a response: with sequence_length {layout['sequence_length']}, "
                "each ends before the response of its document begins; allowed: a larger sequence_length."
            )
        entries[split] = {**sums, "shards": shards}
    return {**layout, **vocabulary, "splits": entries}
