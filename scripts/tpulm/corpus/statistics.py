"""The content of corpus.json: the statistics of a text's documents, and its sources."""

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
    """Counts of documents, characters and words (by white space), and the SHA-256 of all texts and their lengths.

    responses  where the responses count: documents with other text, too, and the characters of their responses
    lengths    characters of each document, an int32 array of shape [documents] for each call of `add`
    """

    def __init__(self) -> None:
        """Start with no document."""
        self.documents = self.characters = self.words = 0
        self.responses: dict[str, int] = {}
        self.digest = hashlib.sha256()
        self.lengths: list[np.ndarray] = [np.empty(0, np.int32)]

    def add(self, texts: pa.Array, words: int, responses: pa.Array | None = None) -> None:
        """Add documents with `words` words in total, and their responses (see `documents.RESPONSES`).

        The digest is over the length of each text in bytes (int64, little-endian) and its UTF-8.
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
            in_responses = np.bincount(owners, sizes, len(texts)).astype(np.int64)
            partial = in_responses < self.lengths[-1]
            self.responses["documents"] = self.responses.get("documents", 0) + int(partial.sum())
            self.responses["characters"] = self.responses.get("characters", 0) + int(in_responses[partial].sum())

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
    """Return the figures of several files together, as `as_dict` returns them, with one fingerprint."""
    digests = [figures["fingerprint"] for figures in files if figures["documents"]]
    together = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    counts = {key: sum(figures[key] for figures in files) for key in ("documents", "characters", "words")}
    responses = [figures["responses"] for figures in files if "responses" in figures]
    more = {"responses": {key: sum(counts[key] for counts in responses) for key in responses[0]}} if responses else {}
    return {**counts, "fingerprint": together, **more}


def merged(recipe: dict, records: Sequence[dict]) -> dict:
    """Return the facts about the sources in the records of the parts: the same for any partition.

    recipe  parts; sources, if there are several. Raises UserError if a file changed while jobs read its pieces.
    """
    if "sources" not in recipe:
        return merged_source(recipe["parts"], records)
    sources = {}
    for name in dict.fromkeys(recipe["sources"]):
        numbers = [number for number, source in enumerate(recipe["sources"]) if source == name]
        sources[name] = merged_source(
            [recipe["parts"][number] for number in numbers], [records[number] for number in numbers]
        )
    return {"sources": sources}


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
    """Return corpus.json; record  splits.json, whose sources get their weights and splits.

    recipe           weights, if there are several sources
    splits, sources  as `write_splits` returns them
    """
    for name, source in record.get("sources", {}).items():
        source |= {"weight": recipe["weights"][name], "splits": sources[name]}
    return record | {"splits": splits}


def sum_parts(parts: Sequence[dict], dropped: Mapping[str, Mapping[str, int]]) -> tuple[dict, dict]:
    """Return `splits` and `sources` of a text, the sums over its parts.

    parts    splits and sources from `write_splits`; dropped  counts of dropped documents by split and reason
    """
    splits = {
        split: combined([part["splits"][split] for part in parts])
        | {f"dropped_{reason}": count for reason, count in dropped[split].items()}
        for split in SPLITS
    }
    sources: dict[str, dict] = {}
    for part in parts:
        for name, by_split in part["sources"].items():
            for split, counts in by_split.items():
                total = sources.setdefault(name, {}).setdefault(split, dict.fromkeys(counts, 0))
                total |= {key: total[key] + count for key, count in counts.items()}
    return splits, sources


def in_words_of(split: str, figures: Mapping, dropped: Mapping[str, int]) -> str:
    """Return a sentence with the figures of a split and the reasons for dropped documents."""
    reasons = [f"{count:,} {reason_in_words(reason)}" for reason, count in dropped.items() if count]
    return (
        f"{split}: {figures['documents']:,} documents, {figures['characters']:,} characters; "
        f"dropped {', '.join(reasons) or 'none'}"
    )


def rows_by_source(record: Mapping, split: str, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return documents of a held-out split by the name of their source; rows  int64, ascending.

    record  corpus.json, in which the documents of a source follow each other. Without sources, the only name is "".
    """
    if "sources" not in record:
        return {"": rows}
    counts = [source["splits"][split]["documents"] for source in record["sources"].values()]
    return dict(zip(record["sources"], np.split(rows, np.searchsorted(rows, np.cumsum(counts)[:-1])), strict=True))
