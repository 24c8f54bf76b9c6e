"""Read minimal pairs: a model should find the good sentence likelier than the bad one (BLiMP; Warstadt et al. 2020)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tpulm.core.errors import UserError
from tpulm.corpus.files import import_datasets, load_hub, not_loaded, read_files, read_hub
from tpulm.corpus.rows import Form, encodable
from tpulm.evaluation.material import Item, Passage

SENTENCES = ("sentence_good", "sentence_bad")


class PairForm(Form):
    """The form of rows with the columns of BLiMP and one that names the phenomenon."""

    def __post_init__(self) -> None:
        """Set the columns: the config key that names each, by its name."""
        self.templates: list = []
        phenomenon = self.recipe["phenomenon"]
        self.columns = {name: name for name in SENTENCES} | {phenomenon: "phenomenon"}

    def document(self, place: object, values: Sequence[object]) -> Any:
        """Return good sentence, bad sentence and phenomenon of a row. Raises UserError for a value that is no text."""
        for name, value in zip(self.columns, values, strict=True):
            if not isinstance(value, str) or not value.strip():
                raise UserError(f"{place}: {name} ({self.where}) holds {value!r}; allowed: text.")
        return tuple(map(encodable, map(str, values)))


def fetch_pairs(name: str, recipe: Mapping, files: Sequence[str]) -> Iterator[Item]:
    """Yield the pairs of a set of the config, from its files or from a dataset of the hub.

    Raises UserError for what cannot be read, and for a set without pairs.
    """
    where, count = f"evaluation.pairs.sets.{name}", 0
    form = PairForm(where, recipe)
    rows: Any = read_dataset(where, recipe, form) if "dataset" in recipe else read_files(files, "line", form)
    for batch in rows:
        for good, bad, phenomenon in batch:
            yield Item(name, "", phenomenon, str(count), (Passage.of(good), Passage.of(bad)))
            count += 1
    if not count:
        raise UserError(f"{where} has no pairs; allowed: rows with {', '.join(form.columns)}.")


def read_dataset(where: str, recipe: Mapping, form: Form) -> Iterator:
    """Yield batches of rows of a dataset: of the configuration that the recipe names, or of all of them."""
    for name in [recipe["name"]] if "name" in recipe else configurations(where, recipe):
        dataset_recipe = {**recipe, "name": name, "splits": {"train": recipe["split"]}}
        yield from read_hub(load_hub(where, dataset_recipe, form), recipe["dataset"], form)


def configurations(where: str, recipe: Mapping) -> list[str]:
    """Return the names of a dataset's configurations. Raises UserError if they cannot be fetched."""
    datasets = import_datasets()
    try:
        return datasets.get_dataset_config_names(recipe["dataset"], revision=recipe.get("revision"))
    except Exception as error:  # as in `load_hub`
        raise not_loaded(where, recipe, error) from error
