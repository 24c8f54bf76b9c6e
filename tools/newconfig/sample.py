"""Read a sample of a text, and measure what a config depends on."""

import json
import random
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path

import numpy as np
from tpulm.core.errors import UserError
from tpulm.corpus.files import read_files
from tpulm.corpus.rows import Document
from tpulm.corpus.sources import expand, format_of
from tpulm.specs.scores import FEWEST

from newconfig.columns import (
    ROWS,
    Tuning,
    check_conversations,
    check_named,
    choose_named,
    choose_tables,
    form_of,
    forms_of,
)
from newconfig.files import find_files, globs_of, text_size
from newconfig.hub import HUB, read_dataset

SAMPLE = 64 << 20  # bytes of text that are read
OF_A_FILE = 4 << 20  # of each file at least, because files are read in blocks of this size
LEAST = 20_000  # characters that a text has at least
FEWER = ", or --finetune MODEL, which needs fewer characters"
HELD_OUT = 2 * FEWEST  # documents of a split that are held out at least, so that scores have intervals
LARGEST = 0.2  # share of a split that is held out, at most
NO_COLUMN = "{} has no column of text, but numbers, identifiers or categories; allowed: rows with a column of text."
LONGEST_NAME = 60  # characters of a name of a column; longer ones may be a row
SPACES = 0.08  # share of the characters of a text that is divided into words, at least


class Text:
    """A text: keys of the config that name it, a sample of its documents, and what was found in it.

    read      its documents: of the test split, if it is given, or of the sample
    training  share of it in files for training
    prompts   what is before the responses of its documents, if these count; responses  the last one of each
    empty  how many of the rows that were read have no text, or no response
    words  whether spaces divide it into words; runs  whether many spaces follow a space, as in code and tables
    """

    def __init__(
        self, place: str, source: Mapping, read: Iterable[Document], share: float, found: str, notes: list, least: int
    ):
        """Measure the documents that were read; `place` is for messages. Raises UserError for too little text."""
        self.source, self.training, self.notes = source, 1.0, notes
        documents = list(read)
        self.read = read = [document for document in documents if text_of(document).strip()]
        self.empty = 0 if "sample_by" in source else len(documents) - len(read)
        self.sample = list(map(text_of, read))
        self.prompts = [text[: spans[0][0]] for text, spans in (one for one in read if isinstance(one, tuple))]
        self.responses = [text[slice(*spans[-1])] for text, spans in (one for one in read if isinstance(one, tuple))]
        text, lengths = "\n".join(self.sample), list(map(len, self.sample))
        different = len(set(self.sample))
        if len(text) < least or different < FEWEST:
            raise UserError(
                f"{place}: {len(text):,} characters in {different:,} different documents is too little text; allowed: "
                f"{least:,} characters or more, in {FEWEST} documents or more{'' if least == FEWEST else FEWER}."
            )
        spaces = np.frombuffer(text.encode(), np.uint8) == ord(" ")
        repeated = (spaces[1:] & spaces[:-1]).sum() / max(1, spaces.sum())
        self.documents, self.characters = int(len(lengths) / share), int(sum(lengths) / share)
        self.words, self.runs = bool(spaces.sum() > SPACES * len(text)), bool(repeated > 0.1)
        self.found = f"{found}, about {self.documents:,} documents with a median of {statistics.median(lengths):,.0f} "
        self.found += f"characters; {repeated:.0%} of the spaces follow a space" if self.runs else "characters"


def look(paths: Sequence[str], columns: Sequence[str] = (), tuning: Tuning | None = None) -> Text:
    """Return what a config needs to know about files, folders and globs, or about a dataset. Raises UserError.

    columns  that the command line names; tuning  what a model that is finetuned makes of rows
    """
    place = ", ".join(paths[:3])
    if not any(path.startswith(HUB) for path in paths):
        return look_at_files(place, paths, columns, tuning)
    source, rows, test, share = read_dataset(place)
    choices = [json.loads(keys) for keys, _ in Counter(forms_of(rows)).most_common()]
    if not choices:
        raise UserError(NO_COLUMN.format(place))
    choices = choose_named(columns, choices, list(rows[0]))
    if tuning:
        choices = tuning.choose(choices)
    if not columns:
        check_named(place, choices, list(rows[0]), tuning)
    convert = form_of(choices[0], tuning).document_of
    found, least = f"{place} at {source['revision']}", FEWEST if tuning else LEAST
    text = Text(place, source | choices[0], map(convert, repeat(place), rows), share, found, [chosen(choices)], least)
    text.read = list(filter(None, map(convert, repeat(place), test))) or text.read
    return text


def look_at_files(place: str, paths: Sequence[str], columns: Sequence[str], tuning: Tuning | None) -> Text:
    """Return what a config needs to know about files: .txt files, or tables, whichever has more text."""
    by_glob, repeated = find_files(paths)
    files = sorted(chain.from_iterable(by_glob.values()))
    plain = [file for file in files if format_of(file) == "text"]
    tables = [file for file in files if format_of(file) != "text"]
    if columns and not tables:
        raise UserError(f"--columns is {','.join(columns)}, and {place} has no columns; allowed: files of rows.")
    choices, fitting, names = choose_tables(tables, columns, tuning)
    if not plain and not choices:
        if not names:
            raise UserError(f"{files[0]} has no rows; allowed: files with rows.")
        check_conversations(files)
        raise UserError(NO_COLUMN.format(files[0]))
    group = max(plain, fitting, key=lambda group: sum(map(text_size, group)))
    keys, notes = (choices[0], [chosen(choices)]) if group is fitting else ({"sample_by": unit_of(plain)}, [])
    if group is fitting and not columns:
        check_named(fitting[0], choices, names, tuning)
    if len(keys.get("column", "")) > LONGEST_NAME:
        notes.append("the first line is taken as the names of columns; a file without names loses its first row")
    splits, size = globs_of(by_glob, group), sum(map(text_size, group))
    train = {file for one in splits["train"] for file in expand("corpus", one)} if isinstance(splits, dict) else group
    if left := [file for file in files if file not in group]:
        kinds = ", ".join(f"{number} {end}" for end, number in Counter(Path(file).suffix for file in files).items())
        others = f"{', '.join(left[:3])}{', ...' * (len(left) > 3)}, which need a config of their own"
        notes.append(f"{len(group)} of {len(files)} files ({kinds}) fit together and are taken; left out: {others}")
    once = f"each file is read once; symbolic links and repeated paths that lead to others: {repeated}"
    notes += [once] if repeated else []
    found = f"{len(group):,} file{'s'[: len(group) != 1]}, {size / 1e6:,.{2 if size < 1e6 else 1}f} MB"
    least = FEWEST if tuning else LEAST
    text = Text(
        place, {"source": "files", "files": splits} | keys, *read_sample(group, keys, tuning), found, notes, least
    )
    text.training = sum(map(text_size, train)) / size
    if tuning and isinstance(splits, dict) and "test" in splits:
        text.read, _ = read_sample([file for one in splits["test"] for file in expand("corpus", one)], keys, tuning)
    return text


def chosen(choices: Sequence[Mapping]) -> str:
    """Return a sentence about what of tables is the text, and what else could be."""
    first, *others = ("; ".join(f"{key}: {json.dumps(value)}" for key, value in keys.items()) for keys in choices)
    return f"the text of a row is {first}" + (f"; also possible: {', or '.join(others[:4])}" if others else "")


def unit_of(files: Sequence[str]) -> str:
    """Return what a document of .txt files is: a file if there are enough small ones, a paragraph, or a line."""
    sizes = list(map(text_size, files))
    # Splits take whole documents, and an evaluation the beginning of each.
    if len(files) * LARGEST >= HELD_OUT and max(sizes) <= 1 << 20 and statistics.median(sizes) <= 1 << 16:
        return "document"
    lines = [line for file in files[:8] for line in next(read_files([file], "line", ROWS), [])]
    full = sum(bool(line.strip()) for line in lines)
    divided = sum(bool(line) and not after for line, after in zip(lines, lines[1:], strict=False))
    return "paragraph" if divided >= 2 * FEWEST and full >= 1.5 * divided else "line"


def read_sample(files: Sequence[str], keys: Mapping, tuning: Tuning | None) -> tuple[list[Document], float]:
    """Return documents, the first ones of large files, and about which share of the text they are."""
    most, documents, seen, read = max(OF_A_FILE, SAMPLE // len(files)), list[Document](), 0, 0
    form = form_of({"column": "text"} if "sample_by" in keys else keys, tuning)
    for file in random.Random(0).sample(files, len(files)):
        size, own = text_size(file), 0
        for batch in read_files([file], keys.get("sample_by", "line"), form):
            documents += batch
            own += sum(len(text_of(document).encode()) for document in batch)
            if own >= most:
                size = min(size, own)
                break
        seen, read = seen + own, read + size
        if seen >= SAMPLE:
            break
    return documents, max(1, read) / max(1, sum(map(text_size, files)))


def text_of(document: Document) -> str:
    """Return the text of a document, "" where it has none."""
    return (document[0] if isinstance(document, tuple) else document) or ""
