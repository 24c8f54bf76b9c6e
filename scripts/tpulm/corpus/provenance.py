"""What corpus.json says of the sources of a text, from the records of its parts."""

from collections import Counter
from collections.abc import Mapping, Sequence

from tpulm.config.artifacts import SPLITS
from tpulm.core.errors import UserError
from tpulm.corpus.decisions import in_words
from tpulm.corpus.statistics import combined


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


def with_splits(record: dict, recipe: Mapping, splits: Mapping, sources: Mapping) -> dict:
    """Return corpus.json: what splits.json says of the sources, and what has been written of each.

    recipe           weights, where there are several sources
    splits, sources  as `write_splits` returns them
    """
    for name, source in record.get("sources", {}).items():
        source |= {"weight": recipe["weights"][name], "splits": sources[name]}
    return record | {"splits": splits}


def summed(parts: Sequence[dict], dropped: Mapping[str, Mapping[str, int]]) -> tuple[dict, dict]:
    """Return what `write_splits` returns for a text, of what it returned for each of its parts: `splits`, `sources`.

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
    """Return what is said of a finished split."""
    reasons = [f"{count:,} {in_words(reason)}" for reason, count in dropped.items() if count]
    return (
        f"{split}: {figures['documents']:,} documents, {figures['characters']:,} characters; "
        f"dropped {', '.join(reasons) or 'none'}"
    )
