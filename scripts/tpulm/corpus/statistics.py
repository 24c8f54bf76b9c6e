"""Statistics of the documents of a corpus, for its record."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


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
        """Count documents, which have so many words together, and their responses (see `tables.RESPONSES`).

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
