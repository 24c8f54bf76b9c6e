"""Minimal pairs: sentences of which a model should find the good one likelier (BLiMP; Warstadt et al. 2020).

A file of pairs is JSON Lines: pairID, phenomenon, sentence_good, sentence_bad.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpulm.core.errors import UserError
from tpulm.core.files import write_text
from tpulm.corpus.files import import_datasets, load_hub, read_files, read_hub, reason
from tpulm.corpus.rows import Form, encodable

SENTENCES = ("sentence_good", "sentence_bad")


@dataclass(frozen=True)
class Pair:
    """A good sentence and a bad one; `item` names the pair within its set."""

    item: str
    phenomenon: str
    good: str
    bad: str


class PairForm(Form):
    """How rows become pairs: of the columns of BLiMP, and the one that says what a pair is about."""

    def __post_init__(self) -> None:
        """Name the columns, each with the key of the config that names it."""
        self.templates: list = []
        phenomenon = self.recipe["phenomenon"]
        self.columns = {name: name for name in SENTENCES} | {phenomenon: "phenomenon"}

    def document(self, place: object, values: Sequence[object]) -> Any:
        """Return phenomenon, good and bad sentence of a row. Raises UserError for what is no text."""
        for name, value in zip(self.columns, values, strict=True):
            if not isinstance(value, str) or not value.strip():
                raise UserError(f"{place}: {name} ({self.where}) holds {value!r}; allowed: text.")
        good, bad, phenomenon = map(encodable, map(str, values))
        return phenomenon, good, bad


def read_pairs(path: str | Path) -> list[Pair]:
    """Return the pairs of a file that `write_pairs` wrote."""
    with open(path, encoding="utf-8", newline="\n") as file:  # str.splitlines would also split at U+2028 and others
        rows = [json.loads(line) for line in file]
    return [Pair(r["pairID"], r["phenomenon"], r["sentence_good"], r["sentence_bad"]) for r in rows]


def write_pairs(path: str | Path, pairs: Iterable[Pair]) -> None:
    """Write pairs as JSON Lines."""
    rows = (
        {"pairID": one.item, "phenomenon": one.phenomenon, "sentence_good": one.good, "sentence_bad": one.bad}
        for one in pairs
    )
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def fetch_pairs(name: str, recipe: Mapping, files: Sequence[str]) -> Iterator[Pair]:
    """Yield the pairs of a set that the config names, from its files or from a dataset of the hub.

    name  of the set; recipe  what the config says of it

    Raises UserError for what cannot be read, and for a set without pairs.
    """
    where, found = f"evaluation.pairs.sets.{name}", 0
    form = PairForm(where, recipe)
    rows: Any = read_dataset(where, recipe, form) if "dataset" in recipe else read_files(files, "line", form)
    for batch in rows:
        for row in batch:
            yield Pair(str(found), *row)
            found += 1
    if not found:
        raise UserError(f"{where} has no pairs; allowed: rows with {', '.join(form.columns)}.")


def read_dataset(where: str, recipe: Mapping, form: Form) -> Iterator:
    """Yield the rows of a dataset, of all its configurations unless the recipe names one, in batches."""
    for name in [recipe["name"]] if "name" in recipe else configurations(where, recipe):
        own = {**recipe, "name": name, "splits": {"train": recipe["split"]}}
        yield from read_hub(load_hub(where, own, form), recipe["dataset"], form)


def configurations(where: str, recipe: Mapping) -> list[str]:
    """Return the names of the configurations of a dataset. Raises UserError where it is not to be had."""
    datasets = import_datasets()
    try:
        return datasets.get_dataset_config_names(recipe["dataset"], revision=recipe.get("revision"))
    except (OSError, RuntimeError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(
            f"{where}.dataset is {recipe['dataset']}, whose configurations could not be listed ({reason(error)}); it "
            "needs the network or a copy in the cache of `datasets`, and HF_TOKEN if it is not public."
        ) from error
