"""Tables for the terminal and the page: runs side by side, those that finished before, and plans."""

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tpulm.specs.artifacts import HELD_OUT
from tpulm.specs.recipes import differing
from tpulm.specs.scores import ACCURACY, LOSS, Score, find_scores, scores_in

FIGURES = (LOSS, ACCURACY)


def held_out(metrics: Mapping) -> dict[str, dict[str, float]]:
    """Return loss and accuracy of the held-out splits of the content of metrics.json, on the text of the training."""
    scores = scores_in(metrics)
    values = {(score.split, score.metric): score.value for score in find_scores(scores, set=scores[0].set)}
    return {split: {name: values[split, name] for name in FIGURES} for split in HELD_OUT}


def comparison_rows(groups: Sequence[dict[str, Any]], metrics: Sequence[dict]) -> list[dict[str, Any]]:
    """Return the rows of the table, by column.

    groups   stage, name and settings of each group, and how many runs it has
    metrics  metrics.json of each run, in the order of the groups

    Means and sample standard deviations, with n - 1 in the denominator; empty for a single run.
    """
    rows, left = [], list(metrics)
    for group in groups:
        figures, left = [held_out(found) for found in left[: group["runs"]]], left[group["runs"] :]
        row = {"stage": group["stage"], "run": group["name"], "seeds": group["runs"]}
        row["settings"] = settings_in_words(group["settings"])
        for split in HELD_OUT:
            for name in FIGURES:
                values = [found[split][name] for found in figures]
                row[f"{split}_{name}"] = round(statistics.fmean(values), 9)
                row[f"{split}_{name}_std"] = round(statistics.stdev(values), 9) if len(values) > 1 else ""
        rows.append(row)
    return rows


def settings_in_words(settings: Mapping[str, Any]) -> str:
    """Return keys of a config with their values, in a line."""
    return " ".join(f"{key}={value}" for key, value in settings.items())


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as a table of Markdown, aligned; the spread follows the mean, as in 5.812 +- 0.014."""
    if not rows:
        return ""
    heads = ["stage", "run", "seeds", "settings", *(f"{split} {name}" for split in HELD_OUT for name in FIGURES)]
    cells = [heads]
    for row in rows:
        values = [spread(row[f"{split}_{name}"], row[f"{split}_{name}_std"]) for split in HELD_OUT for name in FIGURES]
        cells.append([row["stage"], row["run"], str(row["seeds"]), row["settings"], *values])
    return aligned(cells)


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """Return rows of cells, the first of them the heads, as a table of Markdown in which columns stand straight."""
    heads = cells[0]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"


def spread(mean: float, deviation: float | str) -> str:
    """Return a mean and its standard deviation as a reader takes them in; no deviation for a single run."""
    text = f"{mean:.4f}" if math.isfinite(mean) else str(mean)
    return text if deviation == "" else f"{text} +- {deviation:.4f}"


def table_of_tests(rows: Sequence[dict[str, Any]]) -> str:
    """Return tests of `tpulm.evaluation.significance` as tables of Markdown, one for each pair of models."""
    parts = []
    for first, second in dict.fromkeys((row["first"], row["second"]) for row in rows):
        own = [row for row in rows if (row["first"], row["second"]) == (first, second)]
        seeds = [
            min(row[f"seeds_{which}"] for row in own) for which in ("second", "first")
        ]  # a task has seeds of its own
        cells = [["score", first, second, "difference, 95 %", "p", "items", "verdict"]]
        for row in own:
            limits = "" if row["low"] is None else f" [{row['low']:+.4f}, {row['high']:+.4f}]"
            found = row["p"] is not None and row["verdict"] in ("better", "worse")
            said = f"{second} is {row['verdict']}" if found else f"{row['verdict']}: {row['because']}"
            if found and row["p_seeds"] is not None and row["because"]:
                said += f" ({row['because']})"
            cells.append(
                [row["score"], f"{row['value_first']:.4f}", f"{row['value_second']:.4f}"]
                + [f"{row['difference']:+.4f}{limits}", "" if row["p"] is None else f"{row['p']:.2g}"]
                + [str(row["items"]), said]
            )
        alone = min(seeds) == 1
        note = "; with one seed, a verdict holds for these weights, not for other training runs" if alone else ""
        parts.append(f"{second} compared with {first}; seeds: {seeds[0]} and {seeds[1]}{note}\n\n{aligned(cells)}")
    return "\n".join(parts)


def then_and_now(path: str, runs: Sequence[dict], current: Collection[str]) -> tuple[Sequence[dict], dict | None]:
    """Return the earlier runs, and the last one where it is the run that the config names."""
    if any(path.endswith(f"/{folder}") for folder in current):
        return runs[:-1], runs[-1] if runs else None
    return runs, None


def name_of_earlier(run: Mapping[str, Any]) -> str:
    """Return the name of an earlier run, with the beginning of the hash that tells it from others of that name."""
    return f"{run['name']} {run['hash'][:8]}"


def scores_then_and_now(kept: Mapping[str, Sequence[dict]], current: Collection[str]) -> str:
    """Return the scores of earlier runs as a table of Markdown, beside those of today; empty where none are kept.

    kept     what is kept of the runs of each file, whose path ends in the run's folder below results/
    current  the folders of the runs that the config names: of these the last one that is kept is no earlier one
    """
    cells = [["stage", "run", "settings", "score", "then, 95 %", "items", "now", "difference"]]
    for path, runs in sorted(kept.items()):
        before, now = then_and_now(path, runs, current)
        for run, settings in zip(before, differing([run["recipe"] for run in runs]), strict=False):
            cells += rows_of_scores(run, settings, now)
    return aligned(cells) if len(cells) > 1 else ""


def rows_of_scores(run: Mapping[str, Any], settings: Mapping, now: Mapping[str, Any] | None) -> Iterator[list[str]]:
    """Yield a row for each score of an earlier run; a difference only where as many items were scored.

    settings  how its recipe differs from those of the others of its name
    now       what is kept of the run that the config names, or nothing
    """
    today = {score.name: score for score in measured(now)} if now else {}
    for score in measured(run):
        if not score.leads:
            continue
        row = [
            run["stage"],
            name_of_earlier(run),
            settings_in_words(settings),
            *score_in_words(score),
            str(score.items),
        ]
        other = today.get(score.name)
        if other is None:
            yield [*row, "", ""]
        elif other.items != score.items:
            yield [*row, f"{other.value:.4f}", f"{score.items} items then, {other.items} now"]
        else:
            gain, judged = other.value - score.value, other.few or other.low is not None
            said = f"{gain:+.4f} {other.verdict_against(score.value) if judged else ''}".strip()
            yield [*row, f"{other.value:.4f}", said if gain else "0"]


def score_in_words(score: Score) -> tuple[str, str]:
    """Return what a score is of, and its value with its 95 % interval."""
    limits = "" if score.low is None else f" [{score.low:.4f}, {score.high:.4f}]"
    return f"{score.metric.replace('_', ' ')}: {score.on}", f"{score.value:.4f}{limits}"


def measured(run: Mapping[str, Any]) -> list[Score]:
    """Return the scores of the model that a run ended with."""
    found = scores_in(run["metrics"]) + scores_in({"scores": run.get("scores", [])})
    return [score for score in found if score.step is None]


HEAD = [
    "run", "slice", "fits", "GiB / device", "of", "ms / step", "at least", "bound by", "tokens/s", "MFU", "hours",
    "cost",
]  # fmt: skip


def plan_name(plan: Mapping) -> str:
    """Return what a plan is of, its folder below results/plan/: such as mlm/tiny or tasks/modules/mlm/tiny."""
    run = f"{plan['stage']}/{plan['run']}"
    return f"tasks/{plan['task']}/{run}" if "task" in plan else run


def rows_of(plans: Iterable[Mapping]) -> list[list]:
    """Return a row of HEAD for each plan, and one below it for each change that was compiled with it."""
    rows = []
    for plan in plans:
        name = title_of(plan)
        if not plan["planned"]:
            rows.append([name, plan["topology"], "unplanned", *[None] * 9])
            continue
        rows.append([name, plan["topology"], *figures_of(plan), *in_all(plan)])
        for change in plan["alternatives"]:
            words = f"  {change['key']}: {str(change['value']).lower()}"
            rows.append([words, plan["topology"], *figures_of(change), None, None])
    return rows


def title_of(plan: Mapping) -> str:
    """Return `plan_name` a plan, and whether it stands for a step of TensorFlow."""
    return plan_name(plan) + (", as on JAX" if stands_for_tensorflow(plan) else "")


def stands_for_tensorflow(plan: Mapping) -> bool:
    """Return whether a plan is of a step on JAX, and its run trains on TensorFlow."""
    return plan["planned"] and plan["recipe"].get("backend") == "tensorflow"


def figures_of(plan: Mapping) -> list:
    """Return the figures of a step in a plan, None where not known."""
    memory, step = plan["memory"], plan["estimated_seconds"]
    held = [significant(memory["total"] / 2**30), round(memory["hbm"] / 2**30)]
    if step is None:
        return ["no", *held, *[None] * 5]
    least = plan["lower_bound_seconds"]
    time = [round(step * 1e3, 2), round(least * 1e3, 2), plan["bound_by"], round(plan["tokens_per_second"])]
    return ["yes", *held, *time, f"{plan['model_flops_utilisation']:.0%}"]


def in_all(plan: Mapping) -> list:
    """Return hours and cost of all steps of a plan."""
    return [None if plan[key] is None else significant(plan[key]) for key in ("hours", "cost_of_run")]


def significant(value: float) -> float:
    """Return a number with three significant digits, two after the point at the most where it is large."""
    return round(value, 2) if abs(value) >= 1 else float(f"{value:.3g}")


def as_text(rows: list[list]) -> list[str]:
    """Return lines of a table for a terminal, HEAD first; numbers to the right."""
    shown = [HEAD, *([show(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in shown) for column in range(len(HEAD))]
    right = [any(isinstance(row[column], int | float) for row in rows) for column in range(len(HEAD))]
    return [
        "  ".join(
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in shown
    ]


def show(value: object) -> str:
    """Return a value as text, None as a dash."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int | float) else str(value)


def notes_of(plans: Iterable[Mapping]) -> list[str]:
    """Return the sentences of plans that do not fit, could not be made, or are of another framework."""
    notes = []
    for plan in plans:
        where = plan["recipe"]["where"]
        if not plan["planned"]:
            notes.append(f"{where} on {plan['topology']}: {plan['reason']}")
            continue
        if plan["sentence"]:
            notes.append(plan["sentence"])
        if stands_for_tensorflow(plan):
            notes.append(f"{where} trains on TensorFlow; its plan is of the step on JAX with the same sizes.")
    return list(dict.fromkeys(notes))
