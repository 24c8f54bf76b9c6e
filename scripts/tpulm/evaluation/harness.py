"""Run tasks of lm-evaluation-harness (Gao et al. 2024), and turn their results into scores."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from datasets.exceptions import DatasetsError
from jinja2.exceptions import TemplateError
from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from tpulm.compat import lm_eval as compat
from tpulm.core.errors import UserError, one_line
from tpulm.core.hub import answer_of, dataset_error
from tpulm.evaluation.item_means import Scored, mean_score
from tpulm.evaluation.overlap import count_in_training
from tpulm.specs.harness_tasks import LOCAL, full_description, relocated
from tpulm.specs.scores import Score

# Metrics of multiple choice with one right answer.
RIGHT_OR_WRONG = ("acc", "acc_norm")
# A metric for which the harness scores each answer a second time, without the question.
WITHOUT_CONTEXT = "acc_mutual_info"
NOT_METRICS = ("name", "alias", "sample_len", "sample_count")


def results_of(lm: LM, key: str, recipe: Mapping[str, Any], paths: Mapping[str, str], cache: str) -> dict[str, Any]:
    """Return the results of a task, samples included, as `lm_eval.simple_evaluate` does.

    key     config key of the task
    recipe  file, or task and revision; examples, limit
    paths   paths of the files of examples, by their names in the task's file
    cache   folder for the `datasets` library

    Raises UserError for a task that the harness does not know, or that cannot be read.
    """
    if "file" in recipe:
        description = relocated(full_description(key, recipe["file"]), paths)
        description["dataset_kwargs"] = description["dataset_kwargs"] | {"cache_dir": cache}
        manager = TaskManager(include_defaults=False)
        task: Any = description
    else:
        manager = TaskManager()
        task = recipe["task"]
        pin(manager, key, task, recipe.get("revision"))
    try:
        return simple_evaluate(
            lm,
            tasks=[task],
            num_fewshot=recipe["examples"],
            limit=recipe["limit"],
            bootstrap_iters=0,
            task_manager=manager,
        )
    except (OSError, KeyError, ValueError, ArithmeticError, DatasetsError, TemplateError) as error:
        if "task" in recipe and isinstance(error, OSError | DatasetsError):
            for dataset in hub_datasets(manager, task):
                if answer := answer_of(dataset_error(dataset, recipe.get("revision"), error)):
                    raise UserError(f"{key} needs the dataset {dataset}, {answer}.") from error
        raise UserError(f"{key} cannot be run: {one_line(error)}.") from error


def pin(manager: TaskManager, key: str, name: str, revision: str | None) -> None:
    """Pin the data of a task, or of the tasks of a group, to a commit of the hub.

    Raises UserError for a name that the harness does not know, and without a commit.
    """
    leaves = list(members(manager, name))
    if not leaves:
        raise UserError(
            f"{key}.task is {name}, which lm-evaluation-harness does not have; `lm-eval ls tasks` lists its tasks."
        )
    if revision is None:
        for dataset, task in hub_datasets(manager, name).items():
            raise UserError(
                f"{key}.revision is missing; the examples of {task} are {dataset} on the hub, which must be "
                "pinned to a commit of 40 hexadecimal digits, so that they cannot change."
            )
        return
    for entry in leaves:
        compat.pin(manager, entry, revision)


def hub_datasets(manager: TaskManager, name: str) -> dict[str, str]:
    """Return the datasets on the hub that a task, or a group of tasks, reads, each with a task that reads it."""
    entries = ((entry.name, (entry.cfg or {}).get("dataset_path", "")) for entry in members(manager, name))
    return {dataset: task for task, dataset in entries if dataset not in LOCAL}


def members(manager: TaskManager, name: str) -> Iterator[Any]:
    """Yield the harness's index entries of a task, or of all tasks of a group or tag."""
    entry = manager.task_index.get(name)
    if entry is None:
        return
    if entry.kind.name == "TAG":
        names = sorted(entry.tags)
    elif entry.kind.name == "GROUP":
        names = [item if isinstance(item, str) else item.get("task") for item in entry.cfg["task"]]
    else:
        yield entry
        return
    for member in names:
        yield from members(manager, member)


class Silent(LM):
    """A model with constant answers, for the items of a task without a real model."""

    def loglikelihood(self, requests: list) -> list[tuple[float, bool]]:
        """Return the same result for every answer."""
        return [(-1.0, False)] * len(requests)

    def loglikelihood_rolling(self, requests: list) -> list[float]:
        """Return the same result for every text."""
        return [-1.0] * len(requests)

    def generate_until(self, requests: list) -> list[str]:
        """Return an empty text for every request."""
        return [""] * len(requests)


def items_of(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each item of a task by its name: all strings of its row, without the prompt of the task."""
    samples_by_task = sorted(results["samples"].items())
    rows = {item_of(task, sample): sample["doc"] for task, samples in samples_by_task for sample in samples}
    return {item: "\n".join(strings(row)) for item, row in rows.items()}


def item_of(task: str, sample: Mapping) -> str:
    """Return the name of an item, TASK/DOC_ID, the same for every model."""
    return f"{task}/{sample['doc_id']}"


def strings(value: object) -> Iterator[str]:
    """Yield every string in a JSON value, keys of mappings excluded."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from strings(inner)


def harness_scores(
    name: str, task: str | None, results: Mapping[str, Any], in_training: Collection[str] | None = None
) -> list[Scored]:
    """Return the score of each metric of a task, with its values by item.

    name         name of the task in the config
    task         name in the harness, None for a task of the user
    results      from `results_of`
    in_training  items in the training text, see `items_in_training`

    A group has one score for each metric, over the items of all its tasks. A metric that is no mean over items, such as
    a perplexity, has no interval and no values by item.
    """
    tasks = sorted(results["samples"])
    total = results["results"].get(task, results["results"][tasks[0]])
    if len(tasks) > 1 and not (task in results["results"] and metrics(total)):  # tasks without a common score
        return [
            scored
            for member in tasks
            for scored in harness_scores(f"{name}: {member}", member, results_of_task(results, member), in_training)
        ]
    shots = results["n-shot"].get(tasks[0]) or 0
    on = f"{name}, {shots} example{'' if shots == 1 else 's'} shown"
    scores: list[Scored] = []
    for label, value in metrics(total).items():
        metric, _, chosen = label.partition(",")
        samples = {
            item_of(member, sample): sample
            for member in tasks
            for sample in results["samples"][member]
            if sample["filter"] == chosen and metric in sample
        }
        metric_name = metric if chosen == "none" else f"{metric} ({chosen})"
        if is_mean([sample[metric] for sample in samples.values()], value):
            chance, baselines = guesses(results, tasks, metric, list(samples.values()))
            score, items = mean_score(
                list(samples),
                np.array([sample[metric] for sample in samples.values()], np.float64),
                baselines,
                group="harness",
                metric=metric_name,
                set=name,
                on=on,
                higher_is_better=higher_is_better(results, tasks, metric),
                chance=chance,
            )
        else:
            better = higher_is_better(results, tasks, metric)
            score, items = Score("harness", metric_name, on, value, None, None, better, len(samples), set=name), {}
        scores.append((replace(score, in_training_text=count_in_training(samples, in_training)), items))
    return scores


def higher_is_better(results: Mapping, tasks: list[str], metric: str) -> bool:
    """Return whether higher is better, which holds unless a task says otherwise."""
    return all(results["higher_is_better"].get(task, {}).get(metric) is not False for task in tasks)


def metrics(total: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a task or group by METRIC,FILTER, without standard errors.

    Raises UserError for a metric that is no finite number.
    """
    values = {}
    for label, value in total.items():
        name = label.partition(",")[0]
        if name not in NOT_METRICS and not name.endswith("_stderr") and isinstance(value, int | float | np.number):
            if not math.isfinite(value):
                what = f"{name} of {total.get('alias', 'a task')}"
                raise UserError(
                    f"evaluation.harness: {what} is {value}; allowed: finite numbers. The model is too weak for this "
                    "metric: train it for longer, or remove the metric."
                )
            values[label] = float(value)
    return values


def results_of_task(results: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Return the part of results that is of one task."""
    return dict(results) | {"samples": {task: results["samples"][task]}, "results": {task: results["results"][task]}}


def is_mean(values: list, value: float) -> bool:
    """Return whether a metric is the mean of the values of its items, which must be numbers."""
    if not values or not all(isinstance(item_value, int | float | np.number) for item_value in values):
        return False
    return math.isclose(math.fsum(map(float, values)) / len(values), value, rel_tol=1e-9, abs_tol=1e-12)


def guesses(results: Mapping, tasks: list[str], metric: str, samples: list[Mapping]) -> tuple[float | None, dict]:
    """Return the chance of a guess, and as baseline by item whether the commonest answer is right; None, {} without."""
    multiple_choice = all(results["configs"][task]["output_type"] == "multiple_choice" for task in tasks)
    if not multiple_choice or metric not in RIGHT_OR_WRONG or any(sample[metric] not in (0, 1) for sample in samples):
        return None, {}
    choice_counts = [len(sample["arguments"]) // (2 if WITHOUT_CONTEXT in sample else 1) for sample in samples]
    chance = math.fsum(1 / count for count in choice_counts) / len(samples)
    targets = Counter(str(sample["target"]) for sample in samples)
    if not 1 < len(targets) <= max(choice_counts):
        return chance, {}
    ((commonest, _),) = targets.most_common(1)
    right = [str(sample["target"]) == commonest for sample in samples]
    return chance, {"always the commonest answer": np.array(right, np.float64)}
