"""What corpus.json says of a text: statistics of its documents, and its sources."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tpulm.core.errors import UserError
from tpulm.corpus.documents import reason_in_words
from tpulm.specs.artifacts import SPLITS


class Figures:
    """Counts documents, characters and words (by white space), and the SHA-256 of all texts and their lengths.

    Where the responses count, also documents of which not all counts, and the characters of their responses.

    lengths  characters of each document, int32 arrays of shape [documents] of what was added at once
    """

    def __init__(self) -> None:
        """Start with no document."""
        self.documents = self.characters = self.words = 0
        self.responses: dict[str, int] = {}
        self.digest = hashlib.sha256()
        self.lengths: list[np.ndarray] = [np.empty(0, np.int32)]

    def add(self, texts: pa.Array, words: int, responses: pa.Array | None = None) -> None:
        """Count documents, which have so many words together, and their responses (see `documents.RESPONSES`).

        The digest is of each text's length in bytes (8 of them, little-endian) and its UTF-8.
        """
        lengths = pc.binary_length(texts).to_numpy(zero_copy_only=False).astype("<i8")
        heads = pa.Array.from_buffers(pa.binary(8), len(texts), [None, pa.py_buffer(lengths)]).cast(pa.binary())
        framed = pc.binary_join_element_wise(heads, texts.cast(pa.binary()), b"")
        self.digest.update(memoryview(framed.buffers()[2] or b"")[: int(lengths.sum()) + 8 * len(texts)])
        self.documents += len(texts)
        self.lengths.append(pc.utf8_length(texts).to_numpy(zero_copy_only=False))
        self.characters += int(np.sum(self.lengths[-1], dtype=np.int64))
        self.words += words
        if responses is not None:
            spans = responses.flatten()
            sizes = pc.subtract(pc.struct_field(spans, "stop"), pc.struct_field(spans, "start"))
            owners = np.repeat(np.arange(len(texts)), pc.list_value_length(responses))
            said = np.bincount(owners, sizes, len(texts)).astype(np.int64)
            some = said < self.lengths[-1]
            self.responses["documents"] = self.responses.get("documents", 0) + int(some.sum())
            self.responses["characters"] = self.responses.get("characters", 0) + int(said[some].sum())

    def as_dict(self) -> dict:
        """Return documents, characters, words and fingerprint, JSON types only."""
        return {
            "documents": self.documents,
            "characters": self.characters,
            "words": self.words,
            "fingerprint": self.digest.hexdigest(),
            **({"responses": self.responses} if self.responses else {}),
        }


def combined(files: Sequence[Mapping]) -> dict:
    """Return the figures of documents in several files, from those of each, as `as_dict` returns them.

    The fingerprint is that of the only file with documents, or the SHA-256 of those of all that have some.
    """
    digests = [figures["fingerprint"] for figures in files if figures["documents"]]
    together = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    counts = {key: sum(figures[key] for figures in files) for key in ("documents", "characters", "words")}
    responses = [figures["responses"] for figures in files if "responses" in figures]
    more = {"responses": {key: sum(one[key] for one in responses) for key in responses[0]}} if responses else {}
    return {**counts, "fingerprint": together, **more}


def merged(recipe: dict, records: Sequence[dict]) -> dict:
    """Return the facts about the sources in the records of the parts: the same for any partition.

    recipe  parts, and sources where there are several

    Raises UserError where a file changed while jobs read its pieces.
    """
    if "sources" not in recipe:
        return merged_source(recipe["parts"], records)
    found = {}
    for name in dict.fromkeys(recipe["sources"]):
        own = [number for number, source in enumerate(recipe["sources"]) if source == name]
        found[name] = merged_source([recipe["parts"][number] for number in own], [records[number] for number in own])
    return {"sources": found}


def merged_source(splits: Sequence[str], records: Sequence[dict]) -> dict:
    """Return the facts about one source in the records of its parts."""
    files: dict[str, list[dict]] = {}
    removed: Counter = Counter()
    named: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for split, record in zip(splits, records, strict=True):
        removed.update(record.get("removed_lines", {}))
        named |= record["source"].get("splits", {})
        for file in record["files"]:
            if sizes.setdefault(file["path"], file["bytes"]) != file["bytes"]:
                raise UserError(f"{file['path']} changed while it was read; run again when it no longer changes.")
            if "sha256" in file:
                files.setdefault("dataset" if named else split, []).append(file)
    lines = {"removed_lines": dict(sorted(removed.items()))} if "removed_lines" in records[0] else {}
    return records[0]["source"] | ({"splits": named} if named else {}) | ({"files": files} if files else {}) | lines


def with_splits(record: dict, recipe: Mapping, splits: Mapping, sources: Mapping) -> dict:
    """Return corpus.json: what splits.json says of the sources, and what has been written of each.

    recipe           weights, where there are several sources
    splits, sources  as `write_splits` returns them
    """
    for name, source in record.get("sources", {}).items():
        source |= {"weight": recipe["weights"][name], "splits": sources[name]}
    return record | {"splits": splits}


def sum_parts(parts: Sequence[dict], dropped: Mapping[str, Mapping[str, int]]) -> tuple[dict, dict]:
    """Return `splits` and `sources` of a text, from those that `write_splits` returned for each part.

    dropped  how many documents of each split were dropped, by reason
    """
    splits = {
        split: combined([part["splits"][split] for part in parts])
        | {f"dropped_{reason}": count for reason, count in dropped[split].items()}
        for split in SPLITS
    }
    sources: dict[str, dict] = {}
    for part in parts:
        for name, found in part["sources"].items():
            for split, counts in found.items():
                total = sources.setdefault(name, {}).setdefault(split, dict.fromkeys(counts, 0))
                total |= {key: total[key] + count for key, count in counts.items()}
    return splits, sources


def in_words_of(split: str, figures: Mapping, dropped: Mapping[str, int]) -> str:
    """Return the figures of a split, and why documents were dropped, as a sentence."""
    reasons = [f"{count:,} {reason_in_words(reason)}" for reason, count in dropped.items() if count]
    return (
        f"{split}: {figures['documents']:,} documents, {figures['characters']:,} characters; "
        f"dropped {', '.join(reasons) or 'none'}"
    )


def rows_by_source(record: Mapping, split: str, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return which of some documents of a held-out split, int64 in ascending order, are of each source, by its name.

    record  corpus.json: documents of one source follow those of another. All are of "" where there are no sources.
    """
    if "sources" not in record:
        return {"": rows}
    counts = [source["splits"][split]["documents"] for source in record["sources"].values()]
    return dict(zip(record["sources"], np.split(rows, np.searchsorted(rows, np.cumsum(counts)[:-1])), strict=True))
