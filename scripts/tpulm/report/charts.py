"""Build charts of the report as Vega-Lite specifications (Satyanarayan et al. 2017); tpulm.report.svg draws them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tpulm.specs.scores import Score

NUMBER = {"type": "quantitative"}
GREY = "#8a94a0"
CROSS = "#c8511b"  # readable on light and on dark
SHAPES = ["cross", "diamond", "square", "triangle-up", "triangle-down", "triangle-right", "triangle-left"]


def bars(
    rows: Iterable[Mapping[str, Any]], x: str, y: str, titles: tuple[str, str], stack_by: str | None = None
) -> dict:
    """Return bars of height y over the integers in column x; the column `stack_by` stacks them by color."""
    stack = {"field": stack_by, "type": "nominal", "title": None, "sort": None, "legend": {"orient": "top"}}
    color = {"color": stack} if stack_by else {}
    return {
        "data": {"values": list(rows)},
        "mark": {"type": "bar"},
        "encoding": {
            "x": {"field": x, "type": "ordinal", "title": titles[0], "axis": {"labelAngle": 0, "labelOverlap": True}},
            "y": {"field": y, **NUMBER, "title": titles[1]},
            **color,
        },
    }


def intervals(rows: Sequence[Mapping[str, Any]], baselines: Sequence[Mapping[str, Any]], title: str) -> dict:
    """Return points with intervals, one row for each name, and baselines as marks of different shapes.

    rows       name, value, low, high (None without an interval)
    baselines  name, value, which
    """
    y = {"field": "name", "type": "nominal", "title": None, "sort": None}
    legend = {"orient": "top", "symbolFillColor": CROSS, "symbolStrokeColor": CROSS}
    shape = {"field": "which", "type": "nominal", "title": None, "sort": None, "scale": {"range": SHAPES}}
    scale = {"zero": False, "nice": False, "padding": 12}
    x = {"field": "value", **NUMBER, "title": title, "scale": scale, "axis": {"tickCount": 8}}
    point = {"type": "point", "filled": True, "opacity": 1}
    layers = [
        {
            "data": {"values": [row for row in rows if row["low"] is not None]},
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {"y": y, "x": x | {"field": "low"}, "x2": {"field": "high"}},
        },
        {"data": {"values": rows}, "mark": point | {"size": 70}, "encoding": {"y": y, "x": x}},
    ]
    if baselines:  # an empty legend has no size
        encoding = {"y": y, "x": x, "color": {"value": CROSS}, "shape": shape | {"legend": legend}}
        layers.append({"data": {"values": baselines}, "mark": point | {"size": 60}, "encoding": encoding})
    return {"height": 26 * len({row["name"] for row in rows}), "layer": layers}


def point_of(name: str, score: Score) -> dict[str, Any]:
    """Return a score as a row of `intervals`."""
    return {"name": name, "value": score.value, "low": score.low, "high": score.high}


def by_tokens(scores: Sequence[tuple[str, Score, int]]) -> dict:
    """Return a line for each name: scores of checkpoints by training tokens, with intervals. A dashed line is chance.

    scores  name of the line, score, training tokens of the checkpoint
    """
    points = [point_of(name, score) | {"tokens": tokens} for name, score, tokens in scores]
    chances = {score.chance for _, score, _ in scores if score.chance is not None}
    x = {"field": "tokens", **NUMBER, "title": "tokens seen in training", "axis": {"format": "~s", "tickCount": 6}}
    y = {"field": "value", **NUMBER, "title": scores[0][1].metric.replace("_", " "), "scale": {"zero": False}}
    color = {"field": "name", "type": "nominal", "title": None, "sort": None, "legend": {"orient": "top"}}
    layers = [
        {
            "data": {"values": [point for point in points if point["low"] is not None]},
            "mark": {"type": "area", "opacity": 0.15, "aria": False},
            "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": color},
        },
        {
            "data": {"values": points},
            "mark": {"type": "line", "point": True},
            "encoding": {"x": x, "y": y, "color": color},
        },
        {
            "data": {"values": [{"value": chance} for chance in sorted(chances)]},
            "mark": {"type": "rule", "strokeDash": [3, 3], "color": GREY},
            "encoding": {"y": {"field": "value", **NUMBER}},
        },
    ]
    return {"layer": layers if chances else layers[:2]}


def timeline(jobs: Sequence[Mapping[str, Any]], failed: Sequence[Mapping[str, Any]]) -> dict:
    """Return a row for each rule, with a bar for each job and a cross for each failed attempt.

    jobs    rule, said, stage, ready, started, ended (seconds)
    failed  rule, said, failed (seconds)
    """
    y = {"field": "rule", "type": "nominal", "title": None, "sort": None}
    x = {"field": "started", **NUMBER, "title": "seconds since the start of the first job", "axis": {"tickCount": 10}}
    color = {"field": "stage", "type": "nominal", "title": None, "sort": None, "legend": {"orient": "top"}}
    bar, said = {"type": "bar", "height": {"band": 0.8}, "minBandSize": 2}, {"description": {"field": "said"}}
    waiting = {"y": y, "x": x | {"field": "ready"}, "x2": {"field": "started"}}
    return {
        "data": {"values": jobs},
        "height": 17 * len({job["rule"] for job in jobs}),
        "layer": [
            {"mark": {"type": "rule", "opacity": 0.35, "aria": False}, "encoding": waiting},
            {"mark": bar, "encoding": said | {"y": y, "x": x, "x2": {"field": "ended"}, "color": color}},
            {
                "data": {"values": failed},
                "mark": {"type": "point", "shape": "cross", "filled": True, "angle": 45},
                "encoding": said | {"y": y, "x": x | {"field": "failed"}, "color": {"value": CROSS}},
            },
        ],
    }


def shares(phases: Sequence[Mapping[str, Any]]) -> dict:
    """Return bars of the shares of the sources in the phases of a run; phases  first, and shares by source."""
    rows = [
        {"step": phase["first"] + 1, "share": share, "source": source or "all sources"}
        for phase in phases
        for source, share in phase["shares"].items()
    ]
    return bars(rows, "step", "share", ("from this step on", "share of the records"), "source") | {"height": 120}


POINTS = 400  # most points of a curve; beside many runs, a curve has fewer
RAW = 8  # up to so many runs, the losses of single steps are drawn behind their means
MEANS = ("loss", "accuracy", "gradient_norm")
# Title, scale and axis of each curve, in the order of the panels.
PANELS = {
    "loss": ("loss, nats per token", {"zero": False}, {}),
    "accuracy": ("accuracy", {}, {"format": ".0%"}),
    "learning_rate": ("learning rate", {"zero": False}, {"format": ".3~g"}),
    "gradient_norm": ("gradient norm", {}, {"format": "~s"}),
    "tokens_per_second": ("tokens/s", {}, {"format": "~s"}),
    "mfu": ("MFU", {}, {"format": ".0%"}),
}


def thinned_indices(values: Sequence[float], points: int = POINTS) -> np.ndarray:
    """Return the sorted indices of the first and the last point, and of the lowest and highest of equal spans."""
    count = len(values)
    if count <= points:
        return np.arange(count)
    numbers = np.nan_to_num(np.asarray(values, float), nan=np.inf)
    bounds = np.linspace(0, count, points // 2).astype(int)
    indices = {0, count - 1}
    for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
        indices |= {start + int(numbers[start:stop].argmin()), start + int(numbers[start:stop].argmax())}
    return np.array(sorted(indices))


def thinned(curve: Mapping[str, list], points: int = POINTS) -> dict[str, list]:
    """Return the steps and values of a curve that `thinned_indices` keeps."""
    index = thinned_indices(curve["values"], points)
    return {key: [curve[key][i] for i in index] for key in ("steps", "values")}


def points_of(runs: Sequence) -> int:
    """Return the number of points of each curve of so many runs."""
    return min(POINTS, max(10 * POINTS // len(runs), 150))


def mean_of(curve: Mapping[str, list]) -> dict[str, list]:
    """Return a curve of means, each of a fiftieth of its steps."""
    window = max(1, len(curve["values"]) // 50)
    means = np.convolve(curve["values"], np.ones(window) / window, "valid")
    return {"steps": curve["steps"][window - 1 :], "values": means.tolist()}


def training_panels(runs: Sequence[Mapping[str, Any]], width: int) -> dict:
    """Return panels over the steps, one for each of PANELS that a run has; a color for each run.

    runs  label, and curves of `tpulm.report.curves.curves_of`
    """

    def rows(name: str, change: Callable = dict) -> dict:
        """Return the points of a curve of each run, not more than a panel has pixels."""
        most = min(points_of(runs), width)
        curves = {run["label"]: thinned(change(run[name]), most) for run in runs if run.get(name)}
        points = [
            {"x": step, "y": float(f"{value:.5g}"), "run": label}
            for label, curve in curves.items()
            for step, value in zip(curve["steps"], curve["values"], strict=True)
        ]
        return {"data": {"values": points}}

    ends = [curve["steps"][end] for run in runs for curve in run.values() if isinstance(curve, dict) for end in (0, -1)]
    color: dict[str, Any] = {"field": "run", "type": "nominal", "title": None, "sort": None}
    color["scale"] = {"domain": [run["label"] for run in runs]}
    shown = [name for name in PANELS if any(run.get(name) for run in runs)]
    panels = []
    for name in shown:
        title, scale, axis = PANELS[name]
        high, last = name == "loss", name == shown[-1]
        below = {"labels": last, "ticks": last, "tickCount": max(3, width // 110), "format": ",.0f"}
        beside = {"tickCount": 6 if high else 3, "minExtent": 44, "maxExtent": 44} | axis
        x = {"field": "x", **NUMBER, "title": "step" if last else None, "axis": below}
        x["scale"] = {"domain": [min(ends), max(ends)], "nice": False}
        y = {"field": "y", **NUMBER, "title": title, "axis": beside, "scale": scale}
        layers = [rows(name, mean_of if name in MEANS else dict) | {"mark": {"type": "line", "strokeWidth": 1.6}}]
        if high:
            layers.append(rows("held_out") | {"mark": {"type": "point", "filled": True, "size": 50, "opacity": 1}})
            raw = rows(name) | {"mark": {"type": "line", "strokeWidth": 0.7, "opacity": 0.25}}
            layers[:0] = [raw] if len(runs) <= RAW else []
        height = max(220, min(320, width // 3)) if high else 76
        encoding = {"x": x, "y": y, "color": color | {"legend": {"symbolOpacity": 1} if high else None}}
        panels.append({"width": width - 92, "height": height, "layer": layers, "encoding": encoding})
    return {"vconcat": panels, "spacing": 12, "resolve": {"scale": {"x": "shared"}}}
