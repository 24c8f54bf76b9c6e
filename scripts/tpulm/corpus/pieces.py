"""Text files, whole or a piece of a large one: universal line ends, UTF-8, no byte order mark."""

import gzip
import io
import re
from collections.abc import Iterator
from typing import IO

from tpulm.core import bucket
from tpulm.corpus.sources import packed

CHARACTERS = 4 << 20  # that are read at once
EMPTY_LINE = re.compile(rb"\n(?=(\r?\n))")


class Range(io.RawIOBase):
    """The bytes `start` to `stop` of an open file."""

    def __init__(self, file: IO[bytes], start: int, stop: int):
        """Begin at `start`; the file is closed with this."""
        self.file, self.left = file, stop - start
        file.seek(start)

    def readable(self) -> bool:
        """Return True: the bytes can be read."""
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        """Read at most as many bytes as `buffer` takes; return how many."""
        data = self.file.read(min(len(buffer), self.left))
        buffer[: len(data)] = data
        self.left -= len(data)
        return len(data)

    def close(self) -> None:
        """Close the file, too."""
        self.file.close()
        super().close()


def bounds(path: str, piece: tuple[int, int], paragraphs: bool) -> tuple[int, int]:
    """Return where a piece of a file begins and ends, in bytes: after a line, or after an empty line.

    piece  its number, and how many there are; neighbours of equal size about, together the whole file
    """
    number, pieces = piece
    size, _ = bucket.state(path)
    with bucket.opened(path) as file:
        ends = [after_line(file, index * size // pieces, size, paragraphs) for index in (number, number + 1)]
    return ends[0], ends[1]


def after_line(file: IO[bytes], position: int, size: int, paragraphs: bool) -> int:
    """Return the first end of a line, or of an empty line for paragraphs, at or after a position in a file."""
    if position in (0, size):
        return position
    if not paragraphs:
        file.seek(position - 1)
        file.readline()
        return file.tell()
    file.seek(max(position - 3, 0))  # the longest match that ends at `position` begins there
    data = b""
    while block := file.read(CHARACTERS):
        data = data[-2:] + block
        offset = file.tell() - len(data)
        for found in EMPTY_LINE.finditer(data):
            if offset + found.end(1) >= position:
                return offset + found.end(1)
    return size


def open_text(path: str, start: int = 0, stop: int | None = None) -> io.TextIOWrapper:
    """Open a text file, or some of its bytes, for reading; every line end becomes "\\n"."""
    if packed(path):
        return io.TextIOWrapper(gzip.open(bucket.opened(path)), encoding="utf-8")  # type: ignore[arg-type]
    file = bucket.opened(path)
    if stop is not None:
        file = io.BufferedReader(Range(file, start, stop), CHARACTERS)
    return io.TextIOWrapper(file, encoding="utf-8")


def blocks(path: str, start: int, stop: int | None) -> Iterator[str]:
    """Yield the text of a file, or of some of its bytes, cut at line ends; without a byte order mark."""
    with open_text(path, start, stop) as file:
        block = file.read(CHARACTERS)
        block = block.removeprefix("\ufeff") if not start else block
        while block:
            yield block + file.readline()
            block = file.read(CHARACTERS)


def read_lines(path: str, piece: tuple[int, int] = (0, 1)) -> Iterator[list[str]]:
    """Yield the lines of a text file, or of a piece of it, in batches."""
    for block in blocks(path, *range_of(path, piece, False)):
        lines = block.split("\n")
        if not lines[-1]:
            lines.pop()
        yield lines


def read_paragraphs(path: str, piece: tuple[int, int] = (0, 1)) -> Iterator[list[str]]:
    """Yield the paragraphs of a text file, or of a piece of it, in batches: empty lines are between them."""
    rest = ""
    for block in blocks(path, *range_of(path, piece, True)):
        *whole, rest = (rest + block).split("\n\n")
        yield [text for text in (paragraph.strip("\n") for paragraph in whole) if text]
    if rest.strip("\n"):
        yield [rest.strip("\n")]


def range_of(path: str, piece: tuple[int, int], paragraphs: bool) -> tuple[int, int | None]:
    """Return the bytes that a piece has; the whole file is one that need not be cut."""
    return bounds(path, piece, paragraphs) if piece[1] > 1 else (0, None)


def lines_before(path: str, piece: tuple[int, int]) -> int:
    """Return how many lines of a file are before a piece."""
    start, _ = range_of(path, piece, False)
    return sum(block.count("\n") for block in blocks(path, 0, start)) if start else 0
