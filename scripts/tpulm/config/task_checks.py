"""Checks of the tasks that models are finetuned on. All raise UserError."""

import os
from collections.abc import Callable, Mapping

from tpulm.config.architectures import find_architecture
from tpulm.config.artifacts import PAD_ID, PAD_ID_OF_ROBERTA
from tpulm.config.label_heads import CLASS, TOKEN_CLASSES, without_either
from tpulm.config.masked_sizes import KINDS, sizes_of
from tpulm.config.messages import describe
from tpulm.config.runs import Run
from tpulm.config.task_candidates import candidates, kind_of, obstacle
from tpulm.config.task_chains import FIXED
from tpulm.config.tasks import METRICS, Task
from tpulm.core.errors import UserError
from tpulm.core.scores import CAUSAL


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
                f"{task.key}.title is {describe(title)}, as {known[title].key} is called; allowed: a title of its own."
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
    if recipe["source"] == "hub" and "revision" not in recipe and not os.path.isdir(recipe["dataset"]):
        raise UserError(
            f"{where}.revision is missing; a dataset of the hub is pinned to a commit of 40 hexadecimal digits, "
            "so that it cannot change."
        )
    if recipe["source"] == "python-modules" and recipe["predict"] != CLASS:
        raise UserError(f"{where}.predict is {recipe['predict']}; allowed with source: python-modules: {CLASS}.")
    if recipe["predict"] == TOKEN_CLASSES and "text_pair" in recipe:
        raise UserError(f"{where}.text_pair is given, which predict: {TOKEN_CLASSES} has not.")


def check_init(task: Task) -> None:
    """Check that the task that another one starts from leaves one set of weights for each of its models."""
    recipe, where, others = task.recipe, f"{task.key}.init", task.config["evaluation"]["tasks"]
    if "init" not in recipe:
        return
    name = recipe["init"]
    allowed = [other for other, own in others.items() if other != task.name and "init" not in own]
    if name not in allowed:
        known = ", ".join(allowed) or "none"
        raise UserError(f"{where} is {name}; allowed: another task that starts from none itself: {known}.")
    other = Task(name, task.config)
    rates = other.recipe["learning_rates"]
    if len(rates) > 1:
        raise UserError(f"{where} is {name}, which has {len(rates)} learning_rates; allowed: a task with one.")
    if recipe["checkpoints"] not in ("best", other.recipe["checkpoints"]):
        raise UserError(
            f"{task.key}.checkpoints is {recipe['checkpoints']}, and {where} is {name}, whose checkpoints is "
            f"{other.recipe['checkpoints']}; allowed: the same of both, or best."
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
                f"{where}.models has {describe(path)}; allowed: models of the config: {', '.join(known) or 'none'}."
            )
        if recipe["predict"] == TOKEN_CLASSES and kind_of(path) == CAUSAL:
            raise UserError(
                f"{where}.models has {path}, which reads no word after the one that it labels; allowed with predict: "
                f"{TOKEN_CLASSES}: masked models."
            )
        if obstacle(known[path]):
            architecture = known[path].recipe["model"]["architecture"]
            raise UserError(
                f"{where}.models has {path}, whose architecture {architecture} JAX cannot open as it is; allowed: "
                f"{', '.join(KINDS)}, with the sizes that backend: jax allows."
            )
    for run in task.models:
        check_length(where, recipe["sequence_length"], run)


def check_length(where: str, length: int, run: Run) -> None:
    """Check that a masked model that is trained here has a position for each token."""
    if run.stage != "mlm" or "model" not in run.recipe:
        return
    sizes = sizes_of(without_either(run.recipe["model"]), f"{run.key}.model")
    after_pad = find_architecture(run.recipe["model"]["architecture"], run.key, "jax").after_pad
    pad = PAD_ID_OF_ROBERTA if "pretrained" in run.config["tokenizer"] else PAD_ID
    positions = sizes["max_position_embeddings"] - (pad + 1 if after_pad else 0)
    if length > positions:
        raise UserError(
            f"{where}.sequence_length is {length}; allowed: {positions} or less, the positions of {run.key}."
        )
