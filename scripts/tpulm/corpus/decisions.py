"""What is decided about each document: a split, or the reason why it is in none."""

from collections.abc import Sequence

import numpy as np

from tpulm.config.artifacts import SPLITS
from tpulm.core.errors import UserError

TRAIN, VALIDATION, TEST = (SPLITS.index(split) for split in ("train", "validation", "test"))
DUPLICATE, NEAR_DUPLICATE, CONTAMINATED, BEYOND = 10, 11, 12, 13
# Codes of documents that are dropped, by the names of their counts. More than max_documents are left out, not dropped.
REASONS = {"duplicates": DUPLICATE, "near_duplicates": NEAR_DUPLICATE}
IN_WORDS = {
    "empty": "empty", "short": "shorter than min_characters", "duplicates": "also in another split",
    "near_duplicates": "near-duplicates", "contaminated": "contaminated",
}  # fmt: skip
# Of dropped documents that a record shows; and of each, characters.
EXAMPLES, EXAMPLE_CHARACTERS = 20, 200


def count_dropped(splits: Sequence[str], records: Sequence[dict], codes: np.ndarray) -> dict[str, dict[str, int]]:
    """Return how many documents of each split were dropped, by reason: that of the split which a part is named for."""
    dropped = {split: {"empty": 0, "short": 0, "duplicates": 0} for split in SPLITS}
    first = 0
    for split, record in zip(splits, records, strict=True):
        stop = first + record["documents"]
        counts = np.bincount(codes[first:stop], minlength=256)
        here = record["dropped"] | {reason: int(counts[code]) for reason, code in REASONS.items()}
        for reason, count in here.items():
            if count:
                dropped[split][reason] = dropped[split].get(reason, 0) + count
        first = stop
    basic = ("empty", "short", "duplicates")
    return {
        split: {reason: counts[reason] for reason in (*basic, *sorted(set(counts) - set(basic)))}
        for split, counts in dropped.items()
    }


def refuse_empty(where: str, split: str, documents: int, dropped: dict[str, dict[str, int]]) -> None:
    """Raise UserError when a split has no document, saying why they were dropped."""
    if documents:
        return
    found, counts = "no document was found", dropped[split]
    if any(counts.values()):
        reasons = [f"{count} {in_words(reason)}" for reason, count in counts.items()]
        found = f"of {sum(counts.values())} documents, {', '.join(reasons)}"
    raise UserError(f"{where}: the split {split} is empty: {found}.")


def in_words(reason: str) -> str:
    """Return what is said of dropped documents after their number."""
    return IN_WORDS.get(reason, f"by the filter {reason}")
