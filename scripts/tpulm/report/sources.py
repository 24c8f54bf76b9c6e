"""Read the files of the report's page, and format numbers for it."""

import csv
import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Undefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from tpulm.core.files import read_json
from tpulm.corpus.documents import reason_in_words

# Columns of text, even if it looks like numbers.
NAMES = ("run", "devices", "profile")


class Sources:
    """Access to the files of a page, by name; only these files are read."""

    def __init__(self, files: Mapping[str, Path], linked: bool = True, since: float | None = None):
        """Take the path of each file by its name: relative to results/, or beginning with logs/.

        linked  whether the page is in results/, so that it can link to files
        since   start of the running workflow, Unix time in seconds; None if none runs
        """
        self.files = dict(files)
        self.linked, self.since = linked, since
        self.read: dict[str, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def older(self, name: str) -> bool:
        """Return whether a file was written before the running workflow began."""
        path = self.files.get(name)
        return bool(self.since and path and path.exists() and path.stat().st_mtime < self.since)

    def names(self, pattern: str) -> list[str]:
        """Return the sorted names that match a pattern; * matches anything, / included."""
        return sorted(fnmatch.filter(self.files, pattern))

    def json(self, name: str) -> Any:
        """Return the content of a JSON file; None without the file."""
        if name not in self.read and name in self.files:
            self.read[name] = read_json(self.files[name])
        return self.read.get(name)

    def columns(self, name: str) -> dict[str, list[float | str]]:
        """Return the columns of a CSV file, as `columns_of`; {} without the file."""
        if name not in self.read:
            self.read[name] = columns_of([self.files[name]]) if name in self.files else {}
        return self.read[name]


def columns_of(paths: Iterable[Path]) -> dict[str, list[float | str]]:
    """Return the columns of concatenated CSV files: floats if all cells are numbers or empty (NaN), otherwise text."""
    rows: list[dict[str, str]] = []
    for path in paths:
        with open(path, encoding="utf-8", newline="") as file:
            rows += csv.DictReader(file)
    columns: dict[str, list[float | str]] = {}
    for name in rows[0] if rows else ():
        texts = [row.get(name) or "" for row in rows]
        if name in NAMES:
            columns[name] = list(texts)
            continue
        try:
            columns[name] = [float(text) if text else math.nan for text in texts]
        except ValueError:
            columns[name] = list(texts)
    return columns


def as_script(identifier: str, value: object) -> Markup:
    """Return data as a JSON script element, escaped for HTML."""
    return Markup('<script type="application/json" id="{}">{}</script>').format(identifier, htmlsafe_json_dumps(value))


def figure(value: float) -> str:
    """Return a number with thousands separators: integers in full, others with at most four decimals."""
    if isinstance(value, int) or (abs(value) >= 1e4 and math.isfinite(value)):
        return f"{value:,.0f}"
    if value and abs(value) < 1e-3:
        return f"{value:.2e}"
    decimals = 3 - math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
    return f"{value:,.{max(0, min(decimals, 4))}f}"


def percent(value: float) -> str:
    """Return a share as percent, one decimal."""
    return f"{100 * value:.1f} %"


def change(value: float) -> str:
    """Return a relative change as percent with sign, one decimal."""
    return f"{100 * value:+.1f} %"


def format_duration(value: float) -> str:
    """Return seconds as text in a readable unit, from µs to d, with a decimal below 100."""
    units = {"d": 86400, "h": 3600, "min": 60, "s": 1, "ms": 1e-3, "µs": 1e-6}
    least = {"d": 2 * 86400, "h": 2 * 3600, "min": 2 * 60}
    unit = next((unit for unit in units if value >= least.get(unit, units[unit])), "µs" if value else "s")
    number = value / units[unit]
    return f"{number:,.{0 if number >= 100 else 1}f} {unit}"


def amount(value: float) -> str:
    """Return a count with its unit from a million on: 695,000, 1.40 M."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:,.0f}"


def in_bytes(value: float) -> str:
    """Return a number of bytes with a binary unit: 1.5 GiB."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:,.0f} B"


STYLES: dict[str, Callable[[Any], str]] = {
    "integer": lambda value: f"{value:,.0f}",
    "figure": figure,
    "plain": lambda value: f"{value:g}",
    "percent": percent,
    "change": change,
    "seconds": format_duration,
    "amount": amount,
    "bytes": in_bytes,
}


def format_number(style: str, value: Any) -> str | Markup:
    """Return a number as text in one of STYLES; a dash for None or undefined."""
    if value is None or isinstance(value, Undefined):
        return Markup('<span title="not known">–</span>')
    return STYLES[style](value)


def source_of(corpus: Mapping[str, Any]) -> str:
    """Return a sentence on the source of a corpus."""
    if "sources" in corpus:
        return "Several sources; the weight is how often each training document of a source is used."
    version = f" of Python {corpus['python_version']}" if "python_version" in corpus else ""
    return f"Source: {corpus['source']}{version}."


def drop_reasons(splits: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return (key, words) for each reason for which documents were dropped."""
    keys = dict.fromkeys(key for figures in splits.values() for key in figures if key.startswith("dropped_"))
    return [(key, reason_in_words(key.removeprefix("dropped_"))) for key in keys]
