"""The records of a split, read by number from the files of this machine.

A record is framed by its checksums (tpulm.records.tfrecord), which are verified whenever it is read.
"""

import json
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.core.files import sha256_of_each
from tpulm.records.example import Example
from tpulm.records.tfrecord import HEAD, intact


def read_manifest(place: str | Path) -> dict:
    """Return the manifest of a set of records: of a path, or of a URL in a bucket."""
    with bucket.opened(place) as file:
        return json.load(file)


class Records:
    """All records of a split, by number, read at any place in any order.

    manifest         manifest.json as a dictionary
    sequence_length  tokens of a record that a model reads
    """

    def __init__(self, manifest: str | Path, split: str):
        """Open the shards of `split` that a manifest names; they lie beside it.

        Raises UserError when a file is absent or has not the size that the manifest says.
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
        """Return where a file that the manifest names lies."""
        return os.path.join(self.folder, name)

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each of the files that is there."""
        return {path: os.path.getsize(path) for path in (*self.paths, *self.indices) if os.path.isfile(path)}

    def read_indices(self) -> list[bytes]:
        """Return the content of every shard's index."""
        return [Path(index).read_bytes() for index in self.indices]

    def __len__(self) -> int:
        return int(self.starts[-1])

    def verify(self) -> None:
        """Compare every file's SHA-256 with the manifest. Raises UserError naming the first that differs."""
        files = [*self.paths, *self.indices]
        expected = [shard[key] for key in ("sha256", "index_sha256") for shard in self.shards]
        for file, digest, wanted in zip(files, sha256_of_each(files), expected, strict=True):
            check_digest(file, digest, wanted)

    def read(self, indices: np.ndarray, upcoming: Callable[[], Iterable[int]] = tuple) -> np.ndarray:
        """Return the input_ids of records, int32 of shape [n, tokens_per_record]; see `features`."""
        return self.features(indices, ("input_ids",), upcoming)["input_ids"]

    def features(
        self, indices: np.ndarray, names: Sequence[str], upcoming: Callable[[], Iterable[int]] = tuple
    ) -> dict[str, np.ndarray]:
        """Return features of records `indices` (integers of shape [n]), each int32 of shape [n, tokens_per_record].

        upcoming  function that returns the blocks of tpulm.records.order that will be read from soon

        Raises UserError, naming file and bytes, at a record whose checksum is wrong; IndexError beyond the last.
        """
        indices = np.asarray(indices, np.int64)
        if len(indices) and not (0 <= indices.min() and indices.max() < len(self)):
            raise IndexError(f"records {indices.min()} to {indices.max()} of {len(self)}")
        self.prepare(indices, upcoming)
        found = {name: np.empty((len(indices), self.manifest["tokens_per_record"]), np.int32) for name in names}
        shards = np.searchsorted(self.starts, indices, side="right") - 1
        for shard in np.unique(shards):
            rows = np.flatnonzero(shards == shard)
            numbers = indices[rows] - self.starts[shard]
            # In the order of the file, so that neighbours are read in one go.
            order = np.argsort(numbers, kind="stable")
            data = [self.record(int(shard), number) for number in numbers[order].tolist()]
            for row, record in zip(rows[order].tolist(), data, strict=True):
                example = Example.FromString(record).features.feature
                for name in names:
                    found[name][row] = example[name].int64_list.value
        return found

    def prepare(self, indices: np.ndarray, upcoming: Callable[[], Iterable[int]]) -> None:
        """Do nothing: the kernel reads files of this machine ahead."""

    def record(self, shard: int, number: int) -> bytes:
        """Return the data of one record of a shard, its checksums verified. Raises UserError."""
        start, stop = self.places[shard][number : number + 2].tolist()
        framed = self.framed(shard, number, start, stop)
        if not intact(framed):
            raise UserError(
                f"{self.paths[shard]} is damaged at bytes {start} to {stop} (record {number}): a checksum is wrong; "
                "delete the file and run again."
            )
        return framed[HEAD:-4]

    def framed(self, shard: int, number: int, start: int, stop: int) -> bytes:
        """Return record `number` of a shard with its frame: bytes `start` to `stop` of the file."""
        if shard not in self.files:
            with open(self.paths[shard], "rb") as file:
                self.files[shard] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self.files[shard][start:stop]


def check_size(path: str | Path, found: int | None, size: int) -> None:
    """Raise UserError when a file is absent, `found` None, or has another size than `size` bytes."""
    if found is None:
        raise UserError(f"{path} is missing, though manifest.json names it; run again to write it.")
    if found != size:
        raise UserError(f"{path} has {found} bytes; manifest.json says {size}: delete the file and run again.")


def check_digest(path: str | Path, found: str, expected: str) -> None:
    """Raise UserError when the SHA-256 of a file is not the one that the manifest says."""
    if found != expected:
        raise UserError(
            f"{path} is damaged: its SHA-256 is not the one in manifest.json; delete the file and run again."
        )
