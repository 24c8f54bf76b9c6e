"""Compare the figures of a published run with those of the run that repeats it."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from tpulm.core.devices import devices_in_words
from tpulm.report.tables import aligned, held_out
from tpulm.specs.artifacts import PUBLISHED_FIGURES

REACHED = "reached"


def verdict(published: float, reached: float, higher_is_better: bool) -> str:
    """Return "reached" if a figure is at least as good as the published one, otherwise the relative difference."""
    if reached >= published if higher_is_better else reached <= published:
        return REACHED
    return f"missed by {100 * abs(reached / published - 1):.2g} %"


def beside_published(published: Mapping[str, Any], metrics: dict, history: Mapping, timings: Mapping) -> list[dict]:
    """Return a row for each published number: figure, published, reached, verdict.

    published  of a run's config; training figures are means over its last_steps, by default all steps
    metrics    content of metrics.json
    history, timings  columns of history.csv and timings.csv
    """
    steps = len(history["loss"])
    last = min(published.get("last_steps", steps), steps)
    reached = {f"train_{name}": fmean(history[name][-last:]) for name in ("loss", "accuracy")}
    reached |= {f"validation_{name}": held_out(metrics)["validation"][name] for name in ("loss", "accuracy")}
    reached["seconds_per_step"] = median(timings["seconds_per_step"])
    rows = []
    for key, (name, higher_is_better) in PUBLISHED_FIGURES.items():
        if key not in published:
            continue
        figure = name + (f", mean of the last {last:,} steps" if key.startswith("train") else "")
        figure += f", on {devices_in_words(timings['devices'][-1])}" if key == "seconds_per_step" else ""
        published_value, reason = published[key], published.get("differs", {}).get(key)
        row_verdict = f"not the same: {reason}" if reason else verdict(published_value, reached[key], higher_is_better)
        rows.append({"figure": figure, "published": published_value, "reached": reached[key], "verdict": row_verdict})
    return rows


def answers_beside(published: Mapping[str, Sequence[str]], answers: Sequence[Mapping]) -> list[dict]:
    """Return a row for each prompt with published answers: figure, published, reached, verdict.

    answers  content of fill_mask.json
    """
    reached = {answer["prompt"]: [token["token_str"].strip() for token in answer["answers"]] for answer in answers}
    rows = []
    for prompt, words in published.items():
        matches = len({word.strip() for word in words} & set(reached[prompt]))
        row = {"figure": prompt, "published": quoted(words), "reached": quoted(reached[prompt])}
        rows.append(row | {"verdict": f"{matches} of {len(words)} are the same"})
    return rows


def quoted(words: Sequence[str]) -> str:
    """Return answers as a list in words; an empty answer is "(nothing)"."""
    return ", ".join(word.strip() or "(nothing)" for word in words)


def markdown(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table for each run; runs  each with run, source and rows."""
    parts = []
    for run in runs:
        cells = [["figure", "published", "reached", "verdict"]]
        for row in run["rows"]:
            values = [row["published"], row["reached"]]
            shown = [value if isinstance(value, str) else f"{value:.4f}" for value in values]
            cells.append([row["figure"], *shown, row["verdict"]])
        parts.append(f"{run['run']} beside what is published in {run['source']}:\n\n{aligned(cells)}")
    return "\n".join(parts)
