"""Reads a report as a skeptic does: every number in its tables is one of the files that the table links to."""

import csv
import json
import math
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

UNITS = {
    "%": 0.01, "s": 1, "ms": 1e-3, "µs": 1e-6, "min": 60, "h": 3600, "d": 86400, "M": 1e6, "G": 1e9, "T": 1e12, "B": 1,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
NUMBER = re.compile(r"([+-]?\d+(?:,\d{3})*(?:\.(\d+))?)(?:e([+-]\d+))?(?: (%|[a-zµ]+|[A-Z]i?B?)(?!\w))?", re.I)
# Columns whose numbers are made of several of a file.
MADE = {"learned from context", "difference", "change", "share"}
# What a plan says beside its memory.
PLANNED = {
    "estimated_seconds": 0.5, "lower_bound_seconds": 0.25, "bound_by": "compute", "tokens_per_second": 1024.0,
    "model_flops_utilisation": 0.31, "cost_of_run": 12.5, "sentence": "", "mesh": {"data": 8},
    "cost": {"flops": 3e12, "bytes": 2**32, "collective_bytes": {"all-reduce": 2**20}},
    "seconds": {"compute": 0.25, "memory": 0.125, "interconnect": 0.0625}, "alternatives": [],
}  # fmt: skip
VOID = {"meta", "link", "input", "br", "hr", "img"}


class Page(HTMLParser):
    """A page: the files, heads and rows of its tables, the files of its figures, data of scripts and charts."""

    def __init__(self, text: str):
        super().__init__()
        self.tables, self.figures, self.scripts, self.charts, self.links = [], [], {}, [], []
        self.stack: list[tuple[str, dict]] = []
        self.feed(text)
        self.close()

    def within(self, tag: str) -> bool:
        return any(tag == one for one, _ in self.stack)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag == "table":
            self.tables.append({"files": [], "head": [], "rows": []})
        elif tag == "figure":
            self.figures.append([])
        elif tag == "tr" and self.within("tbody"):
            self.tables[-1]["rows"].append([])
        elif tag in ("th", "td"):
            cells = self.tables[-1]["rows"][-1] if self.within("tbody") else self.tables[-1]["head"]
            cells.append([found.get("class") or "", ""])
        elif tag == "a" and "://" not in found["href"] and not found["href"].startswith("#"):
            file = unquote(found["href"])
            self.links.append(file)
            if self.within("figure"):
                self.figures[-1].append(file)
            elif self.within("caption"):
                self.tables[-1]["files"].append(file)
        if tag not in VOID:
            self.stack.append((tag, found))

    def handle_endtag(self, tag):
        while self.stack and self.stack.pop()[0] != tag:
            pass

    def handle_data(self, text):
        tag, found = self.stack[-1] if self.stack else ("", {})
        if tag == "script" and found.get("type") == "application/json":
            data = json.loads(text)
            if found.get("id"):
                self.scripts[found["id"]] = data
            else:
                self.charts.append(data)
        elif self.within("th") or self.within("td"):
            cells = self.tables[-1]["rows"][-1] if self.within("tbody") else self.tables[-1]["head"]
            cells[-1][1] += text


def numbers_of(file: Path) -> list[float]:
    """Return all numbers of a file, of lists also how long they are, and of columns the median."""
    if file.suffix == ".csv":
        found = []
        for column in zip(*list(csv.reader(file.open(newline="")))[1:], strict=True):
            if all(re.fullmatch(r"[-+.e\d]*", cell) for cell in column) and any(column):
                values = [float(cell) for cell in column if cell]
                found += [*values, statistics.median(values)]
        return found
    return list(inside(json.loads(file.read_text())))


def inside(value):
    if isinstance(value, list | dict):
        yield len(value)
        for one in value.values() if isinstance(value, dict) else value:
            yield from inside(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def check(text: str, known: list[float], said: object) -> int:
    """Assert that every number of a text is, rounded, one that is known. Returns how many there are."""
    count = 0
    for found in NUMBER.finditer(text):
        scale = UNITS.get(found[4] or "", 1) * 10.0 ** int(found[3] or 0)
        value = float(found[1].replace(",", "")) * scale
        close = scale * 10.0 ** -len(found[2] or "") / 2 * (1 + 1e-9) + 1e-15
        assert any(abs(value - one) <= close for one in known), (text, said)
        count += 1
    return count


def check_page(page: Page, results: Path) -> int:
    """Assert that tables and figures link to files, and that these have what tables and charts show.

    Returns how many numbers there are.
    """
    count = 0
    known = {file: numbers_of(results / file) for file in page.links}
    for table in page.tables:
        own = [0.0, *(number for file in table["files"] for number in known[file])]  # what is not there is none
        for row in table["rows"]:
            for (_, head), (kind, text) in zip(table["head"], row, strict=False):
                if "number" in kind.split() and head not in MADE:
                    count += check(text, own, (table["files"], head))
    every = [number for numbers in known.values() for number in numbers]
    return count + sum(check_chart(spec, every) for spec in page.charts)


def check_chart(spec: dict, known: list[float]) -> int:
    """Assert that points with intervals, and their baselines, are numbers that are known. Returns their number."""
    rows = [row for layer in spec.get("layer", []) for row in layer.get("data", {}).get("values", [])]
    points = [row for row in rows if {"low", "which"} & set(row)]
    for row in points:
        values = [row["value"]]
        if row.get("low") is not None:
            both = [row["low"], row["high"]]
            half = (row["high"] - row["low"]) / 2  # a standard deviation to both sides
            values += [half] if any(math.isclose(half, one, rel_tol=1e-9) for one in known) else both
        assert all(any(math.isclose(value, one, rel_tol=1e-9) for one in known) for value in values), row
    return len(points)
