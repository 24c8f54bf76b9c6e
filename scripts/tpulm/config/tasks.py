"""Tasks that masked models are finetuned on: what the config says of each, on which models, what is wrong with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tpulm.config.exported_models import masked_models
from tpulm.config.pinned import check_dataset
from tpulm.config.runs import Run
from tpulm.config.task_chains import FIXED, FOLDER, TaskChain
from tpulm.core.errors import UserError, describe
from tpulm.specs.artifacts import PAD_ID, PAD_ID_OF_ROBERTA
from tpulm.specs.label_heads import CLASS, NUMBER, PRETRAINED, RANDOM, exported_model, without_either
from tpulm.specs.masked_architectures import find_architecture
from tpulm.specs.masked_sizes import sizes_of
from tpulm.specs.recipes import pick

# The metrics that fit what is predicted; the first one is the default.
METRICS = {CLASS: ("accuracy", "f1", "matthews"), NUMBER: ("pearson", "spearman")}


@dataclass(frozen=True)
class Task:
    """A task of the config."""

    name: str
    config: Mapping  # all of it, completed

    @property
    def recipe(self) -> dict:
        """What the config says of it."""
        return self.config["evaluation"]["tasks"][self.name]

    @property
    def key(self) -> str:
        """How the config names it."""
        return f"evaluation.tasks.{self.name}"

    @property
    def folder(self) -> str:
        """Where its examples are."""
        return f"{FOLDER}/{self.name}"

    @property
    def metrics(self) -> list[str]:
        """What is measured; the first one selects."""
        return self.recipe.get("metrics", list(METRICS[self.recipe["predict"]][:1]))

    @property
    def reading(self) -> dict:
        """What the job that reads the examples takes of the recipe."""
        recipe = self.recipe
        keys = {
            "python-modules": ("modules",),
            "files": ("files", "text", "text_pair", "label"),
            "hub": ("dataset", "name", "revision", "splits", "text", "text_pair", "label"),
        }
        kept = {key: recipe[key] for key in keys[recipe["source"]] if key in recipe}
        held_out = {split: share for split, share in recipe["held_out"].items() if split not in self.given_splits}
        if set(held_out) == {"seed"}:
            held_out = {}
        return {"key": self.key, **pick(recipe, "source", "predict"), "held_out": held_out, **kept}

    @property
    def given_splits(self) -> dict:
        """The splits that the source has, and what of it each is."""
        given = self.recipe["splits"] if self.recipe["source"] == "hub" else self.recipe.get("files")
        return given if isinstance(given, dict) else {"train": given}

    @property
    def baselines(self) -> dict:
        """What the job that makes the baselines without a model takes of the recipe."""
        names = [name for name in self.recipe["baselines"] if name != "random_weights"]
        return {"names": names, "predict": self.recipe["predict"]}

    @property
    def scoring(self) -> dict:
        """What the job that makes the scores takes of the recipe."""
        splits = self.given_splits
        return {
            "metrics": self.metrics,
            "title": self.recipe.get("title", self.name),
            "predict": self.recipe["predict"],
            "selected_on_test": "test" in splits and splits.get("validation") == splits["test"],
        }

    def chains(self, model: Run, at: int | None = None) -> list[TaskChain]:
        """Return the chains of a model: of its weights, then of random ones where they are a baseline.

        at  the step of the checkpoint whose weights those are; random ones are the same for all
        """
        starts = [(PRETRAINED, at)] + ([(RANDOM, None)] if "random_weights" in self.recipe["baselines"] else [])
        return [
            TaskChain(model.stage, model.name, self.config, self.name, start, float(rate), seed, step)
            for start, step in starts
            for rate in self.recipe["learning_rates"]
            for seed in self.recipe["seeds"]
        ]

    @cached_property
    def models(self) -> list[Run]:
        """The models that are finetuned on it: those that the config names, or all that JAX can open."""
        if "models" in self.recipe:
            known = candidates(self.config)
            return [known[path] for path in self.recipe["models"]]
        return [run for run in candidates(self.config).values() if obstacle(run) is None]

    @property
    def left_out(self) -> str | None:
        """A sentence that says which models JAX cannot open, where the config names none; None where it can all."""
        if "models" in self.recipe:
            return None
        found = [run.key for run in candidates(self.config).values() if run not in self.models]
        return f"{self.key} skips {', '.join(found)}, which JAX cannot load." if found else None


def labelled_tasks(config: Mapping) -> list[Task]:
    """Return the tasks of a completed config that some model is finetuned on."""
    tasks = [Task(name, config) for name in config["evaluation"]["tasks"]]
    return [task for task in tasks if task.models]


def candidates(config: Mapping) -> dict[str, Run]:
    """Return the masked models of a completed config, pretrained ones, too, by their paths below results/."""
    return {run.path: run for run in masked_models(config).values()}


def sizes_on_jax(run: Run) -> dict:
    """Return the sizes of a masked model, as it is opened on JAX; none of one whose config.json will have them.

    Raises UserError where JAX cannot open it.
    """
    if "model" not in run.recipe:
        return {}
    return sizes_of(without_either(exported_model(run.recipe["model"], run.backend)), f"{run.key}.model")


def obstacle(run: Run) -> str | None:
    """Return why JAX cannot open a masked model, as far as the config tells; None where it can."""
    try:
        sizes_on_jax(run)
    except UserError as error:
        return str(error)
    return None


def check_tasks(config: Mapping, *checks: Callable[[str, dict], None]) -> None:
    """Check every task of a completed config.

    checks  of a run, which take its key and its recipe: a task is one, with its lowest learning rate
    """
    for name, recipe in config["evaluation"]["tasks"].items():
        task = Task(name, config)
        for check in checks:
            check(task.key, FIXED | recipe | {"learning_rate": min(recipe["learning_rates"])})
        check_task(task)
        check_models(task)
    for name in config["evaluation"]["tasks"]:
        check_init(Task(name, config))
    check_titles(config)


def check_titles(config: Mapping) -> None:
    """Check that the scores of no two tasks go by the same title."""
    known: dict[str, Task] = {}
    for name in config["evaluation"]["tasks"]:
        task = Task(name, config)
        title = task.scoring["title"]
        if title in known:
            raise UserError(
                f"{task.key}.title is {describe(title)}, like that of {known[title].key}; allowed: a unique title."
            )
        known[title] = task


def check_task(task: Task) -> None:
    """Check what a task's keys say together."""
    recipe, where = task.recipe, task.key
    allowed = METRICS[recipe["predict"]]
    for metric in task.metrics:
        if metric not in allowed:
            raise UserError(
                f"{where}.metrics has {metric}; allowed with predict: {recipe['predict']}: {', '.join(allowed)}."
            )
    check_dataset(where, recipe)
    if recipe["source"] == "python-modules" and recipe["predict"] != CLASS:
        raise UserError(f"{where}.predict is {recipe['predict']}; allowed with source: python-modules: {CLASS}.")


def check_init(task: Task) -> None:
    """Check that the task that another one starts from leaves one set of weights for each of its models."""
    recipe, where, others = task.recipe, f"{task.key}.init", task.config["evaluation"]["tasks"]
    if "init" not in recipe:
        return
    name = recipe["init"]
    allowed = [other for other, own in others.items() if other != task.name and "init" not in own]
    if name not in allowed:
        known = ", ".join(allowed) or "none"
        raise UserError(f"{where} is {name}; allowed: another task without this key: {known}.")
    other = Task(name, task.config)
    rates = other.recipe["learning_rates"]
    if len(rates) > 1:
        raise UserError(f"{where} is {name}, which has {len(rates)} learning_rates; allowed: a task with one.")
    if recipe["checkpoints"] not in ("best", other.recipe["checkpoints"]):
        raise UserError(
            f"{task.key}.checkpoints is {recipe['checkpoints']}, but {where} is {name}, whose checkpoints is "
            f"{other.recipe['checkpoints']}; allowed: the same for both, or best."
        )
    missing = sorted({run.key for run in task.models} - {run.key for run in other.models})
    if missing:
        raise UserError(f"{where} is {name}, which is not for {missing[0]}; allowed: a task with the same models.")


def check_models(task: Task) -> None:
    """Check that JAX can open the models that a task names, and that its examples fit all that it has."""
    recipe, where, known = task.recipe, task.key, candidates(task.config)
    for path in recipe.get("models", []):
        if path not in known:
            raise UserError(
                f"{where}.models has {describe(path)}; allowed: masked models of the config: "
                f"{', '.join(known) or 'none'}."
            )
        if found := obstacle(known[path]):
            raise UserError(f"{where}.models has {path}, which JAX cannot load: {found}")
    for run in task.models:
        check_length(where, recipe["sequence_length"], run)


def check_length(where: str, length: int, run: Run) -> None:
    """Check that a masked model has a position for each token, as far as the config tells."""
    sizes = sizes_on_jax(run)
    if not sizes:
        return
    positions = sizes["max_position_embeddings"] - unused_positions(run.recipe["model"], run.config, run.key, "jax")
    if length > positions:
        raise UserError(
            f"{where}.sequence_length is {length}; allowed: {positions} or less, the positions of {run.key}."
        )


def unused_positions(model: Mapping, config: Mapping, where: str, backend: str) -> int:
    """Return how many of its positions no token of a masked model has: RoBERTa's begin after that of its padding.

    model  as the config has it; where  its key. Raises UserError for an architecture that the backend does not have
    """
    pad = PAD_ID_OF_ROBERTA if "pretrained" in config["tokenizer"] else PAD_ID
    return pad + 1 if find_architecture(model["architecture"], where, backend).after_pad else 0
