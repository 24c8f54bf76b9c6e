"""Read the scores of a model back, with its values by item."""

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from tpulm.audit.reading import attempt
from tpulm.core.scores import read_scores


def check_scores(folder: Path) -> Iterator[str]:
    """Compare the scores of a folder with the values by item beside them: each is the mean of its own."""
    read, damages = attempt(folder / "scores.json", read_scores)
    yield from damages
    table, damages = attempt(folder / "items.parquet", pq.read_table)
    yield from damages
    if read is None or table is None:
        return
    values = defaultdict(list)
    for row in table.select(["score", "value"]).to_pylist():
        values[row["score"]].append(row["value"])
    for score in read[1]:
        own = values.pop(score.name, [])
        if score.low is None and not own:  # no mean over items, such as a perplexity
            continue
        if len(own) != score.items or not math.isclose(sum(own) / max(len(own), 1), score.value, abs_tol=1e-9):
            yield f"{folder}/scores.json is damaged: {score.name} is not the mean of its items in items.parquet."
    for name in values:
        yield f"{folder}/items.parquet has the score {name}, which scores.json has not."
