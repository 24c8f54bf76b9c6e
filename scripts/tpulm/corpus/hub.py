"""Read datasets of the Hugging Face Hub, or of a local folder that is laid out as one, with `datasets`."""

import os
from types import ModuleType
from typing import TYPE_CHECKING

from tpulm.core.errors import UserError
from tpulm.corpus.files import BATCH, reason
from tpulm.corpus.rows import Documents, Form

if TYPE_CHECKING:
    from datasets import Dataset


def import_datasets() -> ModuleType:
    """Return the `datasets` library, quiet towards the terminal and, about what is read, towards the network."""
    # Else each call of load_dataset asks a server for a file, to be counted there: seconds where that is cut off.
    os.environ["HF_UPDATE_DOWNLOAD_COUNTS"] = "0"
    import datasets

    datasets.disable_progress_bars()
    return datasets


def load_hub(where: str, recipe: dict, form: Form) -> "Dataset":
    """Return the one split that a recipe names of a dataset of the hub, or of a local folder that is laid out as one.

    Raises UserError for what does not exist, and when it is not to be had without the network.
    """
    datasets = import_datasets()
    ((split, expression),) = recipe["splits"].items()
    try:
        loaded = datasets.load_dataset(
            recipe["dataset"], recipe.get("name"), split=expression, revision=recipe.get("revision")
        )
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
        raise UserError(
            f"{where}.dataset is {recipe['dataset']}, which is code to be run ({str(error).rsplit(' ', 1)[1]}); "
            "allowed: a dataset that is files of data."
        ) from error
    except (OSError, datasets.exceptions.DatasetsError) as error:
        at = f" at revision {recipe['revision']}" if recipe.get("revision") else ""
        raise UserError(
            f"{where}.dataset is {recipe['dataset']}{at}, which could not be fetched ({reason(error)}); it needs "
            "the network or a copy in the cache of `datasets`, and HF_TOKEN where it is not public."
        ) from error
    except ValueError as error:
        raise UserError(
            f"{where}: {recipe['dataset']} has no such data (name {recipe.get('name') or 'not given'}, "
            f"splits.{split} {expression}): {reason(error)}."
        ) from error
    form.check(recipe["dataset"], loaded.column_names)
    return loaded


def read_hub(dataset: "Dataset", name: str, form: Form) -> Documents:
    """Yield the documents of a split that `load_hub` returned, in batches; `name` is for the messages."""
    for table in dataset.select_columns(list(form.columns)).with_format("arrow").iter(BATCH):
        yield form.documents(name, [table[column].to_pylist() for column in form.columns])
