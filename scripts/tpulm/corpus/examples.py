"""Examples with labels, of which tasks are made: read, split, and kept as Parquet files.

An example is (text, second text or None, label). The label is a str where one of several is predicted, a float where a
number is.

item        string, the same for every model
text        string; text_pair  the second text, where there is one
label       int32, an index of the labels; float64 where a number is predicted
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
KEYS = ("text", "text_pair", "label")  # of a task, that name columns


@dataclass
class Fields(Form):
    """How the rows of a table become examples, as a task's recipe says it: text, text_pair, label, predict."""

    def __post_init__(self) -> None:
        """Name the columns. Raises UserError where two keys name the same one."""
        self.templates = []
        named = [key for key in KEYS if key in self.recipe]
        self.columns = {self.recipe[key]: key for key in named}
        if len(self.columns) < len(named):
            raise UserError(f"{self.where}: two of {', '.join(named)} name the same column; allowed: one column each.")

    def document(self, place: object, values: Sequence[object]) -> Example:  # type: ignore[override]
        """Return the example of the values of the columns. Raises UserError for what is none."""
        given = {key: value for key, value in zip(self.columns.values(), values, strict=True)}
        second = self.plain(place, "text_pair", given["text_pair"]) if "text_pair" in given else None
        return self.plain(place, "text", given["text"]), second, self.label(place, given["label"])

    def plain(self, place: object, key: str, value: object) -> str:
        """Return a value that has to be text."""
        if not isinstance(value, str) or not value.strip():
            raise UserError(
                f"{place}: {self.recipe[key]} ({self.where}.{key}) holds {describe_value(value)}; allowed: text."
            )
        return encodable(value)

    def label(self, place: object, value: object) -> str | float:
        """Return a value that has to be a label."""
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
    """Return the paragraphs of the docstrings of modules of the standard library, the module of each its label.

    A paragraph that is in several of them is left out, and a module that this Python does not have. Raises UserError,
    naming `where`, where fewer than two are left.
    """
    here = [module for module in modules if module_files(module)]
    if len(here) < 2:
        raise UserError(
            f"{where}.modules has {', '.join(here) or 'none'} of this Python's standard library; allowed: two or more."
        )
    found: dict[str, set[str]] = {}
    for module in here:
        for tree in module_trees(module):
            for docstring in docstrings(tree):
                for paragraph in paragraphs(docstring):
                    found.setdefault(paragraph, set()).add(module)
    return [(paragraph, None, owners.pop()) for paragraph, owners in found.items() if len(owners) == 1]


def module_files(module: str) -> list[Path]:
    """Return the files of a module or package of the standard library, in the order of names; none where it is not."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths = (folder / f"{module}.py", *sorted((folder / module).rglob("*.py")))
    return [path for path in paths if path.is_file() and not SKIPPED.intersection(path.relative_to(folder).parts)]


def module_trees(module: str) -> Iterator[ast.Module]:
    """Yield the syntax trees of the files of a module or package of the standard library."""
    for path in module_files(module):
        with tokenize.open(path) as file:
            yield ast.parse(file.read())


def hold_out(where: str, found: Mapping[str, list[Example]], shares: Mapping[str, Any]) -> dict[str, list[Example]]:
    """Return the examples of every split: those that the source has not are held out of train, as documents are.

    shares  of train for each split that `found` lacks; seed

    Examples with the same texts go to the same split, those with the lowest keys to test, the next to validation: see
    tpulm.corpus.splits. Raises UserError where a split stays empty.
    """
    splits = dict(found)
    missing = [split for split in ("test", "validation") if split not in found]
    if missing:
        keys = np.array([key_of(example, shares["seed"]) for example in found["train"]])
        distinct = np.unique(keys)
        sizes = {split: max(1, int(shares[split] * len(distinct) + 0.5)) for split in missing}
        first = 0
        held_out = np.full(len(keys), "train", "U10")
        for split, size in sizes.items():
            held_out[np.isin(keys, distinct[first : first + size])] = split
            first += size
        for split in ("train", *missing):
            chosen = np.flatnonzero(held_out == split)
            splits[split] = [found["train"][index] for index in chosen]
    for split in SPLITS:
        if not splits[split]:
            raise UserError(f"{where}: there are no examples in the split {split}; allowed: one or more in each.")
    return {split: splits[split] for split in SPLITS}


def key_of(example: Example, seed: int) -> str:
    """Return the key of an example, random and the same for the same texts: of one text that of a document."""
    normalised = "\n".join(" ".join(text.split()) for text in example[:2] if text is not None)
    return hashlib.sha256(f"{seed}\0{normalised}".encode()).hexdigest()[:32]


def labels_of(where: str, splits: Mapping[str, list[Example]], predict: str) -> list[str]:
    """Return the labels of the training examples in order, numbers by size; none where a number is predicted.

    Raises UserError where training has one label only, or another split has one that training has not.
    """
    if predict == NUMBER:
        return []
    found = {split: {label for *_, label in examples} for split, examples in splits.items()}
    known = sorted(found["train"], key=lambda label: (not integral(label), int(label) if integral(label) else 0, label))
    if len(known) < 2:
        raise UserError(f"{where}: all training examples have the label {known[0]}; allowed: two labels or more.")
    for split in ("validation", "test"):
        unknown = sorted(found[split] - set(known))
        if unknown:
            raise UserError(
                f"{where}: the split {split} has the label {unknown[0]}, which is not in the training split."
            )
    return known


def integral(label: str) -> bool:
    """Return whether a label is a whole number."""
    return label.removeprefix("-").isdecimal()


LABELS = {CLASS: pa.int32(), NUMBER: pa.float64()}


def write_split(path: str, examples: Sequence[Example], labels: Sequence[str], predict: str) -> None:
    """Write the examples of a split; labels  in the order of their indices."""
    places = {label: index for index, label in enumerate(labels)}
    given = [label for *_, label in examples]
    if predict == CLASS:
        given = [places[label] for label in given]
    columns: dict[str, pa.Array] = {
        "item": pa.array([f"{number:06d}" for number in range(len(examples))]),
        "text": pa.array([text for text, *_ in examples]),
    }
    if any(second is not None for _, second, _ in examples):
        columns["text_pair"] = pa.array([second for _, second, _ in examples])
    columns["label"] = pa.array(given, LABELS[predict])
    with atomic_write(path) as partial:
        pq.write_table(pa.table(columns), partial, compression="zstd", write_statistics=False)


def read_split(path: str | Path) -> Mapping[str, list]:
    """Return the columns of a split by their names."""
    return pq.read_table(path).to_pydict()
