"""The scores of checkpoints over the course of training, for the report's page."""

from collections.abc import Mapping, Sequence
from typing import Any

from tpulm.core.scores import WHOLE, Score
from tpulm.report.curves import tokens_per_step
from tpulm.report.sources import Sources

NUMBER = {"type": "quantitative"}


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
