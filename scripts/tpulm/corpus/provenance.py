"""What corpus.json says of the sources of a text, from the records of its parts."""

from collections import Counter
from collections.abc import Sequence

from tpulm.core.errors import UserError


def merged(recipe: dict, records: Sequence[dict]) -> dict:
    """Return what the records of the parts say of their sources: the same for any partition.

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
    """Return what the records of the parts of one source say of it."""
    files: dict[str, list[dict]] = {}
    removed: Counter = Counter()
    named: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for split, record in zip(splits, records, strict=True):
        removed.update(record.get("removed_lines", {}))
        named |= record["source"].get("splits", {})
        for file in record["files"]:
            if sizes.setdefault(file["path"], file["bytes"]) != file["bytes"]:
                raise UserError(f"{file['path']} changed while it was read; run again when nothing writes to it.")
            if "sha256" in file:
                files.setdefault("dataset" if named else split, []).append(file)
    lines = {"removed_lines": dict(sorted(removed.items()))} if "removed_lines" in records[0] else {}
    return records[0]["source"] | ({"splits": named} if named else {}) | ({"files": files} if files else {}) | lines
