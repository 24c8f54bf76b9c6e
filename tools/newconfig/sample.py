"""Read a sample of a text, and measure what a config depends on."""

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tpulm.core.errors import UserError
from tpulm.core.scores import FEWEST
from tpulm.corpus.files import read_files
from tpulm.corpus.rows import Form
from tpulm.corpus.sources import expand, kind_of, packed, size_of

from newconfig.columns import ROWS, column_of
from newconfig.files import by_split, fewer, patterns

SAMPLE = 64 << 20  # bytes of text that are read
OF_A_FILE = 4 << 20  # of each file at least, because files are read in blocks of this size
LEAST = 20_000  # characters that a text has at least
HELD_OUT = 2 * FEWEST  # documents of a split that are held out at least, so that scores have intervals
LARGEST = 0.2  # share of a split that is held out, at most


@dataclass(frozen=True)
class Text:
    """A text: keys of the config that name it, a sample of its documents, and what was found.

    documents, characters  of all of it, about; training  share of it in files for training
    words  whether spaces divide it into words
    found  in words; runs  whether many spaces follow a space, as in code and tables
    """

    source: Mapping
    sample: Sequence[str]
    documents: int
    characters: int
    training: float
    words: bool
    found: str
    runs: bool


def look(paths: Sequence[str]) -> Text:
    """Return what a config needs to know about the text of files, folders and globs. Raises UserError."""
    globs = list(dict.fromkeys(pattern for path in paths for pattern in patterns(path)))
    files = sorted({file for pattern in globs for file in expand("corpus", pattern)})
    plain, tables = ([file for file in files if (kind_of(file) == "text") == own] for own in (True, False))
    source = {"files": by_split(files) or fewer(globs, files)}
    source |= {"sample_by": unit_of(plain)} if plain else {}
    source |= {"column": column_of(tables)} if tables else {}
    sample, share = read_sample(files, source.get("sample_by", "line"), source.get("column", "text"))
    text = "\n".join(sample)
    if len(text) < LEAST or len(sample) < FEWEST:
        raise UserError(
            f"{', '.join(paths[:3])}: {len(text):,} characters in {len(sample):,} documents is too little text; "
            f"allowed: {LEAST:,} characters or more, in {FEWEST} documents or more."
        )
    spaces = np.frombuffer(text.encode(), np.uint8) == ord(" ")
    repeated = (spaces[1:] & spaces[:-1]).sum() / max(1, spaces.sum())
    documents, lengths = int(len(sample) / share), list(map(len, sample))
    splits, whole = source["files"], sum(map(size_of, files))
    train = (
        {file for pattern in splits["train"] for file in expand("corpus", pattern)}
        if isinstance(splits, dict)
        else files
    )
    size = whole / 1e6
    found = f"{len(files):,} file{'s'[: len(files) != 1]}, {size:,.{2 if size < 1 else 1}f} MB, about {documents:,} "
    found += f"documents with a median of {statistics.median(lengths):,.0f} characters"
    runs = bool(repeated > 0.1)
    found += f"; {repeated:.0%} of the spaces follow a space" if runs else ""
    words = bool(spaces.sum() > 0.05 * len(text))
    training = sum(map(size_of, train)) / whole
    return Text(source, sample, documents, int(sum(lengths) / share), training, words, found, runs)


def unit_of(files: Sequence[str]) -> str:
    """Return what a document of .txt files is: a file if there are enough small ones, a paragraph, or a line."""
    sizes = list(map(size_of, files))
    # Splits take whole documents, and an evaluation the beginning of each.
    if len(files) * LARGEST >= HELD_OUT and max(sizes) <= 1 << 20 and statistics.median(sizes) <= 1 << 16:
        return "document"
    lines = [line for file in files[:8] for line in next(read_files([file], "line", ROWS), [])]
    full = sum(bool(line.strip()) for line in lines)
    divided = sum(bool(line) and not after for line, after in zip(lines, lines[1:], strict=False))
    return "paragraph" if divided >= 2 * FEWEST and full >= 1.5 * divided else "line"


def read_sample(files: Sequence[str], sample_by: str, column: str) -> tuple[list[str], float]:
    """Return documents, the first ones of large files, and about which share of the text they are."""
    most, documents, seen, read = max(OF_A_FILE, SAMPLE // len(files)), list[str](), 0, 0
    for file in random.Random(0).sample(files, len(files)):
        size, own = size_of(file), 0
        for batch in read_files([file], sample_by, Form("corpus", {"column": column})):
            texts = [text for text in batch if isinstance(text, str) and text.strip()]
            documents += texts
            own += sum(len(text.encode()) for text in texts)
            if own >= most:  # of a compressed file, that it is a third of the text is a guess
                size = min(size, own // (3 if packed(file) or kind_of(file) == "parquet" else 1))
                break
        seen, read = seen + own, read + size
        if seen >= SAMPLE:
            break
    return documents, max(1, read) / max(1, sum(map(size_of, files)))
