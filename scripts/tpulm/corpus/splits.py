"""Split documents into disjoint splits, one Parquet file each, with a record of what was read."""

import contextlib
import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tpulm.config.artifacts import SPLITS
from tpulm.core.errors import UserError
from tpulm.core.files import atomic_write
from tpulm.corpus.statistics import Figures

ROW_GROUP = 10_000  # documents
ROW_GROUP_CHARACTERS = 64 << 20  # so that a row group of long documents fits in memory
SCHEMA = pa.schema({"text": pa.string()})
Batches = Iterable[list[str | None]]


class CorpusFile:
    """A Parquet file with one column `text`, and the figures of what is written to it."""

    def __init__(self, path: Path):
        """Open `path` for writing."""
        self.writer = pq.ParquetWriter(path, SCHEMA, compression="zstd", use_dictionary=False, write_statistics=False)
        self.figures = Figures()
        self.rows: list[str] = []
        self.waiting = 0  # characters in `rows`

    def add(self, text: str, words: int) -> None:
        """Write a document of so many words."""
        self.figures.add(text, words)
        self.rows.append(text)
        self.waiting += len(text)
        if len(self.rows) == ROW_GROUP or self.waiting >= ROW_GROUP_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting as a row group."""
        if self.rows:
            self.writer.write_table(pa.table({"text": self.rows}, SCHEMA), row_group_size=ROW_GROUP)
        self.rows, self.waiting = [], 0

    def close(self) -> None:
        """Finish the file."""
        self.flush()
        self.writer.close()


def write_splits(
    where: str, recipe: dict, named: list[str], read: Callable[[str], Batches], outputs: dict[str, str]
) -> dict[str, dict]:
    """Write the documents of a source to one file per split; return the figures of each split.

    where    config key of the source, for the messages
    recipe   held_out, seed, min_characters, max_documents
    named    the splits that the source has itself; the others are carved out of train
    read     returns the documents of a named split in batches; called twice for train where splits are carved
    outputs  path of each split

    Two documents are the same when they are equal up to white space. Test wins over validation, validation over
    train. Raises UserError when a split stays empty.
    """
    seed, shortest, most = recipe["seed"], recipe["min_characters"], recipe["max_documents"]
    dropped = {split: {"empty": 0, "short": 0, "duplicates": 0} for split in SPLITS}
    taken: set[bytes] = set()
    with contextlib.ExitStack() as stack:
        partial = {split: stack.enter_context(atomic_write(outputs[split])) for split in SPLITS}
        files = {split: stack.enter_context(contextlib.closing(CorpusFile(partial[split]))) for split in SPLITS}
        for split in ("test", "validation"):
            if split in named:
                own = set()
                for text, words, key in documents(read(split), seed, shortest, dropped[split]):
                    if key in taken:
                        dropped[split]["duplicates"] += 1
                        continue
                    files[split].add(text, words)
                    own.add(key)
                    if files[split].figures.documents == most:
                        break
                refuse_empty(where, split, files[split], dropped[split])
                taken |= own
        shares = {split: recipe["held_out"][split] for split in ("test", "validation") if split not in named}
        carved = carve(where, shares, documents(read("train"), seed, shortest, {}), taken) if shares else {}
        open_splits = {"train", *shares}
        for text, words, key in documents(read("train"), seed, shortest, dropped["train"]):
            if key in taken:
                dropped["train"]["duplicates"] += 1
                continue
            split = carved.get(key, "train")
            if split in open_splits:
                files[split].add(text, words)
                if files[split].figures.documents == most:
                    open_splits.remove(split)
                    if not open_splits:
                        break
        refuse_empty(where, "train", files["train"], dropped["train"])
        figures = {split: files[split].figures.as_dict() for split in SPLITS}
    return {
        split: figures[split] | {f"dropped_{reason}": count for reason, count in dropped[split].items()}
        for split in SPLITS
    }


def refuse_empty(where: str, split: str, file: CorpusFile, dropped: dict[str, int]) -> None:
    """Raise UserError when a split has no document, saying why they were dropped."""
    if file.figures.documents:
        return
    found = "no document was found"
    if any(dropped.values()):
        found = (
            f"of {sum(dropped.values())} documents, {dropped['empty']} empty, {dropped['short']} shorter than "
            f"min_characters, {dropped['duplicates']} also in another split"
        )
    raise UserError(f"{where}: the split {split} is empty: {found}.")


def documents(batches: Batches, seed: int, shortest: int, dropped: dict) -> Iterator[tuple[str, int, bytes]]:
    """Yield the text, number of words and key of each document that is to be kept.

    Line ends become "\\n". The key is the SHA-256 of the seed and the text with its white space normalised: the
    same for two documents that are the same, and in random order. What is left out is counted in `dropped`.
    """
    dropped.setdefault("empty", 0)
    dropped.setdefault("short", 0)
    start = hashlib.sha256(f"{seed}\0".encode())
    for batch in batches:
        for text in batch:
            words = (text or "").split()
            if not text or not words:
                dropped["empty"] += 1
                continue
            normalised = " ".join(words)
            if len(normalised) < shortest:
                dropped["short"] += 1
                continue
            if "\r" in text:
                text = text.replace("\r\n", "\n").replace("\r", "\n")
            key = start.copy()
            key.update(normalised.encode("utf-8"))
            yield text, len(words), key.digest()


def carve(where: str, shares: dict[str, float], kept: Iterator[tuple], taken: set[bytes]) -> dict[bytes, str]:
    """Return the split of each key that is held out of train: the lowest keys to test, the next to validation.

    shares  fraction of the distinct documents for each split to carve. A document's place does not depend on the
            order of the documents, and a share's end moves only a little when documents are added.
    Raises UserError when nothing would be left to train on.
    """
    distinct = {key for _, _, key in kept} - taken
    if not distinct:
        return {}
    counts = {split: max(1, int(share * len(distinct) + 0.5)) for split, share in shares.items()}
    if sum(counts.values()) >= len(distinct):
        sizes = " and ".join(f"{count} for {split}" for split, count in counts.items())
        raise UserError(f"{where}: holding out {sizes} of {len(distinct)} distinct documents leaves none to train on.")
    lowest = iter(heapq.nsmallest(sum(counts.values()), distinct))
    return {next(lowest): split for split, count in counts.items() for _ in range(count)}
