"""The runs that finished before, as rows of the comparison."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tpulm.config.sweeps import differing
from tpulm.report.comparison import aligned
from tpulm.report.findings import leading


def earlier(kept: Mapping[str, Sequence[dict]], current: Collection[str]) -> tuple[list[dict[str, Any]], list[dict]]:
    """Return the groups, and metrics, that `compared` takes of earlier runs: each is a group by itself.

    kept     what is kept of the runs of each file, whose path ends in the run's folder below results/
    current  the folders of the runs that the config names: of these the last one that is kept is no earlier one
    """
    groups, metrics = [], []
    for path, runs in sorted(kept.items()):
        settings = differing([run["recipe"] for run in runs])
        before, _ = then_and_now(path, runs, current)
        for run, differ in zip(before, settings, strict=False):
            groups.append({"stage": run["stage"], "name": named(run), "runs": 1, "settings": differ})
            metrics.append(run["metrics"])
    return groups, metrics


def then_and_now(path: str, runs: Sequence[dict], current: Collection[str]) -> tuple[Sequence[dict], dict | None]:
    """Return what is kept of earlier runs, and of the last one where it is the run that the config names."""
    if any(path.endswith(f"/{folder}") for folder in current):
        return runs[:-1], runs[-1] if runs else None
    return runs, None


def named(run: Mapping[str, Any]) -> str:
    """Return the name of an earlier run, with the beginning of the hash that tells it from others of that name."""
    return f"{run['name']} {run['hash'][:8]}"


def scores_then_and_now(kept: Mapping[str, Sequence[dict]], current: Collection[str]) -> str:
    """Return the scores of earlier runs as a table of Markdown, beside those of today; empty where none are kept.

    kept, current  as of `earlier`
    """
    cells = [["stage", "run", "score", "then, 95 %", "now", "difference"]]
    for path, runs in sorted(kept.items()):
        before, now = then_and_now(path, runs, current)
        for run in before:
            cells += rows_of_scores(run, now or {})
    return aligned(cells) if len(cells) > 1 else ""


def rows_of_scores(run: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a row for each score of an earlier run; a difference only where as many items were scored.

    now  what is kept of the run that the config names, or nothing
    """
    today = {(score["metric"], score["on"]): score for score in now.get("scores", []) if score["step"] is None}
    for score in run.get("scores", []):
        if score["step"] is not None or not leading(score):
            continue
        limits = "" if score["low"] is None else f" [{score['low']:.4f}, {score['high']:.4f}]"
        name = f"{score['metric'].replace('_', ' ')}: {score['on']}"
        row = [run["stage"], named(run), name, f"{score['value']:.4f}{limits}"]
        other = today.get((score["metric"], score["on"]))
        if other is None:
            yield [*row, "", ""]
        elif other["items"] != score["items"]:
            yield [*row, f"{other['value']:.4f}", f"{score['items']} items then, {other['items']} now"]
        else:
            better = "better" if (other["value"] > score["value"]) == score["higher_is_better"] else "worse"
            gain = other["value"] - score["value"]
            yield [*row, f"{other['value']:.4f}", f"{gain:+.4f} {better}" if gain else "0"]
