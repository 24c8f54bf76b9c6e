"""The runs that finished before, as rows of the comparison."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tpulm.config.sweeps import differing


def earlier(kept: Mapping[str, Sequence[dict]], current: Collection[str]) -> tuple[list[dict[str, Any]], list[dict]]:
    """Return the groups, and metrics, that `compared` takes of earlier runs: each is a group by itself.

    kept     what is kept of the runs of each file, whose path ends in the run's folder below results/
    current  the folders of the runs that the config names: of these the last one that is kept is no earlier one
    """
    groups, metrics = [], []
    for path, runs in sorted(kept.items()):
        settings = differing([run["recipe"] for run in runs])
        named = any(path.endswith(f"/{folder}") for folder in current)
        for run, differ in list(zip(runs, settings, strict=True))[: len(runs) - named]:
            groups.append(
                {"stage": run["stage"], "name": f"{run['name']} {run['hash'][:8]}", "runs": 1, "settings": differ}
            )
            metrics.append(run["metrics"])
    return groups, metrics
