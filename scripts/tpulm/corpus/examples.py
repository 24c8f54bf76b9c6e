"""Labelled examples of tasks: read, split, and stored as Parquet files.

An example is (text, second text or None, label). A label is a str for a class and a float for a number. Columns:

item        string, the same for every model
text        string; text_pair  the second text, if there is one
label       int32, an index of the labels; float64 for a number
"""

import ast
import hashlib
import math
import sysconfig
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tpulm.core.errors import UserError
from tpulm.core.files import atomic_write
from tpulm.corpus.rows import Form, encodable
from tpulm.corpus.stdlib import SKIPPED, docstrings, paragraphs
from tpulm.specs.artifacts import SPLITS
from tpulm.specs.classification_heads import CLASS, NUMBER

Example = tuple[str, str | None, Any]
KEYS = ("text", "text_pair", "label")  # keys of a task that name columns


@dataclass
class Fields(Form):
    """Converts rows of tables to examples by a task's recipe: text, text_pair, label, predict."""

    def __post_init__(self) -> None:
        """Collect the columns. Raises UserError if two keys name the same one."""
        self.templates = []
        named = [key for key in KEYS if key in self.recipe]
        self.columns = {self.recipe[key]: key for key in named}
        if len(self.columns) < len(named):
            raise UserError(f"{self.where}: two of {', '.join(named)} name the same column; allowed: one column each.")

    def document(self, place: object, values: Sequence[object]) -> Example:  # type: ignore[override]
        """Return the example of a row, given the values of its columns. Raises UserError for an invalid value."""
        row = {key: value for key, value in zip(self.columns.values(), values, strict=True)}
        second = self.plain(place, "text_pair", row["text_pair"]) if "text_pair" in row else None
        return self.plain(place, "text", row["text"]), second, self.label(place, row["label"])

    def plain(self, place: object, key: str, value: object) -> str:
        """Return a value that has to be text. Raises UserError."""
        if not isinstance(value, str) or not value.strip():
            raise UserError(
                f"{place}: {self.recipe[key]} ({self.where}.{key}) holds {describe_value(value)}; allowed: text."
            )
        return encodable(value)

    def label(self, place: object, value: object) -> str | float:
        """Return a value that has to be a label. Raises UserError."""
        where = f"{place}: {self.recipe['label']} ({self.where}.label) holds {describe_value(value)}"
        if self.recipe["predict"] == CLASS:
            if not isinstance(value, str | int) or value == "":
                raise UserError(f"{where}; allowed: text or a whole number.")
            return str(value)
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise UserError(f"{where}; allowed: a number.")
        return number


def describe_value(value: object) -> str:
    """Return type and beginning of a value, for a message."""
    return "nothing" if value in (None, "", []) else f"{type(value).__name__} {str(value)[:40]!r}"


def module_examples(where: str, modules: Sequence[str]) -> list[Example]:
    """Return the paragraphs in docstrings of modules of the standard library, labelled by module.

    Paragraphs of several modules are left out, and modules that this Python lacks. Raises UserError, naming `where`, if
    fewer than two modules are left.
    """
    known = [module for module in modules if module_files(module)]
    if len(known) < 2:
        raise UserError(
            f"{where}.modules has {', '.join(known) or 'none'} of this Python's standard library; allowed: two or more."
        )
    modules_of: dict[str, set[str]] = {}
    for module in known:
        for tree in module_trees(module):
            for docstring in docstrings(tree):
                for paragraph in paragraphs(docstring):
                    modules_of.setdefault(paragraph, set()).add(module)
    return [(paragraph, None, owners.pop()) for paragraph, owners in modules_of.items() if len(owners) == 1]


def module_files(module: str) -> list[Path]:
    """Return the sorted files of a module or package of the standard library; none for an unknown one."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths = (folder / f"{module}.py", *sorted((folder / module).rglob("*.py")))
    return [path for path in paths if path.is_file() and not SKIPPED.intersection(path.relative_to(folder).parts)]


def module_trees(module: str) -> Iterator[ast.Module]:
    """Yield the syntax trees of the files of a module or package of the standard library."""
    for path in module_files(module):
        with tokenize.open(path) as file:
            yield ast.parse(file.read())


def hold_out(where: str, examples: Mapping[str, list[Example]], shares: Mapping[str, Any]) -> dict[str, list[Example]]:
    """Return the examples of every split; splits that the source lacks are held out of train.

    shares  share of train for each absent split; seed

    Examples with the same texts go to the same split, those with the lowest keys to test, the next to validation: see
    tpulm.corpus.splits. Raises UserError if a split stays empty.
    """
    splits = dict(examples)
    missing = [split for split in ("test", "validation") if split not in examples]
    if missing:
        keys = np.array([key_of(example, shares["seed"]) for example in examples["train"]])
        distinct = np.unique(keys)
        sizes = {split: max(1, int(shares[split] * len(distinct) + 0.5)) for split in missing}
        first = 0
        held_out = np.full(len(keys), "train", "U10")
        for split, size in sizes.items():
            held_out[np.isin(keys, distinct[first : first + size])] = split
            first += size
        for split in ("train", *missing):
            chosen = np.flatnonzero(held_out == split)
            splits[split] = [examples["train"][index] for index in chosen]
    for split in SPLITS:
        if not splits[split]:
            raise UserError(f"{where}: there are no examples in the split {split}; allowed: one or more in each.")
    return {split: splits[split] for split in SPLITS}


def key_of(example: Example, seed: int) -> str:
    """Return a random key that is the same for the same texts; with one text, it is that of a document."""
    normalised = "\n".join(" ".join(text.split()) for text in example[:2] if text is not None)
    return hashlib.sha256(f"{seed}\0{normalised}".encode()).hexdigest()[:32]


def labels_of(where: str, splits: Mapping[str, list[Example]], predict: str) -> list[str]:
    """Return the sorted labels of the training examples, numbers by size; none if a number is predicted.

    Raises UserError if training has one label only, or if another split has a label that training lacks.
    """
    if predict == NUMBER:
        return []
    labels = {split: {label for *_, label in examples} for split, examples in splits.items()}
    known = sorted(
        labels["train"], key=lambda label: (not integral(label), int(label) if integral(label) else 0, label)
    )
    if len(known) < 2:
        raise UserError(f"{where}: all training examples have the label {known[0]}; allowed: two labels or more.")
    for split in ("validation", "test"):
        unknown = sorted(labels[split] - set(known))
        if unknown:
            raise UserError(
                f"{where}: the split {split} has the label {unknown[0]}, which is not in the training split."
            )
    return known


def integral(label: str) -> bool:
    """Return whether a label is a whole number, of no more digits than Python reads."""
    return label.removeprefix("-").isdecimal() and len(label) < 1000


LABELS = {CLASS: pa.int32(), NUMBER: pa.float64()}


def write_split(path: str, examples: Sequence[Example], labels: Sequence[str], predict: str) -> None:
    """Write the examples of a split; labels  in the order of their indices."""
    places = {label: index for index, label in enumerate(labels)}
    values = [label for *_, label in examples]
    if predict == CLASS:
        values = [places[label] for label in values]
    columns: dict[str, pa.Array] = {
        "item": pa.array([f"{number:06d}" for number in range(len(examples))]),
        "text": pa.array([text for text, *_ in examples]),
    }
    if any(second is not None for _, second, _ in examples):
        columns["text_pair"] = pa.array([second for _, second, _ in examples])
    columns["label"] = pa.array(values, LABELS[predict])
    with atomic_write(path) as partial:
        pq.write_table(pa.table(columns), partial, compression="zstd", write_statistics=False)


def read_split(path: str | Path) -> Mapping[str, list]:
    """Return the columns of a split by their names."""
    return pq.read_table(path).to_pydict()
