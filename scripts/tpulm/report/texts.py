"""What corpus.json says of a text, in words, for the report and for cards."""

from collections.abc import Mapping
from typing import Any

REASONS = {
    "empty": "empty", "short": "short", "duplicates": "in another split", "near_duplicates": "near-duplicates",
    "contaminated": "contaminated",
}  # fmt: skip


def source_of(corpus: Mapping[str, Any]) -> str:
    """Return where a text is from, in a sentence."""
    if "sources" in corpus:
        return "Several sources; a weight says how often each training document of a source is taken."
    version = f" of Python {corpus['python_version']}" if "python_version" in corpus else ""
    return f"Source: {corpus['source']}{version}."


def reasons_of(splits: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return why documents of a text were dropped, as key of its splits and words; the others are names of filters."""
    found = dict.fromkeys(key for figures in splits.values() for key in figures if key.startswith("dropped_"))
    names = {key: key.removeprefix("dropped_") for key in found}
    return [(key, REASONS.get(name, name.replace("_", " "))) for key, name in names.items()]
