"""The user's text: local files or a dataset of the Hugging Face Hub, both read with `datasets`.

A batch of documents is a list of str, or None where the source has no text in a row.
"""

import glob
import gzip
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tpulm.core.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

KINDS = {".txt": "text", ".jsonl": "jsonl", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
ALLOWED = ".txt, .jsonl, .json, .csv or .parquet, and each of them with .gz"
BATCH = 1000  # rows that are in memory at once


def kind_of(path: str) -> str:
    """Return how to read a file, by its extension; an empty text where that is not known."""
    return KINDS.get(Path(path.lower().removesuffix(".gz")).suffix, "")


def source_files(where: str, recipe: dict) -> dict[str, list[str]]:
    """Return the local files that a text source names, by split, sorted, without repeats.

    Those of a local folder that stands for a dataset of the hub are under `dataset`.

    where  config key of the source, for the messages. Raises UserError for a glob without files or with other files.
    """
    if recipe["source"] == "hub" and os.path.isdir(recipe["dataset"]):
        return {"dataset": sorted(str(path) for path in Path(recipe["dataset"]).rglob("*") if path.is_file())}
    if recipe["source"] != "files":
        return {}
    globs = recipe["files"]
    globs = {"train": globs} if isinstance(globs, list) else globs
    return {split: sorted({path for one in named for path in expand(where, one)}) for split, named in globs.items()}


def expand(where: str, pattern: str) -> list[str]:
    """Return the files that a glob stands for; `**` stands for folders. Raises UserError."""
    paths = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    if not paths:
        raise UserError(f"{where}.files: no file matches {pattern}.")
    for path in sorted(paths):
        if not kind_of(path):
            raise UserError(f"{where}.files: {path} has an extension that is not known; allowed: {ALLOWED}.")
    return paths


def read_files(where: str, files: list[str], sample_by: str, column: str) -> Iterator[list[str | None]]:
    """Yield the documents of files in their order, in batches.

    sample_by    what a document is in a .txt file: line, paragraph (ended by an empty line) or document (the file)
    column  column of the other formats. Raises UserError, naming the file and where it can be said the line.
    """
    with tempfile.TemporaryDirectory() as folder:
        for number, file in enumerate(files):
            if not os.path.getsize(file):
                continue
            # Under a plain name: `datasets` takes brackets, colons and more in a name for a pattern.
            suffixes = "".join(Path(file.lower()).suffixes[-2 if file.lower().endswith(".gz") else -1 :])
            link = Path(folder) / f"{number}{suffixes}"
            link.symlink_to(os.path.abspath(file))
            try:
                yield from read_file(where, file, link, sample_by, column)
            except UserError:
                raise
            except Exception as error:  # whatever pandas, pyarrow, fsspec and the codecs raise
                raise mistake(file, error) from error
            finally:
                link.unlink()


def read_file(where: str, file: str, link: Path, sample_by: str, column: str) -> Iterator[list[str | None]]:
    """Yield the documents of one file, which is read as `link`, in batches."""
    kind = kind_of(file)
    if kind == "text":
        for batch in read_text(link, sample_by):
            yield [text.strip("\n") for text in batch] if sample_by == "paragraph" else batch
    elif kind == "csv":
        yield from read_csv(where, file, link, column)
    elif kind == "parquet":
        yield from read_parquet(where, file, link, column)
    elif kind == "jsonl" or is_json_lines(link):
        yield from read_json_lines(where, file, link, column)
    else:
        rows = json.loads("".join(text for batch in read_text(link, "document") for text in batch))
        rows = rows if isinstance(rows, list) else [rows]
        yield [field(where, f"{file}, entry {number}", row, column) for number, row in enumerate(rows, start=1)]


def import_datasets() -> ModuleType:
    """Return the `datasets` library, quiet towards the terminal and, about what is read, towards the network."""
    import datasets

    # Else each call of load_dataset asks a server for a file, to be counted there: seconds where that is cut off.
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    datasets.disable_progress_bars()
    return datasets


def stream(builder: str, path: Path, **options: object) -> "IterableDataset":
    """Return a local file as a dataset that is read as it goes, without a copy in a cache."""
    return import_datasets().load_dataset(builder, data_files=[str(path)], split="train", streaming=True, **options)


def column_batches(dataset: "Dataset | IterableDataset", column: str) -> Iterator[list]:
    """Yield one column of a dataset in batches."""
    for table in dataset.with_format("arrow").iter(BATCH):
        yield table[column].to_pylist()


def read_text(path: Path, sample_by: str) -> Iterator[list]:
    """Yield the lines, paragraphs or the whole of a text file, in batches, without a byte order mark."""
    for number, batch in enumerate(column_batches(stream("text", path, sample_by=sample_by), "text")):
        if number == 0 and batch:
            batch[0] = batch[0].removeprefix("\ufeff")
        yield batch


def read_csv(where: str, file: str, link: Path, column: str) -> Iterator[list[str | None]]:
    """Yield the documents of a CSV file. "NA" and "001" stay the text that they are."""
    datasets = import_datasets()
    for row in stream("csv", link, nrows=1):
        check_column(where, file, list(row), column)
    features = datasets.Features({column: datasets.Value("string")})
    yield from column_batches(stream("csv", link, features=features, keep_default_na=False), column)


def read_parquet(where: str, file: str, path: Path, column: str) -> Iterator[list[str | None]]:
    """Yield the documents of a Parquet file."""
    if path.suffix == ".gz":  # Parquet is read from its end, which a stream of gzip has not
        with gzip.open(path) as packed, open(path.with_suffix(""), "wb") as plain:
            shutil.copyfileobj(packed, plain)
        path = path.with_suffix("")
    check_column(where, file, list(stream("parquet", path).features), column)
    for batch in column_batches(stream("parquet", path, columns=[column]), column):
        check_text(where, file, batch, column)
        yield batch
    if not path.is_symlink():
        path.unlink()


def is_json_lines(path: Path) -> bool:
    """Return whether the first line of a JSON file is a whole object, as in JSON Lines."""
    for batch in read_text(path, "line"):
        try:
            return isinstance(json.loads(batch[0]), dict)
        except ValueError:
            return False
    return False


def read_json_lines(where: str, file: str, link: Path, column: str) -> Iterator[list[str | None]]:
    """Yield the documents of a JSON Lines file: an object per line, whose other fields may differ.

    Read as lines: the JSON reader of `datasets` guesses a type for the column (dates, numbers) and changes the text.
    """
    line = 0
    for batch in read_text(link, "line"):
        documents = []
        for text in batch:
            line += 1
            if text.strip():
                try:
                    row = json.loads(text)
                except ValueError as error:
                    raise UserError(f"{file}, line {line}, is not valid JSON: {error}.") from None
                documents.append(field(where, f"{file}, line {line}", row, column))
        yield documents


def field(where: str, place: str, row: object, column: str) -> str | None:
    """Return the text of a JSON object. Raises UserError where there is none."""
    if not isinstance(row, dict):
        raise UserError(f"{place}, is no JSON object; allowed: an object with the field {column} ({where}.column).")
    check_column(where, place, list(row), column)
    check_text(where, place, [row[column]], column)
    if row[column] and not row[column].isascii():
        # JSON can escape halves of a pair of surrogates, which no encoding can hold.
        return row[column].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return row[column]


def check_column(where: str, place: str, found: list[str], column: str) -> None:
    """Raise UserError when a table has no such column."""
    if column not in found:
        raise UserError(f"{place} has no column {column} ({where}.column); found: {', '.join(found)}.")


def check_text(where: str, place: str, values: list, column: str) -> None:
    """Raise UserError when a column holds something else than text."""
    for value in values:
        if value is not None and not isinstance(value, str):
            raise UserError(f"{place}: {column} ({where}.column) holds {type(value).__name__}; allowed: text.")


def mistake(file: str, error: Exception) -> UserError:
    """Return what is wrong with a file that could not be read."""
    if isinstance(error, OSError) and error.strerror and not isinstance(error, gzip.BadGzipFile):
        return UserError(f"{file} cannot be read: {error.strerror}.")
    opened = gzip.open if file.lower().endswith(".gz") else open
    kind = kind_of(file)
    try:
        with opened(file, "rb") as lines:
            for number, line in enumerate(lines, start=1):  # noqa: B007 (used where decoding fails)
                if kind != "parquet":
                    line.decode("utf-8")
    except UnicodeDecodeError as bad:
        byte = bad.object[bad.start]
        return UserError(f"{file}, line {number}, is not UTF-8 text: byte {bad.start + 1} of the line is {byte:#04x}.")
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return UserError(f"{file} is not a whole gzip file.")
    name = {"csv": "CSV", "parquet": "Parquet", "json": "JSON", "jsonl": "JSON Lines", "text": "text"}[kind]
    return UserError(f"{file} is not a whole {name} file: {reason(error)}.")


def reason(error: Exception) -> str:
    """Return the first line of an error's text, short, without what follows the path of an address."""
    text = str(error).strip().splitlines()
    return re.sub(r"(https?://[^\s?]+)\?\S+", r"\1", text[0])[:200].rstrip(". ") if text else type(error).__name__


def load_hub(where: str, recipe: dict) -> "dict[str, Dataset]":
    """Return the splits of a dataset of the hub, or of a local folder that is laid out as one.

    Raises UserError for what does not exist, and when it is not to be had without the network.
    """
    datasets = import_datasets()
    loaded = {}
    for split, expression in recipe["splits"].items():
        try:
            loaded[split] = datasets.load_dataset(
                recipe["dataset"], recipe.get("name"), split=expression, revision=recipe.get("revision")
            )
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            raise UserError(
                f"{where}.dataset is {recipe['dataset']}, which is code to be run ({str(error).rsplit(' ', 1)[1]}); "
                "allowed: a dataset that is files of data."
            ) from error
        except (OSError, datasets.exceptions.DatasetsError) as error:
            at = f" at revision {recipe['revision']}" if recipe.get("revision") else ""
            raise UserError(
                f"{where}.dataset is {recipe['dataset']}{at}, which could not be fetched ({reason(error)}); it needs "
                "the network or a copy in the cache of `datasets`, and HF_TOKEN where it is not public."
            ) from error
        except ValueError as error:
            raise UserError(
                f"{where}: {recipe['dataset']} has no such data (name {recipe.get('name') or 'not given'}, "
                f"splits.{split} {expression}): {reason(error)}."
            ) from error
        check_column(where, recipe["dataset"], loaded[split].column_names, recipe["column"])
    return loaded


def read_hub(where: str, dataset: "Dataset", name: str, column: str) -> Iterator[list[str | None]]:
    """Yield the documents of a split that `load_hub` returned, in batches; `name` is for the messages."""
    for batch in column_batches(dataset.select_columns([column]), column):
        check_text(where, name, batch, column)
        yield batch
