"""Rows of numbers, sorted into temporary files by the value of the first: each file is read by itself, into memory."""

import tempfile

import numpy as np

MOST = 256  # files that are open at once


class Partitions:
    """Rows of 64-bit numbers, the first a hash, in files of equal size about: each has those in a range of hashes."""

    def __init__(self, rows: int, size: int, width: int):
        """Make room for so many rows of `width` numbers, in files of `size` rows, about."""
        self.count, self.width = min(1 + rows // size, MOST), width
        self.files = [tempfile.TemporaryFile() for _ in range(self.count)]

    def add(self, *columns: np.ndarray) -> None:
        """Write rows, given by their columns: uint64 of shape [rows]."""
        partition = (columns[0] >> np.uint64(32)) * np.uint64(self.count) >> np.uint64(32)
        order = np.argsort(partition, kind="stable")
        rows = np.stack(columns, axis=1)[order]
        bounds = np.searchsorted(partition[order], np.arange(self.count + 1))
        for number in np.flatnonzero(np.diff(bounds)):
            self.files[number].write(rows[bounds[number] : bounds[number + 1]].tobytes())

    def read(self, partition: int) -> np.ndarray:
        """Return the rows of a file in the order in which they came, uint64 of shape [width, rows]."""
        file = self.files[partition]
        file.seek(0)
        return np.frombuffer(file.read(), np.uint64).reshape(-1, self.width).T
