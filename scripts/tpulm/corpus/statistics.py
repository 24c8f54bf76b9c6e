"""Statistics of the documents of a corpus, for its record."""

import hashlib


class Figures:
    """Counts documents, characters and words (by white space), and the SHA-256 of all texts and their lengths."""

    def __init__(self) -> None:
        """Start with no document."""
        self.documents = self.characters = self.words = 0
        self.digest = hashlib.sha256()

    def add(self, text: str, words: int) -> None:
        """Count a document of so many words."""
        data = text.encode("utf-8")
        self.digest.update(len(data).to_bytes(8, "little") + data)
        self.documents += 1
        self.characters += len(text)
        self.words += words

    def as_dict(self) -> dict:
        """Return documents, characters, words and fingerprint, JSON types only."""
        return {
            "documents": self.documents,
            "characters": self.characters,
            "words": self.words,
            "fingerprint": self.digest.hexdigest(),
        }
