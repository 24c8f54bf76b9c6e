"""Tasks of lm-evaluation-harness, as evaluation.harness names them: the harness's own, or files of the user."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tpulm.core.errors import UserError

# Loaders of the `datasets` library for files, by `dataset_path` of a task; others are names on the Hugging Face Hub.
LOCAL = ("json", "csv", "parquet", "text")
CODE = "!function"


@dataclass(frozen=True)
class HarnessTask:
    """A task under evaluation.harness: its name there, and what the config says of it."""

    name: str
    recipe: Mapping[str, Any]

    @property
    def key(self) -> str:
        """How the config names it."""
        return f"evaluation.harness.{self.name}"

    @property
    def files(self) -> list[str]:
        """The files of its description; none of a task that comes with the harness. Raises UserError."""
        return [str(path) for path, _ in layers(self.key, Path(self.recipe["file"]))] if self.own else []

    @property
    def own(self) -> bool:
        """Whether a file of the user describes it."""
        return "file" in self.recipe

    @property
    def job_recipe(self) -> dict[str, Any]:
        """What a job takes of it."""
        named = {} if self.own else {"task": self.recipe.get("task", self.name)}
        kept = {key: value for key, value in self.recipe.items() if key != "checkpoints"}
        return {"harness": {"name": self.name, **named, **kept}}

    @property
    def items(self) -> dict[str, Any]:
        """What a job takes of it that looks for its items: nothing of how a model is asked."""
        recipe = self.job_recipe["harness"]
        return {"harness": {key: value for key, value in recipe.items() if key not in ("examples", "max_length")}}

    @property
    def data(self) -> list[str]:
        """The files of its examples, of the user's or of this workflow. Raises UserError."""
        return listed(full_description(self.key, self.recipe["file"])) if self.own else []


def tasks_of(config: Mapping) -> dict[str, HarnessTask]:
    """Return the tasks of a completed config, by name."""
    return {name: HarnessTask(name, recipe) for name, recipe in config["evaluation"]["harness"].items()}


def read_description(key: str, path: Path) -> dict[str, Any]:
    """Return the content of a task's file, without the files that it includes.

    Raises UserError for code, and for what is no task.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{key}.file is {path}, which cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{key}.file is {path}, which is not UTF-8 text.") from None
    if CODE in text:
        raise UserError(f"{key}.file is {path}, which has {CODE}; allowed: a task without custom code.")
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(
            f"{key}.file is {path}, which is not valid YAML: {' '.join(str(error).split())[:200]}."
        ) from None
    if not isinstance(found, dict):
        raise UserError(f"{key}.file is {path}, which has no keys; allowed: a task of lm-evaluation-harness.")
    return found


def layers(key: str, path: Path, before: tuple[Path, ...] = ()) -> list[tuple[Path, dict[str, Any]]]:
    """Return a file of a task and before it those that it includes, relative to its folder, each with what it says.

    A later file overrides the files before it. Raises UserError, also for files that include each other.
    """
    if path in before:
        raise UserError(f"{key}.file: {path} includes itself.")
    found = read_description(key, path)
    names = found.pop("include", [])
    names = names if isinstance(names, list) else [names]
    under = [layer for name in names for layer in layers(key, path.parent / name, (*before, path))]
    return [*under, (path, found)]


def full_description(key: str, file: str) -> dict[str, Any]:
    """Return the description of a task of the user: what its file says, over what that includes.

    Raises UserError for one that is no single task, and for examples from the hub, which only the harness's tasks take.
    """
    found = {name: value for _, own in layers(key, Path(file)) for name, value in own.items()}
    task, place = found.get("task"), found.get("dataset_path")
    if not isinstance(task, str):
        raise UserError(f"{key}.file is {file}, which has no key `task`; allowed: a single task, not a group.")
    if place not in LOCAL or not listed(found):
        raise UserError(
            f"{key}.file is {file}, whose dataset_path is {place or 'missing'}; allowed: {', '.join(LOCAL)}, with the "
            "files in dataset_kwargs.data_files."
        )
    return found


def listed(description: Mapping) -> list[str]:
    """Return the files of a description's examples, in order."""
    files = (description.get("dataset_kwargs") or {}).get("data_files") or []
    groups = files.values() if isinstance(files, Mapping) else [files]
    return [file for group in groups for file in ([group] if isinstance(group, str) else group)]


def relocated(description: Mapping, paths: Mapping[str, str]) -> dict[str, Any]:
    """Return a description whose examples are read from where they are: `paths`, by the names that it has for them."""

    def there(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {split: there(files) for split, files in value.items()}
        return paths[value] if isinstance(value, str) else [there(file) for file in value]

    options = description["dataset_kwargs"]
    return {**description, "dataset_kwargs": options | {"data_files": there(options["data_files"])}}
