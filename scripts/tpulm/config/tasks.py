"""Tasks that masked models are finetuned on: their recipes, models, runs and checks."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tpulm.config.outline import Model, Outline, Run, checkpoint_of
from tpulm.core.errors import UserError, describe
from tpulm.specs.artifacts import MODEL_FILES, PAD_ID, PAD_ID_OF_ROBERTA, TASKS
from tpulm.specs.classification_heads import CLASS, NUMBER, PRETRAINED, RANDOM, masked_model
from tpulm.specs.masked_architectures import find_architecture
from tpulm.specs.masked_sizes import TOKEN_TYPES, exported_model, sizes_of
from tpulm.specs.recipes import given_keys, pick

FOLDER = f"<results>/{TASKS}"
# Keys of a task that decide what a training step computes.
TASK_KEYS = ("predict", "sequence_length", "batch_size", "optimizer", "precision", "mesh")
# Keys of every run that tasks do not have, since their training is small.
FIXED: dict[str, Any] = {
    "microbatches": 1,
    "steps_per_execution": 1,
    "remat": False,
    "layout": {},
    "determinism": "bytes",
    "evaluate_every": None,
    "patience": None,
    "profile": {},
}
# Metrics by `predict`; the first one is the default.
METRICS = {CLASS: ("accuracy", "f1", "matthews"), NUMBER: ("pearson", "spearman")}


@dataclass(frozen=True)
class Task:
    """A task of the config.

    recipe  its entry in the config
    masked  masked models of the config by path, pretrained ones included
    tasks   all tasks by name
    """

    name: str
    recipe: Mapping
    masked: Mapping[str, Model]
    tasks: Mapping[str, "Task"]

    @property
    def key(self) -> str:
        """Its key in the config."""
        return f"evaluation.tasks.{self.name}"

    @property
    def folder(self) -> str:
        """The folder of its examples."""
        return f"{FOLDER}/{self.name}"

    @property
    def metrics(self) -> list[str]:
        """The names of its metrics; the first one selects."""
        return self.recipe.get("metrics", list(METRICS[self.recipe["predict"]][:1]))

    @property
    def reading(self) -> dict:
        """The recipe of the job that reads the examples."""
        recipe = self.recipe
        keys = {
            "python-modules": ("modules",),
            "files": ("files", "text", "text_pair", "label"),
            "hub": ("dataset", "name", "revision", "splits", "text", "text_pair", "label"),
        }
        source_keys = {key: recipe[key] for key in keys[recipe["source"]] if key in recipe}
        held_out = {split: share for split, share in recipe["held_out"].items() if split not in self.given_splits}
        if set(held_out) == {"seed"}:
            held_out = {}
        return {"key": self.key, **pick(recipe, "source", "predict"), "held_out": held_out, **source_keys}

    @property
    def given_splits(self) -> dict:
        """The splits of the source by name: files, or a split of a dataset."""
        splits = self.recipe["splits"] if self.recipe["source"] == "hub" else self.recipe.get("files")
        return splits if isinstance(splits, dict) else {"train": splits}

    @property
    def baselines(self) -> dict:
        """The recipe of the job that computes the baselines without a model."""
        names = [name for name in self.recipe["baselines"] if name != "random_weights"]
        return {"names": names, "predict": self.recipe["predict"]}

    @property
    def predicting(self) -> dict:
        """The recipe of the job that predicts with the runs of a model."""
        return {"key": self.key, **pick(self.recipe, *TASK_KEYS, "host_device_count")}

    @property
    def scoring(self) -> dict:
        """The recipe of the job that computes the scores."""
        splits = self.given_splits
        return {
            "metrics": self.metrics,
            "title": self.recipe.get("title", self.name),
            "predict": self.recipe["predict"],
            "selected_on_test": "test" in splits and splits.get("validation") == splits["test"],
        }

    def runs(self, model: Model, end: Model) -> list[Run]:
        """Return the runs of a model: from its weights, then from random ones if they are a baseline.

        end  the final model of its run, from which random weights start for all checkpoints
        """
        starts = [(PRETRAINED, model)] + ([(RANDOM, end)] if "random_weights" in self.recipe["baselines"] else [])
        return [
            self.run(start, weights, float(rate), seed)
            for weights, start in starts
            for rate in self.recipe["learning_rates"]
            for seed in self.recipe["seeds"]
        ]

    def path(self, model: Model, weights: str, rate: float, seed: int) -> str:
        """Return the path of a run below results/."""
        return f"{TASKS}/{self.name}/{model.path}/{weights}-rate-{rate:g}-seed-{seed}"

    def run(self, model: Model, weights: str, rate: float, seed: int) -> Run:
        """Return the run of a model with one learning rate and seed, from its weights or from random ones."""
        path = self.path(model, weights, rate, seed)
        config_files = [file for file in model.files if file.endswith(".json")]
        recipe = {**FIXED, **self.recipe, **given_keys(model.recipe, "model"), "learning_rate": rate, "seed": seed}
        unknown = model.origin is None and model.vocab_size is None
        start = []
        if "init" in self.recipe and weights == PRETRAINED:
            init_task = self.tasks[self.recipe["init"]]
            first = init_task.path(
                model, weights, float(init_task.recipe["learning_rates"][0]), init_task.recipe["seeds"][0]
            )
            start = [checkpoint_of(first, init_task.recipe["steps"])["best"]]
        changes = {"key": self.key, "path": path, "recipe": recipe, "backend": "jax", "records": None}
        return Run(
            **model.fields_with(**changes, weights=checkpoint_of(path, recipe["steps"])["best"]),
            task=self.name,
            variant={"weights": weights, "rate": rate, "seed": seed},
            step_keys=TASK_KEYS,
            more_recipe={"key": self.key, "seed": seed, "cpu_threads": model.opening["cpu_threads"]},
            init=model.files if weights == PRETRAINED else config_files,
            init_config=config_files,
            start=start,
            described=sizes_of_plan(model, unknown),
            plan_inputs={
                "manifest": "<results>/tfrecords/manifest.json" if unknown else [],
                "init": [f"<results>/{model.fetch_folder}/{MODEL_FILES[0]}"] if model.origin else [],
                "task": f"{self.folder}/task.json",
            },
        )

    @cached_property
    def models(self) -> dict[str, Model]:
        """The models that are finetuned on it, by path: those that `models` names, by default all that JAX can open."""
        if "models" in self.recipe:
            return {path: self.masked[path] for path in self.recipe["models"]}
        return {path: model for path, model in self.masked.items() if obstacle(model) is None}

    @property
    def left_out(self) -> str | None:
        """A message with the models that are skipped because JAX cannot open them; None without any."""
        skipped = [model.key for path, model in self.masked.items() if path not in self.models]
        if "models" in self.recipe or not skipped:
            return None
        return f"{self.key} skips {', '.join(skipped)}, which JAX cannot load."


def sizes_of_plan(model: Model, unknown: bool) -> dict:
    """Return the sizes of a masked model for the plan of a task; {} if a config.json has them."""
    if model.origin:
        return {}
    config = exported_model(model.recipe["model"], model.backend)
    sizes = masked_model(config | {"vocab_size": model.vocab_size, "pad_token_id": PAD_ID})
    return {key: value for key, value in sizes.items() if key != "vocabulary" or not unknown}


def every_task(outline: Outline) -> dict[str, Task]:
    """Return the tasks of a completed config by name."""
    masked = {model.path: model for model in outline.of_stage("mlm").values()}
    tasks: dict[str, Task] = {}
    for name, recipe in outline.config["evaluation"]["tasks"].items():
        tasks[name] = Task(name, recipe, masked, tasks)
    return tasks


def sizes_on_jax(model: Model) -> dict:
    """Return the sizes of a masked model on JAX; {} if a config.json has them. Raises UserError if JAX lacks them."""
    if "model" not in model.recipe:
        return {}
    exported = exported_model(model.recipe["model"], model.backend)
    sizes = {key: value for key, value in exported.items() if key not in ("model_type", TOKEN_TYPES)}
    return sizes_of(sizes, f"{model.key}.model")


def obstacle(model: Model) -> str | None:
    """Return why JAX cannot open a masked model, as far as the config has its sizes; None if it can."""
    try:
        sizes_on_jax(model)
    except UserError as error:
        return str(error)
    return None


def check_tasks(outline: Outline, *checks: Callable[[str, dict], None]) -> None:
    """Check every task of a completed config.

    checks  checks of a run, given its key and recipe: they get the task with its lowest learning rate
    """
    tasks, titles = every_task(outline).values(), dict[str, str]()
    for task in tasks:
        for check in checks:
            check(task.key, {**FIXED, **task.recipe, "learning_rate": min(task.recipe["learning_rates"])})
        check_task(task)
        check_models(task, outline.config)
    for task in tasks:
        check_init(task)
        title = task.scoring["title"]
        if other_key := titles.get(title):
            raise UserError(
                f"{task.key}.title is {describe(title)}, like that of {other_key}; allowed: a unique title."
            )
        titles[title] = task.key


def check_task(task: Task) -> None:
    """Check the keys of a task against each other."""
    recipe, where = task.recipe, task.key
    allowed = METRICS[recipe["predict"]]
    for metric in task.metrics:
        if metric not in allowed:
            raise UserError(
                f"{where}.metrics has {metric}; allowed with predict: {recipe['predict']}: {', '.join(allowed)}."
            )
    if recipe["source"] == "python-modules" and recipe["predict"] != CLASS:
        raise UserError(f"{where}.predict is {recipe['predict']}; allowed with source: python-modules: {CLASS}.")
    absent = [module for module in recipe.get("modules", []) if module not in sys.stdlib_module_names]
    if absent and len(recipe["modules"]) - len(absent) < 2:
        raise UserError(
            f"{where}.modules has {', '.join(absent)}, which this Python does not have; allowed: at least two modules "
            "of its standard library, which are the labels."
        )


def check_init(task: Task) -> None:
    """Check that the task named by init has one set of weights for each model of this task."""
    recipe, where = task.recipe, f"{task.key}.init"
    if "init" not in recipe:
        return
    name = recipe["init"]
    allowed = [key for key, candidate in task.tasks.items() if key != task.name and "init" not in candidate.recipe]
    if name not in allowed:
        known = ", ".join(allowed) or "none"
        raise UserError(f"{where} is {name}; allowed: another task without this key: {known}.")
    init_task = task.tasks[name]
    rates = init_task.recipe["learning_rates"]
    if len(rates) > 1:
        raise UserError(f"{where} is {name}, which has {len(rates)} learning_rates; allowed: a task with one.")
    if recipe["checkpoints"] not in ("best", init_task.recipe["checkpoints"]):
        raise UserError(
            f"{task.key}.checkpoints is {recipe['checkpoints']}, but {where} is {name}, whose checkpoints is "
            f"{init_task.recipe['checkpoints']}; allowed: the same for both, or best."
        )
    missing = sorted(model.key for path, model in task.models.items() if path not in init_task.models)
    if missing:
        raise UserError(f"{where} is {name}, which is not for {missing[0]}; allowed: a task with the same models.")


def check_models(task: Task, config: Mapping) -> None:
    """Check that JAX can open the models that a task names, and that all its models have enough positions."""
    recipe, where, known = task.recipe, task.key, task.masked
    for path in recipe.get("models", []):
        if path not in known:
            raise UserError(
                f"{where}.models has {describe(path)}; allowed: masked models of the config: "
                f"{', '.join(known) or 'none'}."
            )
        if problem := obstacle(known[path]):
            raise UserError(f"{where}.models has {path}, which JAX cannot load: {problem}")
    length = recipe["sequence_length"]
    for model in task.models.values():
        if sizes := sizes_on_jax(model):
            unused = unused_positions(model.recipe["model"], config, model.key, "jax")
            positions = sizes["max_position_embeddings"] - unused
            if length > positions:
                raise UserError(
                    f"{where}.sequence_length is {length}; allowed: {positions} or less, the positions of {model.key}."
                )


def unused_positions(model: Mapping, config: Mapping, where: str, backend: str) -> int:
    """Return how many positions of a masked model no token has: those of RoBERTa begin after the pad id.

    model  its section; where  key of it. Raises UserError for an architecture that the backend does not have
    """
    pad = PAD_ID_OF_ROBERTA if "pretrained" in config["tokenizer"] else PAD_ID
    return pad + 1 if find_architecture(model["architecture"], where, backend).after_pad else 0
