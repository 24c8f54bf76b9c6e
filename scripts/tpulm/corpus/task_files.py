"""The splits of a task as Parquet files: what trainers, baselines and scores read.

item        string, the same for every model
text        string; text_pair  the second text, where there is one; words  list of string, where words have labels
label       int32, an index of the labels; float64 where a number is predicted; list of int32 where words have labels
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tpulm.config.label_heads import CLASS, NUMBER, TOKEN_CLASSES
from tpulm.core.files import atomic_write
from tpulm.corpus.examples import Example, words_of

LABELS = {CLASS: pa.int32(), NUMBER: pa.float64(), TOKEN_CLASSES: pa.list_(pa.int32())}


def write_split(path: str, examples: Sequence[Example], labels: Sequence[str], predict: str) -> None:
    """Write the examples of a split; labels  in the order of their indices."""
    places = {label: index for index, label in enumerate(labels)}
    given = [label for *_, label in examples]
    if predict == CLASS:
        given = [places[label] for label in given]
    elif predict == TOKEN_CLASSES:
        given = [[places[label] for label in row] for row in given]
    columns: dict[str, pa.Array] = {
        "item": pa.array([f"{number:06d}" for number in range(len(examples))]),
        "text": pa.array(map(words_of, examples)),
    }
    if any(second is not None for _, second, _ in examples):
        columns["text_pair"] = pa.array([second for _, second, _ in examples])
    if predict == TOKEN_CLASSES:
        columns["words"] = pa.array([words for words, *_ in examples], pa.list_(pa.string()))
    columns["label"] = pa.array(given, LABELS[predict])
    with atomic_write(path) as partial:
        pq.write_table(pa.table(columns), partial, compression="zstd", write_statistics=False)


def read_split(path: str | Path) -> Mapping[str, list]:
    """Return the columns of a split by their names."""
    return pq.read_table(path).to_pydict()
