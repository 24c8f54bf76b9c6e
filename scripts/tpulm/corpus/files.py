"""Read the user's files: text, JSON, CSV and Parquet, each also through gzip; and datasets of the Hugging Face Hub."""

import codecs
import contextlib
import csv
import gzip
import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

from fsspec.utils import read_block

from tpulm.core import bucket
from tpulm.core.errors import UserError, first_line
from tpulm.core.files import DEEPEST, depth
from tpulm.core.hub import dataset_error, named_source, not_fetched
from tpulm.corpus.rows import Documents, Form
from tpulm.corpus.sources import ALLOWED, Part, divisible, format_of, gzipped, read_part_recipe

CHARACTERS = 4 << 20  # characters that are read at once
CONTROL = re.compile("[\0-\x08\x0b\x0e-\x1f\x7f-\x9f]")  # control characters, but for white space
CONTROL_BYTES = re.compile(rb"[\0-\x08\x0b\x0e-\x1f\x7f]|\xc2[\x80-\x9f]")  # the same in UTF-8
POINTER = "version https://git-lfs.github.com/spec/"
# Formats by the first bytes of a file.
OTHERS = {b"PK\3\4": "ZIP", b"\x1f\x8b": "gzip", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "Zstandard", b"BZh": "bzip2",
          b"7z\xbc\xaf": "7-Zip", b"%PDF": "PDF", b"PAR1": "Parquet"}  # fmt: skip
MOST_CONTROL = 1e-3  # largest share of control characters in a text


Piece = tuple[int, int]  # which piece of a large file, of how many
WHOLE = (0, 1)


def open_text(path: str, piece: Piece, paragraphs: bool) -> io.TextIOWrapper:
    """Open a text file, or a piece of it, for reading; every line end becomes "\\n"."""
    file = opened(path) if piece == WHOLE else io.BytesIO(read_piece(path, piece, paragraphs))
    return io.TextIOWrapper(file, encoding="utf-8")


def read_piece(path: str, piece: Piece, paragraphs: bool) -> bytes:
    """Return a piece of a file. Pieces have about the same size, and end after a line, or after an empty line."""
    number, pieces = piece
    size, _ = bucket.state(path)
    start, stop = (index * size // pieces for index in (number, number + 1))
    with bucket.opened(path) as file:
        head = file.read(CHARACTERS) if paragraphs else b""
        line_end = b"\r\n" if head.count(b"\r\n\r\n") > head.count(b"\n\n") else b"\n"
        return read_block(file, start, stop - start, line_end * (2 if paragraphs else 1))


def blocks(path: str, piece: Piece = WHOLE, paragraphs: bool = False) -> Iterator[str]:
    """Yield the text of a file, or of a piece of it, cut at line ends; without a byte order mark."""
    with open_text(path, piece, paragraphs) as file:
        block = file.read(CHARACTERS)
        block = block.removeprefix("\ufeff") if not piece[0] else block
        while block:
            yield plain_text(path, block + file.readline())
            block = file.read(CHARACTERS)


def read_lines(path: str, piece: Piece = WHOLE) -> Iterator[list[str]]:
    """Yield the lines of a text file, or of a piece of it, in batches."""
    for block in blocks(path, piece):
        lines = block.split("\n")
        if not lines[-1]:
            lines.pop()
        yield lines


def read_paragraphs(path: str, piece: Piece = WHOLE) -> Iterator[list[str]]:
    """Yield the paragraphs of a text file, or of a piece of it, in batches; empty lines separate them."""
    rest = ""
    for block in blocks(path, piece, paragraphs=True):
        *whole, rest = (rest + block).split("\n\n")
        yield [text for text in (paragraph.strip("\n") for paragraph in whole) if text]
    if rest.strip("\n"):
        yield [rest.strip("\n")]


def lines_before(path: str, piece: Piece) -> int:
    """Return how many lines of a file are before a piece."""
    number, pieces = piece
    return sum(block.count("\n") for before in range(number) for block in blocks(path, (before, pieces)))


BATCH = 1000  # rows of a table that are in memory at once


def read_files(files: Sequence[str], sample_by: str, form: Form, piece: Piece = WHOLE) -> Documents:
    """Yield batches of the documents of files in their order: lists of str, None (no text) or (text, responses).

    sample_by  a document of a .txt file: line, paragraph (ended by an empty line) or document (the file)
    form       how rows of the other formats become documents
    piece      of one large file: its number, and how many there are

    A document has the type `Document` of tpulm.corpus.rows. Raises UserError, naming the file and, if it is known, the
    line; also if a file changes meanwhile.
    """
    for file in files:
        with unchanged(file):
            if not bucket.state(file)[0]:
                if gzipped(file) or format_of(file) in ("csv", "parquet"):  # no complete file of these formats is empty
                    raise UserError(
                        f"{file} is empty: it is not a complete {'gzip' if gzipped(file) else format_name(file)} file."
                    )
                continue
            try:
                yield from read_file(file, sample_by, form, piece)
            except UserError:
                raise
            except Exception as error:  # whatever pyarrow and the codecs raise
                raise mistake(file, error) from error


LOOK = 1 << 16  # bytes that are checked of a file that can be read in pieces
LOOK_WHOLE = 1 << 20  # largest size of any other file that is checked


def look_at(where: str, text: Mapping, parts: Iterable[Part]) -> None:
    """Check the beginning of the first file of each source and split of a text. Raises UserError.

    A wrong column, field, template or encoding ends so before the first job, which may delete older outputs. Datasets
    of hubs and files in buckets are left to the jobs.
    """
    by_split: dict[tuple, list[Part]] = {}
    for part in parts:
        by_split.setdefault((part.source, part.split), []).append(part)
    for source_parts in by_split.values():
        recipe = read_part_recipe(where, dict(text), source_parts[0])
        files = [file for part in source_parts for file in part.files]
        if recipe["source"] != "files" or any(map(bucket.remote, files)):
            continue
        if not any(map(os.path.getsize, files)):
            raise UserError(f"{recipe['key']}.files: {files[0]} is empty; allowed: files with text.")
        first = next(file for file in files if os.path.getsize(file))
        size, by = os.path.getsize(first), "line"  # plain text can only have a wrong encoding
        pieces = -(-size // LOOK) if divisible(first, by) else 1
        whole = format_of(first) == "json" or (format_of(first) == "parquet" and gzipped(first))
        if isinstance(recipe.get("messages"), str) or (whole and size > LOOK_WHOLE):
            continue
        next(read_files([first], by, Form(recipe["key"], recipe), (0, pieces)), None)


@contextlib.contextmanager
def unchanged(file: str) -> Iterator[None]:
    """Raise UserError if a file has another size or date after the block than before."""
    before = bucket.state(file)
    yield
    if bucket.state(file) != before:
        raise UserError(f"{file} changed while it was read; run again when it no longer changes.")


def read_file(file: str, sample_by: str, form: Form, piece: Piece) -> Documents:
    """Yield the documents of one file, or of a piece of it, in batches."""
    kind = format_of(file)
    if kind == "text" and sample_by == "document":
        yield [read_whole_text(file)]
    elif kind == "text":
        yield from read_paragraphs(file, piece) if sample_by == "paragraph" else read_lines(file, piece)
    elif kind == "csv":
        yield from read_csv(file, form)
    elif kind == "parquet":
        yield from read_parquet(file, form)
    elif kind == "jsonl" or is_json_lines(file):
        yield from json_lines_documents(file, form, piece)
    else:
        rows = parsed(read_whole_text(file))
        rows = rows if isinstance(rows, list) else [rows]
        yield [form.document_of(f"{file}, entry {number}", row) for number, row in enumerate(rows, start=1)]


def read_whole_text(file: str) -> str:
    """Return the text of a file, without a byte order mark."""
    with open_text(file, WHOLE, False) as text:
        return plain_text(file, text.read().removeprefix("\ufeff"))


def opened(file: str) -> IO[bytes]:
    """Open a file for reading bytes, through gzip if its name ends with .gz."""
    return gzip.open(bucket.opened(file)) if gzipped(file) else bucket.opened(file)  # type: ignore[return-value]


def read_csv(file: str, form: Form) -> Documents:
    """Yield the documents of a CSV file. A row that is too short has no text in its last columns."""
    with opened(file) as data:
        plain_text(file, data.read(LOOK).decode("utf-8", "ignore"))
    csv.field_size_limit(sys.maxsize)
    with opened(file) as data:
        rows = csv.reader(io.TextIOWrapper(data, encoding="utf-8-sig", newline=""), strict=True)
        line, batch = 1, []
        try:
            names = next(filter(None, rows), [])  # empty lines may be before it
            head = rows.line_num
            form.check(file, names)
            places = [names.index(column) for column in form.columns]
            line = rows.line_num + 1
            for row in rows:
                if len(row) > len(names):
                    raise UserError(
                        f"{file}, line {line}, has {len(row)} fields; allowed: {len(names)}, as in line {head}, with "
                        "quotation marks around a field that has commas."
                    )
                if row:
                    batch.append(form.document(file, [row[place] if place < len(row) else None for place in places]))
                if len(batch) == BATCH:
                    yield batch
                    batch = []
                line = rows.line_num + 1
        except csv.Error as error:
            found = "is not closed" if "end of data" in str(error) else "has text after its pair"
            raise UserError(
                f"{file}, line {line}: a quotation mark {found}; allowed: pairs around a field, doubled inside it."
            ) from None
        if batch:
            yield batch


def read_parquet(file: str, form: Form) -> Documents:
    """Yield the documents of a Parquet file."""
    import pyarrow.parquet as pq

    with contextlib.ExitStack() as stack:
        data = stack.enter_context(opened(file))
        if gzipped(file):  # Parquet is read from its end, which a gzip stream does not have
            plain = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(data, plain)
            data = plain
        table = pq.ParquetFile(data)
        form.check(file, table.schema_arrow.names)
        for batch in table.iter_batches(BATCH, columns=list(form.columns)):
            yield form.documents(file, [batch[column].to_pylist() for column in form.columns])


def parsed(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError, also for one whose depth would overflow the stack."""
    if depth(text) > DEEPEST:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    return json.loads(text)


def is_json_lines(file: str) -> bool:
    """Return whether the first line with text in a JSON file is a whole object, as in JSON Lines."""
    first = next((line for batch in read_lines(file) for line in batch if line.strip()), "")
    try:
        return isinstance(parsed(first), dict)
    except ValueError:
        return False


def json_lines_documents(file: str, form: Form, piece: Piece) -> Documents:
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
                    row = parsed(text)
                except ValueError as error:
                    raise UserError(f"{place}, is not valid JSON: {first_line(error)}.") from None
                documents.append(form.document_of(place, row))
        yield documents


@dataclass
class Line:
    """A line of a file, for messages; converted to text only there, since counting the lines before takes time."""

    file: str
    piece: Piece
    number: int  # of the line, counted from the beginning of the piece

    def __str__(self) -> str:
        """Return file and number."""
        return f"{self.file}, line {lines_before(self.file, self.piece) + self.number}"


def mistake(file: str, error: Exception) -> UserError:
    """Return the error that says why a file could not be read."""
    if isinstance(error, OSError) and error.strerror and not isinstance(error, gzip.BadGzipFile):
        return UserError(f"{file} cannot be read: {error.strerror}.")
    kind = format_of(file)
    with bucket.opened(file) as data:
        if data.read(len(POINTER)) == POINTER.encode():
            return UserError(f"{file} is a pointer of Git LFS, not the file; `git lfs pull` fetches the file.")
    try:
        with opened(file) as lines:
            for number, line in enumerate(lines, start=1):  # noqa: B007 (used where decoding fails)
                if kind != "parquet":
                    line.decode("utf-8")
    except UnicodeDecodeError as bad:
        return UserError(
            f"{file}, line {number}, is not UTF-8 text: byte {bad.start + 1} of the line is "
            f"{bad.object[bad.start]:#04x}; {converting(file, False)}."
        )
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return UserError(f"{file} is not a complete gzip file.")
    return UserError(f"{file} is not a complete {format_name(file)} file: {first_line(error)}.")


def plain_text(file: str, text: str) -> str:
    """Return `text`. Raises UserError for too many control characters, and for a pointer of Git LFS."""
    if text.startswith(POINTER):
        raise UserError(f"{file} is a pointer of Git LFS, not the text; `git lfs pull` fetches the text.")
    share = len(CONTROL.findall(text)) / max(2000, len(text))
    if share <= MOST_CONTROL:
        return text
    place = 1
    with opened(file) as lines:
        for line in lines:
            if match := CONTROL_BYTES.search(line):
                raise UserError(
                    f"{file} is not plain text: {share:.1%} of its characters are control characters, the first of "
                    f"them byte {place + match.start():,} of the file ({match[0].hex()}); allowed: {MOST_CONTROL:.1%}; "
                    f"{converting(file, True)}."
                )
            place += len(line)
    return text


def converting(file: str, utf8: bool) -> str:
    """Return a part of a sentence that says how to convert a file; utf8  whether its bytes are UTF-8."""
    with opened(file) as data:
        content = data.read(CHARACTERS)
    if other := next((name for first, name in OTHERS.items() if content.startswith(first)), ""):
        return f"its content is {other}; allowed: a name that ends as its format does, of {ALLOWED}"
    name = encoding_of(content, utf8)
    if not name:
        return "to convert text in another encoding: `iconv -f ENCODING -t UTF-8`, with a name of `iconv -l`"
    command, source = f"iconv -f {name} -t UTF-8", shlex.quote(file)
    if not bucket.remote(file):
        new = f"NEW{Path(file.removesuffix('.gz')).suffix}"
        command = f"gzip -dc {source} | {command} > {new}" if gzipped(file) else f"{command} {source} > {new}"
    return f"it seems to be {name}, which `{command}` converts"


def encoding_of(data: bytes, utf8: bool) -> str:
    """Return iconv's name of the encoding that the beginning of a text seems to have; "" if none fits."""
    data = data[: len(data) // 4 * 4]
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        names = ["UTF-32", "UTF-16"]
    elif data.count(0) > MOST_CONTROL * len(data):  # in UTF-16, ASCII characters have one
        names = ["UTF-32LE", "UTF-32BE", "UTF-16LE" if data[1::2].count(0) > data[::2].count(0) else "UTF-16BE"]
    else:  # text of Western Europe is mostly ASCII
        plain, valid = (len(data.decode(name, "ignore").encode()) for name in ("ascii", "utf-8"))
        # Text with a broken byte in UTF-8 is to be repaired, not converted.
        western = not utf8 and plain > 0.75 * len(data) and valid - plain < 0.5 * (len(data) - plain)
        names = ["WINDOWS-1252", "ISO-8859-1"] if western else []
    for name in names:
        with contextlib.suppress(UnicodeDecodeError):
            if len(CONTROL.findall(text := data.decode(name))) <= MOST_CONTROL * len(text):
                return name
    return ""


def format_name(file: str) -> str:
    """Return the name of a file's format."""
    kinds = {"csv": "CSV", "parquet": "Parquet", "json": "JSON", "jsonl": "JSON Lines", "text": "text"}
    return kinds[format_of(file)]


if TYPE_CHECKING:
    from datasets import Dataset


def import_datasets() -> ModuleType:
    """Return the `datasets` library, without progress bars and download counts."""
    # To be counted, each call of load_dataset would request a file, which takes seconds without a network.
    os.environ["HF_UPDATE_DOWNLOAD_COUNTS"] = "0"
    import datasets

    datasets.disable_progress_bars()
    return datasets


def load_hub(where: str, recipe: dict, form: Form) -> "Dataset":
    """Return the split that a recipe names, of a dataset on the hub or in a local folder.

    Raises UserError if it does not exist, or cannot be downloaded.
    """
    datasets = import_datasets()
    ((split, expression),) = recipe["splits"].items()
    try:
        loaded = datasets.load_dataset(
            recipe["dataset"], recipe.get("name"), split=expression, revision=recipe.get("revision")
        )
    except Exception as error:  # whatever the library raises, and what it reads files with
        if "scripts are no longer supported" in str(error):
            raise UserError(
                f"{where}.dataset is {recipe['dataset']}, which is a script ({str(error).rsplit(' ', 1)[1]}); "
                "allowed: a dataset of data files."
            ) from error
        if not isinstance(error, ValueError) or isinstance(error, OSError):
            raise not_loaded(where, recipe, error) from error
        raise UserError(
            f"{where}: {recipe['dataset']} does not have this data (name {recipe.get('name') or 'not set'}, "
            f"splits.{split} {expression}): {first_line(error)}."
        ) from error
    form.check(recipe["dataset"], loaded.column_names)
    return loaded


def not_loaded(where: str, recipe: Mapping, error: Exception) -> UserError:
    """Return the UserError that says why a dataset could not be loaded, and what helps."""
    source = named_source(f"{where}.dataset", recipe["dataset"], recipe.get("revision"))
    if os.path.isdir(recipe["dataset"]):
        reason = first_line(error.__cause__ if isinstance(error.__cause__, Exception) else error)
        return UserError(f"{source}, which cannot be read ({reason}); allowed: a dataset that `datasets` loads.")
    return not_fetched(source, dataset_error(recipe["dataset"], recipe.get("revision"), error))


def read_hub(dataset: "Dataset", name: str, form: Form) -> Documents:
    """Yield the documents of a split from `load_hub`, in batches; name  for messages."""
    for table in dataset.select_columns(list(form.columns)).with_format("arrow").iter(BATCH):
        yield form.documents(name, [table[column].to_pylist() for column in form.columns])
