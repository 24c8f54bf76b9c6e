"""The files that the report's page tells of, and how their numbers read."""

import csv
import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Undefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from tpulm.core.devices import devices_in_words
from tpulm.core.files import read_json

# The columns that hold names of runs and devices, and what a profile found.
NAMES = ("run", "devices", "profile")


class Sources:
    """The files that a page may be made of; what is not among them is not read."""

    def __init__(self, files: Mapping[str, Path], linked: bool = True, since: float | None = None):
        """Take the path of each file by its name: below results/, or from logs/ on.

        linked  whether the page lies in results/, so that its links to files lead there
        since   when the workflow that is running began, seconds since 1970; None where none is
        """
        self.files = dict(files)
        self.linked, self.since = linked, since
        self.read: dict[str, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def older(self, name: str) -> bool:
        """Return whether a file was written before the workflow that is running began."""
        path = self.files.get(name)
        return bool(self.since and path and path.exists() and path.stat().st_mtime < self.since)

    def names(self, pattern: str) -> list[str]:
        """Return the names that match a pattern, sorted; * stands for anything, folders too."""
        return sorted(fnmatch.filter(self.files, pattern))

    def json(self, name: str) -> Any:
        """Return the content of a JSON file; None where there is no such file."""
        if name not in self.read and name in self.files:
            self.read[name] = read_json(self.files[name])
        return self.read.get(name)

    def columns(self, name: str) -> dict[str, list[float | str]]:
        """Return the columns of a CSV file, with numbers where all of a column are numbers; empty cells are NaN."""
        if name not in self.read:
            self.read[name] = columns_of([self.files[name]]) if name in self.files else {}
        return self.read[name]


def columns_of(paths: Iterable[Path]) -> dict[str, list[float | str]]:
    """Return the columns of CSV files one after the other, as `Sources.columns` does."""
    rows: list[dict[str, str]] = []
    for path in paths:
        with open(path, encoding="utf-8", newline="") as file:
            rows += csv.DictReader(file)
    found: dict[str, list[float | str]] = {}
    for name in rows[0] if rows else ():
        texts = [row.get(name) or "" for row in rows]
        if name in NAMES:  # that may look like numbers
            found[name] = list(texts)
            continue
        try:
            found[name] = [float(text) if text else math.nan for text in texts]
        except ValueError:
            found[name] = list(texts)
    return found


def as_script(identifier: str, value: object) -> Markup:
    """Return data for the page's script, as an element that no text in it can end."""
    return Markup('<script type="application/json" id="{}">{}</script>').format(identifier, htmlsafe_json_dumps(value))


def figure(value: float) -> str:
    """Return a number with four digits that count, thousands apart."""
    if isinstance(value, int) or (abs(value) >= 1e4 and math.isfinite(value)):
        return f"{value:,.0f}"
    if value and abs(value) < 1e-3:
        return f"{value:.2e}"
    decimals = 3 - math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
    return f"{value:,.{max(0, min(decimals, 4))}f}"


def percent(value: float) -> str:
    """Return a share in percent."""
    return f"{100 * value:.1f} %"


def change(value: float) -> str:
    """Return a relative change in percent, with its sign."""
    return f"{100 * value:+.1f} %"


def lasting(value: float) -> str:
    """Return seconds in the unit that reads best."""
    for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60)):
        if value >= 2 * seconds:
            return f"{value / seconds:,.1f} {unit}"
    if value >= 1 or value == 0:
        return f"{value:,.1f} s"
    return f"{1e3 * value:,.1f} ms" if value >= 1e-3 else f"{1e6 * value:,.1f} µs"


def amount(value: float) -> str:
    """Return a count with its magnitude: 695 k, 1.40 M."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:,.0f}"


def in_bytes(value: float) -> str:
    """Return a number of bytes with a binary unit."""
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
    "seconds": lasting,
    "amount": amount,
    "bytes": in_bytes,
}


def format_number(style: str, value: Any) -> str | Markup:
    """Return a number as text, in one of STYLES; a dash where it is not known."""
    if value is None or isinstance(value, Undefined):
        return Markup('<span title="not known">–</span>')
    return STYLES[style](value)


def names_below(paths: Iterable[str | Path], results: str | Path) -> dict[str, Path]:
    """Return files below results/, a folder wherever it is, by their names there."""
    return {Path(path).relative_to(results).as_posix(): Path(path) for path in paths}


def devices_of(recipe: Mapping[str, Any], sources: Sources) -> dict[str, str]:
    """Return on what each run of a page's recipe was trained last, by the folder of its logs; empty where not known."""
    timings = {run["label"]: sources.columns(f"{run['folder']}/timings.csv") for run in recipe["runs"]}
    return {label: devices_in_words(str(columns.get("devices", [""])[-1])) for label, columns in timings.items()}


REASONS = {
    "empty": "empty", "short": "short", "duplicates": "in another split", "near_duplicates": "near-duplicates",
    "contaminated": "contaminated",
}  # fmt: skip


def source_of(corpus: Mapping[str, Any]) -> str:
    """Return where a text is from, in a sentence."""
    if "sources" in corpus:
        return "Several sources; the weight is how often each training document of a source is used."
    version = f" of Python {corpus['python_version']}" if "python_version" in corpus else ""
    return f"Source: {corpus['source']}{version}."


def reasons_of(splits: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return why documents of a text were dropped, as key of its splits and words; the others are names of filters."""
    found = dict.fromkeys(key for figures in splits.values() for key in figures if key.startswith("dropped_"))
    names = {key: key.removeprefix("dropped_") for key in found}
    return [(key, REASONS.get(name, name.replace("_", " "))) for key, name in names.items()]
