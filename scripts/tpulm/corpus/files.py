"""Read the user's files: text, JSON, CSV and Parquet, each also through gzip."""

import contextlib
import gzip
import json
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.corpus.pieces import lines_before, open_text, read_lines, read_paragraphs
from tpulm.corpus.rows import Documents, Form
from tpulm.corpus.sources import kind_of, packed

BATCH = 1000  # rows of a table that are in memory at once


def read_files(files: Sequence[str], sample_by: str, form: Form, piece: tuple[int, int] = (0, 1)) -> Documents:
    """Yield the documents of files in their order, in batches.

    sample_by  what a document is in a .txt file: line, paragraph (ended by an empty line) or document (the file)
    form       what it is in the other formats
    piece      of one large file: its number, and how many there are

    Raises UserError, naming the file and where it can be said the line; also where a file changes meanwhile.
    """
    for file in files:
        with unchanged(file):
            if not bucket.state(file)[0]:
                if packed(file) or kind_of(file) in ("csv", "parquet"):  # of these, something is in every file
                    raise UserError(
                        f"{file} is empty, 0 bytes: it is not a whole {'gzip' if packed(file) else name_of(file)} file."
                    )
                continue
            try:
                yield from read_file(file, sample_by, form, piece)
            except UserError:
                raise
            except Exception as error:  # whatever pandas, pyarrow and the codecs raise
                raise mistake(file, error) from error


@contextlib.contextmanager
def unchanged(file: str) -> Iterator[None]:
    """Raise UserError when a file has another size or date at the end than at the beginning."""
    before = bucket.state(file)
    yield
    if bucket.state(file) != before:
        raise UserError(f"{file} changed while it was read; run again when nothing writes to it.")


def read_file(file: str, sample_by: str, form: Form, piece: tuple[int, int]) -> Documents:
    """Yield the documents of one file, or of a piece of it, in batches."""
    kind = kind_of(file)
    if kind == "text" and sample_by == "document":
        yield [whole(file)]
    elif kind == "text":
        yield from read_paragraphs(file, piece) if sample_by == "paragraph" else read_lines(file, piece)
    elif kind == "csv":
        yield from read_csv(file, form)
    elif kind == "parquet":
        yield from read_parquet(file, form)
    elif kind == "jsonl" or is_json_lines(file):
        yield from read_json_lines(file, form, piece)
    else:
        rows = json.loads(whole(file))
        rows = rows if isinstance(rows, list) else [rows]
        yield [form.document_of(f"{file}, entry {number}", row) for number, row in enumerate(rows, start=1)]


def whole(file: str) -> str:
    """Return the text of a file, without a byte order mark."""
    with open_text(file) as text:
        return text.read().removeprefix("\ufeff")


def opened(file: str) -> IO[bytes]:
    """Open a file for reading bytes, through gzip where its name says so."""
    return gzip.open(bucket.opened(file)) if packed(file) else bucket.opened(file)  # type: ignore[return-value]


def read_csv(file: str, form: Form) -> Documents:
    """Yield the documents of a CSV file. "NA" and "001" stay the text that they are."""
    import pandas

    with opened(file) as data:
        form.check(file, list(pandas.read_csv(data, nrows=0)))
    # The other columns are read, too: else a line with too many fields would pass.
    options: dict[str, Any] = {"keep_default_na": False, "chunksize": BATCH}
    options["dtype"] = dict.fromkeys(form.columns, object)
    with opened(file) as data:
        for frame in pandas.read_csv(data, **options):
            if not isinstance(frame.index, pandas.RangeIndex):  # else the first field would be lost
                raise UserError(f"{file}, line 2, has more fields than line 1 has names; allowed: as many.")
            yield form.documents(file, [frame[column].tolist() for column in form.columns])


def read_parquet(file: str, form: Form) -> Documents:
    """Yield the documents of a Parquet file."""
    import pyarrow.parquet as pq

    with contextlib.ExitStack() as stack:
        data = stack.enter_context(opened(file))
        if packed(file):  # Parquet is read from its end, which a stream of gzip has not
            plain = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(data, plain)
            data = plain
        table = pq.ParquetFile(data)
        form.check(file, table.schema_arrow.names)
        for batch in table.iter_batches(BATCH, columns=list(form.columns)):
            yield form.documents(file, [batch[column].to_pylist() for column in form.columns])


def is_json_lines(file: str) -> bool:
    """Return whether the first line of a JSON file is a whole object, as in JSON Lines."""
    for batch in read_lines(file):
        try:
            return isinstance(json.loads(batch[0]), dict)
        except ValueError:
            return False
    return False


def read_json_lines(file: str, form: Form, piece: tuple[int, int]) -> Documents:
    """Yield the documents of a JSON Lines file, or of a piece of it: an object per line, whose other fields may differ.

    Read as lines: readers of JSON tables guess a type for the column (dates, numbers) and change the text.
    """
    line = 0
    for batch in read_lines(file, piece):
        documents = []
        for text in batch:
            line += 1
            if text.strip():
                place = Line(file, piece, line)
                try:
                    row = json.loads(text)
                except (ValueError, RecursionError) as error:
                    raise UserError(f"{place}, is not valid JSON: {reason(error)}.") from None
                documents.append(form.document_of(place, row))
        yield documents


@dataclass
class Line:
    """A line of a file, for messages: counted from the file's first line, which takes time for a piece."""

    file: str
    piece: tuple[int, int]
    number: int  # within the piece

    def __str__(self) -> str:
        """Return file and number."""
        return f"{self.file}, line {lines_before(self.file, self.piece) + self.number}"


def mistake(file: str, error: Exception) -> UserError:
    """Return what is wrong with a file that could not be read."""
    if isinstance(error, OSError) and error.strerror and not isinstance(error, gzip.BadGzipFile):
        return UserError(f"{file} cannot be read: {error.strerror}.")
    kind = kind_of(file)
    try:
        with opened(file) as lines:
            for number, line in enumerate(lines, start=1):  # noqa: B007 (used where decoding fails)
                if kind != "parquet":
                    line.decode("utf-8")
    except UnicodeDecodeError as bad:
        byte = bad.object[bad.start]
        return UserError(f"{file}, line {number}, is not UTF-8 text: byte {bad.start + 1} of the line is {byte:#04x}.")
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return UserError(f"{file} is not a whole gzip file.")
    return UserError(f"{file} is not a whole {name_of(file)} file: {reason(error)}.")


def name_of(file: str) -> str:
    """Return how a file's format is called."""
    kinds = {"csv": "CSV", "parquet": "Parquet", "json": "JSON", "jsonl": "JSON Lines", "text": "text"}
    return kinds[kind_of(file)]


def reason(error: Exception) -> str:
    """Return the first line of an error's text, short, without what follows the path of an address."""
    text = str(error).strip().splitlines()
    return re.sub(r"(https?://[^\s?]+)\?\S+", r"\1", text[0])[:200].rstrip(". ") if text else type(error).__name__
