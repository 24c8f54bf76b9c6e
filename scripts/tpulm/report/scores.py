"""The scores on the report's page: of models, beside simpler ones, and of checkpoints over the course of training."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tpulm.core.scores import BETTER, IN_TRAINING_TEXT, LEVEL, WHOLE, WORSE, Score
from tpulm.report.curves import tokens_per_step
from tpulm.report.sources import Sources

NUMBER = {"type": "quantitative"}
SAID = {BETTER: "better than", LEVEL: "level with", WORSE: "worse than"}
BASE = "base model"  # as evaluations name it, too, among what stands beside a score


def scores_of(runs: Iterable[Mapping[str, Any]], sources: Sources) -> list[dict[str, Any]]:
    """Return every score of the evaluations that measured the models that runs end with.

    Beside the score of a finetuned model stands that of its base, unless the evaluation has put it there.
    """
    found = [
        (said["model"].replace("base-training/", "base/", 1), file, Score(**score))
        for file in sources.names("evaluation/*/scores.json")
        for said in [sources.json(file)]
        for score in said["scores"]
        if score.get("step") is None
    ]
    bases = {run["label"]: run.get("base") for run in runs}
    values = {(model, score.name): score.value for model, _, score in found}
    rows = []
    for model, file, score in found:
        before = values.get((bases.get(model), score.name))
        # In the training text of each, the two models have other items.
        if before is not None and score.part != IN_TRAINING_TEXT:
            score = replace(score, baselines={BASE: before} | score.baselines)
        rows.append({"model": model, "file": file, "score": score, "says": reading(score)})
    return rows


def reading(score: Score) -> str:
    """Return what a score says beside chance and simpler models, in words; nothing where it has no rivals."""
    words: dict[str, list[str]] = {}
    for name, value in score.rivals.items():
        words.setdefault(SAID[score.beside(value)], []).append(name)
    return "; ".join(f"{how} {', '.join(names)}" for how, names in words.items())


def leading(row: Mapping[str, Any]) -> bool:
    """Return whether a row of `scores_of` stands for the others."""
    return row["score"].leads


def first_measures(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return of the rows of each model on each set the first, whose measure the set is known by."""
    found: dict[tuple, dict[str, Any]] = {}
    for row in rows:
        found.setdefault((row["model"], row["score"].group, row["score"].on), row)
    return list(found.values())


def over_tokens(runs: Sequence[Mapping[str, Any]], sources: Sources) -> list[dict[str, Any]]:
    """Return a chart for each metric on each set of items: the scores of every run's checkpoints by tokens seen.

    runs  of `findings.described`. Scores of kinds of items, and of those in training text, plot_checkpoints draws

    Each has metric, on, higher, spec and the files that its scores are from.
    """
    charts: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}
    files: dict[tuple[str, str, bool], list[str]] = {}
    for run in runs:
        each = tokens_per_step(sources.columns(run["timings"])) if run["timings"] in sources else None
        if each is None:
            continue
        for file in sources.names(f"evaluation/*{run['folder']}/*/scores.json"):
            for said in sources.json(file)["scores"]:
                score = Score(**said)
                if score.step is None or score.part != WHOLE:
                    continue
                point = {"name": run["label"], "tokens": score.step * each, "value": score.value}
                point |= {"low": score.low, "high": score.high}
                key = (score.metric, score.on, score.higher_is_better)
                charts.setdefault(key, []).append(point)
                files.setdefault(key, []).append(file)
    return [
        {
            "metric": metric.replace("_", " "),
            "on": on,
            "higher": higher,
            "files": files[metric, on, higher],
            "spec": lines(points, metric),
        }
        for (metric, on, higher), points in sorted(charts.items())
    ]


def lines(points: Sequence[Mapping[str, Any]], metric: str) -> dict:
    """Return a line for each run with its intervals; points  name, tokens, value, low, high."""
    x = {"field": "tokens", **NUMBER, "title": "tokens seen in training", "axis": {"format": "~s", "tickCount": 6}}
    y = {"field": "value", **NUMBER, "title": metric.replace("_", " "), "scale": {"zero": False}}
    color = {"field": "name", "type": "nominal", "title": None, "sort": None, "legend": {"orient": "top"}}
    mark = {"type": "line", "point": True, "tooltip": {"content": "data"}}
    return {
        "layer": [
            {
                "data": {"values": [point for point in points if point["low"] is not None]},
                "mark": {"type": "area", "opacity": 0.15},
                "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": color},
            },
            {"data": {"values": list(points)}, "mark": mark, "encoding": {"x": x, "y": y, "color": color}},
        ]
    }
