"""Reads a report as a skeptic does: every number against the file that it names, without the code that wrote it."""

import csv
import json
import math
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

UNITS = {
    "%": 0.01, "s": 1, "ms": 1e-3, "µs": 1e-6, "min": 60, "h": 3600, "d": 86400, "k": 1e3, "M": 1e6, "G": 1e9,
    "T": 1e12, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
MADE = {
    "value": lambda one: one,
    "length": len,
    "median": statistics.median,
    "difference": lambda one, other: one - other,
    "change": lambda before, after: (after - before) / before,
}
# Elements whose text is not prose: code, samples of text, names, data for scripts, drawings.
NOT_PROSE = {"code", "pre", "script", "style", "svg", "data", "title"}
VOID = {"meta", "link", "input", "br", "hr", "img"}


class Page(HTMLParser):
    """A page: numbers, as (attributes, text), the data of scripts and charts, and the rest of its prose."""

    def __init__(self, text: str):
        super().__init__()
        self.numbers, self.prose, self.scripts, self.charts = [], [], {}, []
        self.stack: list[tuple[str, dict]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag not in VOID:
            self.stack.append((tag, found))
        if "data-source" in found:
            self.numbers.append([found, ""])

    def handle_endtag(self, tag):
        while self.stack and self.stack.pop()[0] != tag:
            pass

    def handle_data(self, text):
        if self.stack and "data-source" in self.stack[-1][1]:
            self.numbers[-1][1] += text
        inside = {tag for tag, _ in self.stack}
        named = any("name" in (found.get("class") or "").split() for _, found in self.stack)
        if inside & {"script"} and self.stack[-1][1].get("id"):
            self.scripts[self.stack[-1][1]["id"]] = json.loads(text)
        elif inside & {"script"} and self.stack[-1][1].get("type") == "application/json":
            self.charts.append(json.loads(text))
        if not inside & NOT_PROSE and not named:
            self.prose.append(text)


def value_of(source: str, results: Path):
    """Return what a source points at."""
    name, _, pointer = source.partition("#")
    if name.endswith(".csv"):
        with open(results / name, newline="") as file:
            rows = list(csv.DictReader(file))
        if pointer.startswith("/"):
            _, row, column = pointer.split("/")
            return float(rows[int(row)][column])
        return [float(row[pointer]) for row in rows]
    found = json.loads((results / name).read_text())
    for part in unquote(pointer).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        found = found[int(part) if isinstance(found, list) else part]
    return found


def check(found: dict, text: str, results: Path) -> None:
    """Assert that a number is what its sources say, and that its text is this number, rounded."""
    sources = found["data-source"].split()
    made = MADE[found.get("data-how", "value")](*[value_of(source, results) for source in sources])
    value = float(found.get("value") or found["data-value"])
    assert math.isclose(value, made, rel_tol=1e-12), (found, made)
    shown = re.fullmatch(r"[ ×]*([+-]?[\d,]+(?:\.(\d+))?)(?:e([+-]\d+))? ?(\S*)", text)
    assert shown, (found, text)
    scale = UNITS[shown[4]] if shown[4] else 1
    if shown[3]:
        scale *= 10.0 ** int(shown[3])
    unit = scale * 10.0 ** -len(shown[2] or "")
    assert abs(float(shown[1].replace(",", "")) * scale - value) <= unit / 2 * (1 + 1e-9) + 1e-15, (found, text)


def check_chart(spec: dict, results: Path) -> int:
    """Assert that points with intervals, and their baselines, are what their sources say. Returns their number."""
    rows = [row for layer in spec.get("layer", []) for row in layer.get("data", {}).get("values", [])]
    points = [row for row in rows if {"low", "which"} & set(row)]
    for row in points:
        assert row["value"] == value_of(row["source"], results), row
        for limit, side in (("low", -1), ("high", 1)):
            if row.get(limit) is None:
                continue
            if row["source"].partition("#")[0].endswith(".csv"):  # a standard deviation to both sides
                known = row["value"] + side * value_of(f"{row['source']}_std", results)
            else:
                known = value_of(f"{row['source'].removesuffix('value')}{limit}", results)
            assert math.isclose(row[limit], known, rel_tol=1e-12), row
    return len(points)
