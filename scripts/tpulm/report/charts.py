"""Build charts of the report as Vega-Lite specifications (Satyanarayan et al. 2017), and write them as SVG."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tpulm.core.files import atomic_write
from tpulm.specs.scores import Score

NUMBER = {"type": "quantitative"}
LIGHT, BLUE, ORANGE, GREY = "#c1d4e7", "#2f6fb0", "#d1701f", "#8a94a0"
CROSS = "#c8511b"  # readable on light and on dark
SHAPES = ["cross", "diamond", "square", "triangle-up", "triangle-down", "triangle-right", "triangle-left"]
FEW = 40  # bars; up to so many, each has a label


def bars(
    rows: Iterable[Mapping[str, Any]], x: str, y: str, titles: tuple[str, str], stack_by: str | None = None
) -> dict:
    """Return bars of height y over the integers in column x; the column `stack_by` stacks them by color."""
    stack = {"field": stack_by, "type": "nominal", "title": None, "sort": None, "legend": {"orient": "top"}}
    color = {"color": stack} if stack_by else {}
    return {
        "data": {"values": list(rows)},
        "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "x": {"field": x, "type": "ordinal", "title": titles[0], "axis": {"labelAngle": 0, "labelOverlap": True}},
            "y": {"field": y, **NUMBER, "title": titles[1]},
            **color,
        },
    }


def many_bars(values: Sequence[float], titles: tuple[str, str]) -> dict:
    """Return a bar for each value; more than 100 have no gaps, so that they read as an outline."""
    if len(values) <= FEW:
        rows = [{"x": number, "y": value} for number, value in enumerate(values)]
        return bars(rows, "x", "y", titles) | {"height": 110}
    rows = [{"x": number, "to": number + 1, "y": value} for number, value in enumerate(values)]
    gap = {"binSpacing": 1} if len(values) <= 100 else {"binSpacing": 0}
    return {
        "data": {"values": rows},
        "mark": {"type": "bar", "tooltip": {"content": "encoding"}, **gap},
        "encoding": {
            "x": {
                "field": "x",
                **NUMBER,
                "bin": "binned",
                "title": titles[0],
                "axis": {"tickMinStep": 1, "grid": False},
            },
            "x2": {"field": "to"},
            "y": {"field": "y", **NUMBER, "title": titles[1]},
        },
    }


def intervals(rows: Sequence[Mapping[str, Any]], baselines: Sequence[Mapping[str, Any]], title: str) -> dict:
    """Return points with intervals, one row for each name, and baselines as marks of different shapes.

    rows       name, value, low, high (None without an interval)
    baselines  name, value, which
    """
    y = {"field": "name", "type": "nominal", "title": None, "sort": None, "axis": {"labelLimit": 220}}
    legend = {"orient": "top", "symbolFillColor": CROSS, "symbolStrokeColor": CROSS}
    shape = {"field": "which", "type": "nominal", "title": None, "sort": None, "scale": {"range": SHAPES}}
    scale = {"zero": False, "nice": False, "padding": 12}
    x = {"field": "value", **NUMBER, "title": title, "scale": scale, "axis": {"tickCount": 8}}
    point = {"type": "point", "filled": True, "opacity": 1, "tooltip": {"content": "data"}}
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
            "mark": {"type": "area", "opacity": 0.15},
            "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": color},
        },
        {
            "data": {"values": points},
            "mark": {"type": "line", "point": True, "tooltip": {"content": "data"}},
            "encoding": {"x": x, "y": y, "color": color},
        },
        {
            "data": {"values": [{"value": chance} for chance in sorted(chances)]},
            "mark": {"type": "rule", "strokeDash": [3, 3], "color": GREY},
            "encoding": {"y": {"field": "value", **NUMBER}},
        },
    ]
    return {"layer": layers if chances else layers[:2]}


def shares(rows: Sequence[Mapping[str, Any]]) -> dict:
    """Return stacked bars of memory; rows  name, part, share of the device's memory. A line marks the whole of it."""
    y = {"field": "name", "type": "nominal", "title": None, "sort": None, "axis": {"labelLimit": 220}}
    return {
        "height": 26 * len({row["name"] for row in rows}),
        "layer": [
            {
                "data": {"values": rows},
                "mark": {"type": "bar", "tooltip": True},
                "encoding": {
                    "y": y,
                    "x": {"field": "share", **NUMBER, "title": "share of device memory", "axis": {"format": "%"}},
                    "color": {"field": "part", "type": "nominal", "title": None, "legend": {"orient": "top"}},
                },
            },
            {"data": {"values": [{"share": 1}]}, "mark": "rule", "encoding": {"x": {"field": "share", **NUMBER}}},
        ],
    }


def timeline(jobs: Sequence[Mapping[str, Any]], failed: Sequence[Mapping[str, Any]]) -> dict:
    """Return a row for each rule, with a bar for each job and a cross for each failed attempt.

    jobs    rule, of, stage, ready, started, ended (seconds)
    failed  rule, of, failed (seconds)
    """
    y = {"field": "rule", "type": "nominal", "title": None, "sort": None, "axis": {"labelLimit": 220}}
    x = {"field": "started", **NUMBER, "title": "seconds since the start of the first job", "axis": {"tickCount": 10}}
    color = {"field": "stage", "type": "nominal", "title": None, "sort": None, "legend": {"orient": "top"}}
    bar = {"type": "bar", "tooltip": {"content": "data"}, "height": {"band": 0.8}, "minBandSize": 2}
    waiting = {"y": y, "x": x | {"field": "ready"}, "x2": {"field": "started"}}
    return {
        "data": {"values": jobs},
        "height": 17 * len({job["rule"] for job in jobs}),
        "layer": [
            {"mark": {"type": "rule", "opacity": 0.35}, "encoding": waiting},
            {"mark": bar, "encoding": {"y": y, "x": x, "x2": {"field": "ended"}, "color": color}},
            {
                "data": {"values": failed},
                "mark": {
                    "type": "point",
                    "shape": "cross",
                    "filled": True,
                    "angle": 45,
                    "tooltip": {"content": "data"},
                },
                "encoding": {"y": y, "x": x | {"field": "failed"}, "color": {"value": CROSS}},
            },
        ],
    }


CONFIG = {
    "font": "Liberation Sans",  # part of vl-convert: a figure is the same on every machine
    "background": "white",
    "view": {"stroke": None},
    "axis": {"gridColor": "#e4e7eb", "domainColor": "#9aa5b1", "labelColor": "#52606d", "titleColor": "#52606d"},
    "legend": {"orient": "top", "labelLimit": 400, "symbolType": "stroke", "symbolStrokeWidth": 2},
    "title": {"anchor": "start"},
}


def save_svg(spec: dict[str, Any], path: str) -> None:
    """Render a Vega-Lite specification and write it as SVG."""
    import vl_convert

    svg = vl_convert.vegalite_to_svg({"width": 620, **spec}, config=CONFIG)
    with atomic_write(path) as partial:
        partial.write_text(svg, encoding="utf-8")
