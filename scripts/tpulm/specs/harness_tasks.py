"""Tasks of lm-evaluation-harness under evaluation.harness: those of the harness, or files of the user."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tpulm.core.errors import UserError, one_line

# Values of `dataset_path` that load files by the `datasets` library; others are names on the Hugging Face Hub.
LOCAL = ("json", "csv", "parquet", "text")
CODE = "!function"


@dataclass(frozen=True)
class HarnessTask:
    """A task under evaluation.harness: its name there, and its section of the config."""

    name: str
    recipe: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Its key in the config."""
        return f"evaluation.harness.{self.name}"

    @property
    def files(self) -> list[str]:
        """The files of its description; none for a task of the harness. Raises UserError."""
        return [str(path) for path, _ in layers(self.key, Path(self.recipe["file"]))] if self.has_file else []

    @property
    def has_file(self) -> bool:
        """Whether a file of the user describes it."""
        return "file" in self.recipe

    @property
    def job_recipe(self) -> dict[str, Any]:
        """The recipe of a job that scores a model on it."""
        named = {} if self.has_file else {"task": self.recipe.get("task", self.name)}
        settings = {key: value for key, value in self.recipe.items() if key != "checkpoints"}
        return {"harness": {"name": self.name, **named, **settings}}

    @property
    def items(self) -> dict[str, Any]:
        """The recipe of a job that reads its items, which does not depend on how models are scored."""
        recipe = self.job_recipe["harness"]
        return {"harness": {key: value for key, value in recipe.items() if key not in ("examples", "max_length")}}

    @property
    def data(self) -> list[str]:
        """The files of its examples; none for a task of the harness. Raises UserError."""
        return listed(full_description(self.key, self.recipe["file"])) if self.has_file else []


def tasks_of(config: Mapping) -> dict[str, HarnessTask]:
    """Return the tasks of a completed config, by name."""
    return {name: HarnessTask(name, recipe) for name, recipe in config["evaluation"]["harness"].items()}


def read_description(key: str, path: Path) -> dict[str, Any]:
    """Return the content of a task's file without what it includes. Raises UserError for code in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{key}.file is {path}, which cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{key}.file is {path}, which is not UTF-8 text.") from None
    if CODE in text:
        raise UserError(f"{key}.file is {path}, which has {CODE}; allowed: a task without custom code.")
    try:
        description = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{key}.file is {path}, which is not valid YAML: {one_line(error)}.") from None
    if not isinstance(description, dict):
        raise UserError(f"{key}.file is {path}, which has no keys; allowed: a task of lm-evaluation-harness.")
    return description


def layers(key: str, path: Path, before: tuple[Path, ...] = ()) -> list[tuple[Path, dict[str, Any]]]:
    """Return the files that a task's file includes, and then the file itself. Raises UserError for a cycle."""
    if path in before:
        raise UserError(f"{key}.file: {path} includes itself.")
    description = read_description(key, path)
    names = description.pop("include", [])
    names = names if isinstance(names, list) else [names]
    under = [layer for name in names for layer in layers(key, path.parent / name, (*before, path))]
    return [*under, (path, description)]


def full_description(key: str, file: str) -> dict[str, Any]:
    """Return the description of a task of the user: its file, merged over the files that it includes.

    Raises UserError for a group of tasks, and for examples from the hub, which only tasks of the harness may have.
    """
    description = {name: value for _, layer in layers(key, Path(file)) for name, value in layer.items()}
    task, place = description.get("task"), description.get("dataset_path")
    if not isinstance(task, str):
        raise UserError(f"{key}.file is {file}, which has no key `task`; allowed: a single task, not a group.")
    if place not in LOCAL or not listed(description):
        raise UserError(
            f"{key}.file is {file}, whose dataset_path is {place or 'missing'}; allowed: {', '.join(LOCAL)}, with the "
            "files in dataset_kwargs.data_files."
        )
    return description


def listed(description: Mapping) -> list[str]:
    """Return the files of a description's examples, in order."""
    files = (description.get("dataset_kwargs") or {}).get("data_files") or []
    groups = files.values() if isinstance(files, Mapping) else [files]
    return [file for group in groups for file in ([group] if isinstance(group, str) else group)]


def relocated(description: Mapping, paths: Mapping[str, str]) -> dict[str, Any]:
    """Return a description with the files of its examples replaced; paths  by the names in the description."""

    def moved(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {split: moved(files) for split, files in value.items()}
        return paths[value] if isinstance(value, str) else [moved(file) for file in value]

    options = description["dataset_kwargs"]
    return {**description, "dataset_kwargs": options | {"data_files": moved(options["data_files"])}}
