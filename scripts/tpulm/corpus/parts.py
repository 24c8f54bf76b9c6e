"""Parts of a text: documents that one job reads, cleans, filters and gives keys, in the order of their source."""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from tpulm.core import bucket
from tpulm.core.files import atomic_write, sha256
from tpulm.corpus.documents import RESPONSES, DocumentFile
from tpulm.corpus.filters import apply_filters
from tpulm.corpus.near_duplicates import band_names, hash_bands
from tpulm.corpus.rows import Document

KEY_BYTES = 16  # of SHA-256: two documents in 10^14 have the same key with a probability of 10^-11
SCHEMA = pa.schema({"text": pa.string(), "words": pa.int32(), "key": pa.binary(KEY_BYTES)})
# The other columns are random, which compression does not shorten.
COMPRESSED = ("text", "words", *(f"{RESPONSES.name}.list.element.{name}" for name in ("start", "stop")))


def write_part(path: str, batches: Iterable[Iterable[Document]], recipe: dict) -> dict:
    """Write the cleaned documents of a part; return their number, and how many were dropped, by reason.

    recipe  as `clean` takes it; near_duplicates, if bands are to be hashed
    """
    dropped: Counter = Counter(empty=0, short=0)
    removed: Counter = Counter()
    documents, near = 0, recipe.get("near_duplicates")
    names = band_names(near["threshold"]) if near else []
    schema = pa.schema([*columns_of(recipe), *(pa.field(name, pa.uint64()) for name in names)])
    compression = dict.fromkeys(schema.names, "none") | dict.fromkeys(COMPRESSED, "zstd")
    with atomic_write(path) as partial, contextlib.closing(DocumentFile(partial, schema, compression)) as file:
        for batch in batches:
            cleaned = clean(batch, recipe, dropped, removed)
            bands = map(pa.array, hash_bands(cleaned["text"].to_pylist(), near, recipe["seed"])) if near else ()
            file.add(pa.record_batch([*cleaned.columns, *bands], schema=schema))
            documents += cleaned.num_rows
    lines = {"removed_lines": dict(removed)} if "c4" in recipe.get("filters", {}) else {}
    return {"documents": documents, "dropped": dict(dropped), "sha256": sha256(path)} | lines


def columns_of(recipe: dict) -> pa.Schema:
    """Return the columns of a part without the bands."""
    return SCHEMA.append(RESPONSES) if recipe.get("responses") else SCHEMA


def clean(batch: Iterable[Document], recipe: dict, dropped: Counter, removed: Counter) -> pa.RecordBatch:
    """Return the documents of a batch that are kept, with the columns of `columns_of`.

    recipe   seed, min_characters; filters, if any; responses, whether to keep their characters
    dropped  counts the dropped documents by reason; removed  counts the lines that filters remove by rule

    Line ends become "\\n". The key is the SHA-256 of the seed and the text with its white space normalised: random, and
    the same for equal documents.
    """
    texts, responses = filtered(batch, recipe, dropped, removed)
    words, normalised = [], []
    for text in texts:
        parts = text.split()
        words.append(len(parts))
        normalised.append(" ".join(parts))
    keep = [bool(text) and len(text) >= recipe["min_characters"] for text in normalised]
    dropped["empty"] += normalised.count("")
    dropped["short"] += len(texts) - normalised.count("") - sum(keep)
    head = f"{recipe['seed']}\0"
    keys = [hashlib.sha256((head + text).encode()).digest()[:KEY_BYTES] for text in normalised]
    columns = {
        "text": pa.array(texts, pa.string()),
        "words": pa.array(words, pa.int32()),
        "key": pa.array(keys, pa.binary(KEY_BYTES)),
    }
    if recipe.get("responses"):
        columns["responses"] = pa.array(responses, RESPONSES.type)
    cleaned = pa.record_batch(columns, schema=columns_of(recipe))
    return cleaned if all(keep) else cleaned.filter(pa.array(keep))


def filtered(
    batch: Iterable[Document], recipe: dict, dropped: Counter, removed: Counter
) -> tuple[list[str], list[list[dict]]]:
    """Return the texts of a batch that are not empty and pass the filters, and the responses of each if they count."""
    filters = recipe.get("filters")
    texts, responses = [], []
    for document in batch:
        text, spans = document if isinstance(document, tuple) else (document, None)
        if not text or (filters and not text.strip()):
            dropped["empty"] += 1
            continue
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        if filters:
            text, rule = apply_filters(text, filters, removed)
            if rule:
                dropped[rule] += 1
                continue
        texts.append(text)
        if recipe.get("responses"):
            responses.append([{"start": start, "stop": stop} for start, stop in spans or [(0, len(text))]])
    return texts, responses


def describe_files(files: Iterable[str], whole: bool) -> list[dict]:
    """Return path and bytes of files, and their SHA-256 if `whole`."""
    described = []
    for file in files:
        described.append({"path": file, "bytes": bucket.state(file)[0]})
        if whole:
            with bucket.opened(file) as content:
                described[-1]["sha256"] = hashlib.file_digest(content, "sha256").hexdigest()
    return described


def key_numbers(batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return the two halves of the keys of a batch in the order of their bytes, each uint64 of shape [documents]."""
    column = batch["key"]
    values = np.frombuffer(column.buffers()[1], ">u8", 2 * len(column), offset=column.offset * KEY_BYTES)
    halves = values.reshape(-1, 2).astype(np.uint64)
    return halves[:, 0], halves[:, 1]
