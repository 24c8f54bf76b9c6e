"""Read the records of a split by number, from the files of this machine, or streamed from a bucket.

From a bucket, blocks of neighbouring records are requested in the order of tpulm.records.order, those of the current
window and of the next one, and held in memory until the order has passed them. A shard's index is verified by its
SHA-256 in the manifest, and each record, whenever it is read, by its two checksums (tpulm.records.tfrecord).
"""

import hashlib
import json
import mmap
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from tpulm.core import bucket, processes
from tpulm.core.errors import UserError
from tpulm.core.files import sha256_of_each
from tpulm.records.order import BLOCK, blocks_ahead, epochs_of, record_range
from tpulm.records.tfrecord import HEAD, Example, intact


def read_manifest(place: str | Path) -> dict:
    """Return the manifest of a set of records, from a path or a URL in a bucket."""
    with bucket.opened(place) as file:
        return json.load(file)


class Records:
    """All records of a split, read by number in any order.

    manifest         manifest.json as a dictionary
    sequence_length  tokens of a record that a model reads
    """

    def __init__(self, manifest: str | Path, split: str):
        """Open the shards of `split` in the folder of a manifest.

        Raises UserError if a file is absent, or has another size than in the manifest.
        """
        self.folder = os.path.dirname(manifest)
        self.manifest = read_manifest(manifest)
        self.sequence_length = self.manifest["sequence_length"]
        self.shards = self.manifest["splits"][split]["shards"]
        self.paths = [self.place(shard["file"]) for shard in self.shards]
        self.indices = [self.place(shard["index"]) for shard in self.shards]
        sizes = self.sizes()
        for shard, path, index in zip(self.shards, self.paths, self.indices, strict=True):
            check_size(path, sizes.get(path), shard["bytes"])
            check_size(index, sizes.get(index), 8 * (shard["records"] + 1))
        # Record i is in the shard `s` with starts[s] <= i < starts[s + 1].
        self.starts = np.cumsum([0] + [shard["records"] for shard in self.shards])
        self.places = [np.frombuffer(content, "<u8").astype(np.int64) for content in self.read_indices()]
        self.files: dict[int, mmap.mmap] = {}

    def place(self, name: str) -> str:
        """Return the path of a file of the manifest."""
        return os.path.join(self.folder, name)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file that exists."""
        return {path: os.path.getsize(path) for path in (*self.paths, *self.indices) if os.path.isfile(path)}

    def read_indices(self) -> list[bytes]:
        """Return the content of every shard's index."""
        return [Path(index).read_bytes() for index in self.indices]

    def __len__(self) -> int:
        return int(self.starts[-1])

    def verify(self) -> None:
        """Compare every file's SHA-256 with the manifest. Raises UserError for the first that differs."""
        files = [*self.paths, *self.indices]
        expected = [shard[key] for key in ("sha256", "index_sha256") for shard in self.shards]
        for file, digest, wanted in zip(files, sha256_of_each(files), expected, strict=True):
            check_digest(file, digest, wanted)

    def epochs_of(self, recipe: Mapping) -> str:
        """Return the epochs of a segment in words, see `order.epochs_of`."""
        return epochs_of(recipe, len(self))

    def batch(
        self, names: Sequence[str], seed: int, size: int, step: int, rows: slice = slice(None)
    ) -> dict[str, np.ndarray]:
        """Return features of `rows` of global batch `step` (counted from 0) of `size` records, see `features`."""
        start, stop, _ = rows.indices(size)
        return self.batch_from(names, seed, step * size + start, stop - start)

    def batch_from(self, names: Sequence[str], seed: int, position: int, size: int) -> dict[str, np.ndarray]:
        """Return features of `size` records at a position of the endless stream of epochs, see `order.record_range`."""
        indices = record_range(len(self), seed, position, position + size)
        return self.features(indices, names, lambda: blocks_ahead(len(self), seed, position))

    def read(self, indices: np.ndarray, upcoming: Callable[[], Iterable[int]] = tuple) -> np.ndarray:
        """Return the input_ids of records, int32 of shape [n, tokens_per_record]; see `features`."""
        return self.features(indices, ("input_ids",), upcoming)["input_ids"]

    def features(
        self, indices: np.ndarray, names: Sequence[str], upcoming: Callable[[], Iterable[int]] = tuple
    ) -> dict[str, np.ndarray]:
        """Return features of records `indices` (integers of shape [n]), each int32 of shape [n, tokens_per_record].

        upcoming  returns the blocks of tpulm.records.order that will be read soon

        Raises UserError, naming file and bytes, for a record with a wrong checksum; IndexError beyond the last record.
        """
        indices = np.asarray(indices, np.int64)
        if len(indices) and not (0 <= indices.min() and indices.max() < len(self)):
            raise IndexError(f"records {indices.min()} to {indices.max()} of {len(self)}")
        self.prepare(indices, upcoming)
        features = {name: np.empty((len(indices), self.manifest["tokens_per_record"]), np.int32) for name in names}
        shards = np.searchsorted(self.starts, indices, side="right") - 1
        for shard in np.unique(shards):
            rows = np.flatnonzero(shards == shard)
            numbers = indices[rows] - self.starts[shard]
            # Records are read in the order of the file.
            order = np.argsort(numbers, kind="stable")
            data = [self.record(int(shard), number) for number in numbers[order].tolist()]
            for row, record in zip(rows[order].tolist(), data, strict=True):
                example = Example.FromString(record).features.feature
                for name in names:
                    features[name][row] = example[name].int64_list.value
        return features

    def prepare(self, indices: np.ndarray, upcoming: Callable[[], Iterable[int]]) -> None:
        """Do nothing: the kernel reads files ahead."""

    def record(self, shard: int, number: int) -> bytes:
        """Return the data of a record of a shard. Raises UserError if its checksums are wrong."""
        start, stop = self.places[shard][number : number + 2].tolist()
        framed = self.framed(shard, number, start, stop)
        if not intact(framed):
            raise UserError(
                f"{self.paths[shard]} is corrupt at bytes {start} to {stop} (record {number}): a checksum is wrong; "
                "delete the file and run again."
            )
        return framed[HEAD:-4]

    def framed(self, shard: int, number: int, start: int, stop: int) -> bytes:
        """Return record `number` of a shard with its frame: bytes `start` to `stop` of the file."""
        if shard not in self.files:
            with open(self.paths[shard], "rb") as file:
                self.files[shard] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self.files[shard][start:stop]


def check_size(path: str | Path, actual: int | None, size: int) -> None:
    """Raise UserError if a file is absent (`actual` is None), or has another size than `size` bytes."""
    if actual is None:
        raise UserError(f"{path} is missing, but manifest.json lists it; run again to write it.")
    if actual != size:
        raise UserError(f"{path} has {actual} bytes; manifest.json says {size}: delete the file and run again.")


def check_digest(path: str | Path, actual: str, expected: str) -> None:
    """Raise UserError if the SHA-256 of a file is not the one in the manifest."""
    if actual != expected:
        raise UserError(
            f"{path} is corrupt: its SHA-256 is not the one in manifest.json; delete the file and run again."
        )


def open_records(manifest: str, split: str) -> Records:
    """Return the records of a split; manifest  path or URL in a bucket. Raises UserError as `Records` does."""
    return Streamed(manifest, split) if bucket.remote(manifest) else Records(manifest, split)


def open_to_train(manifest: str) -> tuple[Records, Records]:
    """Return the records of the training and validation splits, after comparing the SHA-256 of all files.

    Raises UserError as `Records` does. If several processes train together, only their parent compares.
    """
    train, validation = (open_records(manifest, split) for split in ("train", "validation"))
    if not processes.is_worker():
        train.verify()
        validation.verify()
    return train, validation


class Streamed(Records):
    """All records of a split in a bucket, read by number; fast in the order of tpulm.records.order."""

    def __init__(self, manifest: str, split: str):
        """Open the shards of `split` in the folder of a manifest in a bucket. Raises UserError as `Records` does."""
        super().__init__(manifest, split)
        # Held or requested blocks by number: for each shard, the start in its file, and the future of the bytes.
        self.blocks: dict[int, dict[int, tuple[int, Future]]] = {}

    def place(self, name: str) -> str:
        """Return the URL of an object that the manifest names."""
        return f"{self.folder}/{name}"

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each object of the folder by URL."""
        return {self.place(name): size for name, size in bucket.sizes(self.folder).items()}

    def read_indices(self) -> list[bytes]:
        """Return the content of every shard's index. Raises UserError for one that does not match the manifest."""
        requests = [bucket.request(index) for index in self.indices]
        contents = [bucket.result(future, index) for future, index in zip(requests, self.indices, strict=True)]
        for shard, index, content in zip(self.shards, self.indices, contents, strict=True):
            check_digest(index, hashlib.sha256(content).hexdigest(), shard["index_sha256"])
        return contents

    def verify(self) -> None:
        """Do nothing: indices are verified already, and each record is when it is read."""

    def prepare(self, indices: np.ndarray, upcoming: Callable[[], Iterable[int]]) -> None:
        """Request the blocks of records `indices`, then the upcoming ones; forget all others."""
        wanted = dict.fromkeys([*np.unique(indices // BLOCK).tolist(), *upcoming()])
        for block in [block for block in self.blocks if block not in wanted]:
            for _, future in self.blocks.pop(block).values():
                future.cancel()
        for block in wanted:
            if block not in self.blocks:
                self.blocks[block] = {
                    shard: (start, bucket.request(self.paths[shard], start, stop))
                    for shard, start, stop in self.parts(block)
                }

    def parts(self, block: int) -> list[tuple[int, int, int]]:
        """Return the shards of a block, each with the bytes at which its records begin and end."""
        first, last = block * BLOCK, min((block + 1) * BLOCK, len(self))
        first_shard, last_shard = np.searchsorted(self.starts, [first, last - 1], side="right") - 1
        spans = []
        for shard in range(first_shard, last_shard + 1):
            low = max(first - self.starts[shard], 0)
            high = min(last, self.starts[shard + 1]) - self.starts[shard]
            spans.append((shard, int(self.places[shard][low]), int(self.places[shard][high])))
        return spans

    def framed(self, shard: int, number: int, start: int, stop: int) -> bytes:
        """Return record `number` of a shard with its frame; a damaged one is requested once more."""
        begin, future = self.blocks[(int(self.starts[shard]) + number) // BLOCK][shard]
        framed = bucket.result(future, self.paths[shard])[start - begin : stop - begin]
        return framed if intact(framed) else bucket.read_object(self.paths[shard], start, stop)
