"""Stream records from a bucket during training: no shard is copied to this machine.

Reading follows the order of tpulm.records.order: entire blocks of neighbouring records are requested, those of the
current window and of the next one, and held in memory until the order has passed them. Nothing in the bucket is trusted
unchecked: a shard's index is verified by its SHA-256 in the manifest, each record by its own two checksums.
"""

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future

import numpy as np

from tpulm.core import bucket
from tpulm.records.order import BLOCK
from tpulm.records.reader import Records, check_digest
from tpulm.records.tfrecord import intact


def open_records(manifest: str, split: str) -> Records:
    """Return the records of a split, whose manifest is a file or in a bucket. Raises UserError as `Records` does."""
    return Streamed(manifest, split) if bucket.remote(manifest) else Records(manifest, split)


def open_to_train(manifest: str, verify: bool = True) -> tuple[Records, Records]:
    """Return the records of the training and of the validation split; with `verify`, every file's SHA-256 is compared.

    Raises UserError as `Records` does.
    """
    train, validation = (open_records(manifest, split) for split in ("train", "validation"))
    if verify:
        train.verify()
        validation.verify()
    return train, validation


class Streamed(Records):
    """All records of a split that lie in a bucket, by number; fast in the order of tpulm.records.order."""

    def __init__(self, manifest: str, split: str):
        """Open the shards of `split` beside a manifest in a bucket. Raises UserError as `Records` does."""
        super().__init__(manifest, split)
        # What each block that is held or on its way consists of, by shard: where in it that begins, and the bytes.
        self.blocks: dict[int, dict[int, tuple[int, Future]]] = {}

    def place(self, name: str) -> str:
        """Return the URL of an object that the manifest names."""
        return f"{self.folder}/{name}"

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each object of the folder, by its URL."""
        return {self.place(name): size for name, size in bucket.sizes(self.folder).items()}

    def read_indices(self) -> list[bytes]:
        """Return the content of every shard's index. Raises UserError for one that is not the manifest's."""
        requests = [bucket.request(index) for index in self.indices]
        contents = [bucket.result(future, index) for future, index in zip(requests, self.indices, strict=True)]
        for shard, index, content in zip(self.shards, self.indices, contents, strict=True):
            check_digest(index, hashlib.sha256(content).hexdigest(), shard["index_sha256"])
        return contents

    def verify(self) -> None:
        """Do nothing: that would read all shards. The indices are verified, each record is when it is read."""

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
        """Return where a block lies: in which shards, and at which bytes of them its records begin and end."""
        first, last = block * BLOCK, min((block + 1) * BLOCK, len(self))
        one, other = np.searchsorted(self.starts, [first, last - 1], side="right") - 1
        spans = []
        for shard in range(one, other + 1):
            low = max(first - self.starts[shard], 0)
            high = min(last, self.starts[shard + 1]) - self.starts[shard]
            spans.append((shard, int(self.places[shard][low]), int(self.places[shard][high])))
        return spans

    def framed(self, shard: int, number: int, start: int, stop: int) -> bytes:
        """Return record `number` of a shard with its frame; one that came damaged is asked for once more."""
        begin, future = self.blocks[(int(self.starts[shard]) + number) // BLOCK][shard]
        framed = bucket.result(future, self.paths[shard])[start - begin : stop - begin]
        return framed if intact(framed) else bucket.read(self.paths[shard], start, stop)
