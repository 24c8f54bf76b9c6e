"""Build tables for the terminal, files and the page: runs and seeds, significance tests, earlier runs, and plans."""

import csv
import io
import math
import re
import statistics
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any

from tpulm.specs.artifacts import HELD_OUT
from tpulm.specs.recipes import differing
from tpulm.specs.scores import ACCURACY, LOSS, Score, find_scores, scores_in

FIGURES = (LOSS, ACCURACY)
COLUMNS, SHORT = 100, 16  # width of the printed tables, and of the longest cell that is never broken
NUMERIC = re.compile(r"[-+]?\d|-?$")


def held_out(metrics: Mapping) -> dict[str, dict[str, float]]:
    """Return loss and accuracy by held-out split on the training's text; metrics  content of metrics.json."""
    scores = scores_in(metrics)
    values = {(score.split, score.metric): score.value for score in find_scores(scores, set=scores[0].set)}
    return {split: {name: values[split, name] for name in FIGURES} for split in HELD_OUT}


def comparison_rows(groups: Sequence[dict[str, Any]], metrics: Sequence[dict]) -> list[dict[str, Any]]:
    """Return a row for each group: its means and sample standard deviations (n - 1), empty for a single run.

    groups   stage, name, settings, runs (their number)
    metrics  content of metrics.json of each run, in the order of the groups
    """
    rows, remaining = [], list(metrics)
    for group in groups:
        figures = [held_out(content) for content in remaining[: group["runs"]]]
        remaining = remaining[group["runs"] :]
        row = {"stage": group["stage"], "run": group["name"], "seeds": group["runs"]}
        row["settings"] = settings_in_words(group["settings"])
        for split in HELD_OUT:
            for name in FIGURES:
                values = [run[split][name] for run in figures]
                row[f"{split}_{name}"] = round(statistics.fmean(values), 9)
                row[f"{split}_{name}_std"] = round(statistics.stdev(values), 9) if len(values) > 1 else ""
        rows.append(row)
    return rows


def as_csv(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return rows as the text of a CSV file."""
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def settings_in_words(settings: Mapping[str, Any]) -> str:
    """Return settings of a config as one line of key=value."""
    return " ".join(f"{key}={value}" for key, value in settings.items())


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return `comparison_rows` as a Markdown table; cells are mean +- standard deviation."""
    if not rows:
        return ""
    heads = ["stage", "run", "seeds", "settings", *(f"{split} {name}" for split in HELD_OUT for name in FIGURES)]
    cells = [heads]
    for row in rows:
        values = [spread(row[f"{split}_{name}"], row[f"{split}_{name}_std"]) for split in HELD_OUT for name in FIGURES]
        cells.append([row["stage"], row["run"], str(row["seeds"]), row["settings"], *values])
    return aligned(cells)


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """Return rows of cells, heads first, as a Markdown table with aligned columns."""
    heads = cells[0]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"


def fitted(text: str, width: int = COLUMNS) -> Iterator[str]:
    """Yield the lines of a text for a terminal of this width; cells of its Markdown tables are wrapped."""
    for in_table, lines in groupby(text.splitlines(), lambda line: line.startswith("|")):
        if in_table:
            head, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
            yield from wrapped([head, *rows], width)
        else:
            wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False).wrap
            yield from (part for line in lines for part in wrap(line) or [""])


def wrapped(cells: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yield the lines of a table, heads first, in at most `width` columns; columns without content are left out."""
    columns = [column for column in zip(*cells, strict=True) if any(column[1:])]
    words = [
        max(len(word) for cell in column for word in (cell.split() if len(cell) > SHORT else [cell]))
        for column in columns
    ]
    widths = [max(map(len, column)) for column in columns]
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > 1:
        spare = [number for number in range(len(widths)) if widths[number] > words[number]] or range(len(widths))
        widths[max(spare, key=widths.__getitem__)] -= 1
    adjust = [str.rjust if all(NUMERIC.match(cell) for cell in column[1:]) else str.ljust for column in columns]
    for number, row in enumerate(zip(*columns, strict=True)):
        parts = [textwrap.wrap(cell, size, break_on_hyphens=False) for cell, size in zip(row, widths, strict=True)]
        for line in zip_longest(*parts, fillvalue=""):
            yield "  ".join(fill(cell, size) for fill, cell, size in zip(adjust, line, widths, strict=True)).rstrip()
        if number == 0:
            yield "  ".join("-" * size for size in widths)


def spread(mean: float, deviation: float | str) -> str:
    """Return a mean and its standard deviation as text, such as 5.8120 +- 0.0140; no deviation for ""."""
    text = f"{mean:.4f}" if math.isfinite(mean) else str(mean)
    return text if deviation == "" else f"{text} +- {deviation:.4f}"


def table_of_tests(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows of `tpulm.evaluation.significance` as Markdown tables, one for each pair of models."""
    parts = []
    for first, second in dict.fromkeys((row["first"], row["second"]) for row in rows):
        pair_rows = [row for row in rows if (row["first"], row["second"]) == (first, second)]
        # Tasks have different numbers of seeds.
        seeds = [min(row[f"seeds_{which}"] for row in pair_rows) for which in ("second", "first")]
        cells = [["score", first, second, "difference, 95 %", "p", "items", "verdict"]]
        for row in pair_rows:
            limits = "" if row["low"] is None else f" [{row['low']:+.4f}, {row['high']:+.4f}]"
            decided = row["p"] is not None and row["verdict"] in ("better", "worse")
            verdict = f"{second} is {row['verdict']}" if decided else f"{row['verdict']}: {row['because']}"
            if decided and row["p_seeds"] is not None and row["because"]:
                verdict += f" ({row['because']})"
            cells.append(
                [row["score"], f"{row['value_first']:.4f}", f"{row['value_second']:.4f}"]
                + [f"{row['difference']:+.4f}{limits}", "" if row["p"] is None else f"{row['p']:.2g}"]
                + [str(row["items"]), verdict]
            )
        single_seed = min(seeds) == 1
        note = "; with one seed, a verdict holds for these weights, not for other training runs" if single_seed else ""
        parts.append(f"{second} compared with {first}; seeds: {seeds[0]} and {seeds[1]}{note}\n\n{aligned(cells)}")
    return "\n".join(parts)


def scores_then_and_now(runs_by_path: Mapping[str, Sequence[dict]], current: Collection[str]) -> str:
    """Return a Markdown table of the scores of earlier and current runs; empty without earlier runs.

    runs_by_path  records of the runs of each file; a path ends with the run's folder
    current       folders of the runs that the config names, relative to results/
    """
    cells = [["stage", "run", "settings", "score", "then, 95 %", "items", "now", "difference"]]
    for path, runs in sorted(runs_by_path.items()):
        named = runs and any(path.endswith(f"/{folder}") for folder in current)
        earlier, current_run = (runs[:-1], runs[-1]) if named else (runs, None)
        for run, settings in zip(earlier, differing([run["recipe"] for run in runs]), strict=False):
            cells += rows_of_scores(run, settings, current_run)
    return aligned(cells) if len(cells) > 1 else ""


def rows_of_scores(
    run: Mapping[str, Any], settings: Mapping, current_run: Mapping[str, Any] | None
) -> Iterator[list[str]]:
    """Yield a row for each leading score of an earlier run, with the difference if the items are as many."""
    current_scores = {score.name: score for score in measured(current_run)} if current_run else {}
    for score in measured(run):
        if not score.leads:
            continue
        row = [
            run["stage"],
            f"{run['name']} {run['hash'][:8]}",
            settings_in_words(settings),
            *score_in_words(score),
            str(score.items),
        ]
        current = current_scores.get(score.name)
        if current is None:
            yield [*row, "", ""]
        elif current.items != score.items:
            yield [*row, f"{current.value:.4f}", f"{score.items} items then, {current.items} now"]
        else:
            gain, comparable = current.value - score.value, current.few or current.low is not None
            difference = f"{gain:+.4f} {current.verdict_against(score.value) if comparable else ''}".strip()
            yield [*row, f"{current.value:.4f}", difference if gain else "0"]


def score_in_words(score: Score) -> tuple[str, str]:
    """Return metric and set of a score, and its value with the 95 % interval, as text."""
    limits = "" if score.low is None else f" [{score.low:.4f}, {score.high:.4f}]"
    return f"{score.metric.replace('_', ' ')}: {score.on}", f"{score.value:.4f}{limits}"


def measured(run: Mapping[str, Any]) -> list[Score]:
    """Return the scores of a run's final model from its record."""
    scores = scores_in(run["metrics"]) + scores_in({"scores": run.get("scores", [])})
    return [score for score in scores if score.step is None]


HEAD = [
    "run", "slice", "fits", "GiB / device", "of", "ms / step", "at least", "bound by", "tokens/s", "MFU", "hours",
    "cost",
]  # fmt: skip


def plan_name(plan: Mapping) -> str:
    """Return the folder of a plan relative to results/plan/, such as mlm/tiny or tasks/modules/mlm/tiny."""
    run = f"{plan['stage']}/{plan['run']}"
    return f"tasks/{plan['task']}/{run}" if "task" in plan else run


def rows_of(plans: Iterable[Mapping]) -> list[list]:
    """Return a row of HEAD for each plan, or each of its phases, followed by one for each compiled change of it."""
    rows = []
    for plan in plans:
        name = title_of(plan)
        if not plan["planned"]:
            rows.append([name, plan["topology"], "unplanned", *[None] * 9])
            continue
        for phase in plan.get("phases", [plan]):
            of = f", steps {phase['first'] + 1:,} to {phase['until']:,}" if "until" in phase else ""
            in_all = [None if phase[key] is None else significant(phase[key]) for key in ("hours", "cost_of_run")]
            rows.append([name + of, plan["topology"], *figures_of(phase), *in_all])
            for change in phase["alternatives"]:
                words = f"  {change['key']}: {str(change['value']).lower()}"
                rows.append([words, plan["topology"], *figures_of(change), None, None])
    return rows


def title_of(plan: Mapping) -> str:
    """Return the name of a plan, marked if it stands for a step of TensorFlow."""
    return plan_name(plan) + (", as on JAX" if stands_for_tensorflow(plan) else "")


def stands_for_tensorflow(plan: Mapping) -> bool:
    """Return whether the run of a plan trains on TensorFlow, while the planned step is of JAX."""
    return plan["planned"] and plan["recipe"].get("backend") == "tensorflow"


def figures_of(plan: Mapping) -> list:
    """Return the cells of HEAD from "fits" to "MFU" for a planned step; None if unknown."""
    memory, estimate = plan["memory"], plan["estimated_seconds"]
    memory_cells = [significant(memory["total"] / 2**30), round(memory["hbm"] / 2**30)]
    if estimate is None:
        return ["no", *memory_cells, *[None] * 5]
    times = [round(seconds * 1e3, 2) for seconds in (estimate, plan["lower_bound_seconds"])]
    speed = [plan["bound_by"], round(plan["tokens_per_second"]), f"{plan['model_flops_utilisation']:.0%}"]
    return ["yes", *memory_cells, *times, *speed]


def significant(value: float) -> float:
    """Return a number rounded to two decimals, or to three significant digits below 1."""
    return round(value, 2) if abs(value) >= 1 else float(f"{value:.3g}")


def show(value: object) -> str:
    """Return a value as text, numbers with thousands separators, None as a dash."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int | float) else str(value)


def notes_of(plans: Iterable[Mapping]) -> list[str]:
    """Return notes on plans that do not fit, could not be made, or stand for a step of TensorFlow, and on estimates."""
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
        if plan.get("basis"):
            notes.append(plan["basis"])
    return list(dict.fromkeys(notes))
