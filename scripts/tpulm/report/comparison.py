"""The comparison of runs: a row for each, and one for runs that differ by their seed only."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

SPLITS = ("validation", "test")
FIGURES = ("loss", "accuracy")


def held_out(metrics: dict) -> dict[str, dict[str, float]]:
    """Return the figures of the held-out splits of any run's metrics.json; of a finetuned model, after finetuning."""
    if "loss" in metrics:
        return {split: metrics["loss"][f"finetune_{split}"]["after"] for split in SPLITS}
    return {split: metrics[split] for split in SPLITS}


def compared(groups: Sequence[dict[str, Any]], metrics: Sequence[dict]) -> list[dict[str, Any]]:
    """Return the rows of the table, by column.

    groups   stage, name and settings of each group, and how many runs it has
    metrics  metrics.json of each run, in the order of the groups

    Means and sample standard deviations, with n - 1 in the denominator; empty for a single run.
    """
    rows, left = [], list(metrics)
    for group in groups:
        figures, left = [held_out(found) for found in left[: group["runs"]]], left[group["runs"] :]
        row = {"stage": group["stage"], "run": group["name"], "seeds": group["runs"]}
        row["settings"] = " ".join(f"{key}={value}" for key, value in group["settings"].items())
        for split in SPLITS:
            for name in FIGURES:
                values = [found[split][name] for found in figures]
                row[f"{split}_{name}"] = round(statistics.fmean(values), 9)
                row[f"{split}_{name}_std"] = round(statistics.stdev(values), 9) if len(values) > 1 else ""
        rows.append(row)
    return rows


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as a table of Markdown, aligned; the spread follows the mean, as in 5.812 +- 0.014."""
    if not rows:
        return ""
    heads = ["stage", "run", "seeds", "settings", *(f"{split} {name}" for split in SPLITS for name in FIGURES)]
    cells = [heads]
    for row in rows:
        values = [spread(row[f"{split}_{name}"], row[f"{split}_{name}_std"]) for split in SPLITS for name in FIGURES]
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
        note = "; with one seed, a verdict is about these weights, not about training again" if alone else ""
        parts.append(f"{second} beside {first}; seeds: {seeds[0]} and {seeds[1]}{note}\n\n{aligned(cells)}")
    return "\n".join(parts)
