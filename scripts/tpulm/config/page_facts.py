"""What the report's page takes of the config: which runs, texts and records there are, and what a job costs."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tpulm.config.runs import Run


def page_recipe(
    config: Mapping,
    runs: Iterable[Run],
    texts: Iterable[str],
    rules: Mapping[str, str],
    prefixed: Callable[[str], str] = str,
) -> dict[str, Any]:
    """Return what the page is made from beside files.

    texts     collections: folders below results/ that have a corpus.json
    rules     the stage of each rule, by its name
    prefixed  gives a path the prefix of the module that this workflow is, if it is one
    """
    return {
        "title": config["title"],
        "runs": [page_run(run, prefixed) for run in runs],
        "texts": list(texts),
        "prices": dict(config["plan"]["prices"]),
        "cpu_threads": config["cpu_threads"],
        "cpu_watts": config["report"]["cpu_watts"],
        "cpu_price": config["report"]["cpu_price"],
        "rules": dict(rules),
    }


def page_run(run: Run, prefixed: Callable[[str], str]) -> dict[str, Any]:
    """Return stage and name of a run, its label, its folder below results/, and the log that grows while it trains.

    Of a finetuned model also base, the label of what it was made of.
    """
    of = {"base": f"base/{run.recipe['base']}"} if run.stage == "finetune" else {}
    return of | {
        "stage": run.stage,
        "name": run.name,
        "label": f"{run.stage}/{run.name}",
        "folder": run.folder.removeprefix("results/"),
        "log": prefixed(f"logs/{run.stage}/{run.name}/metrics.jsonl"),
    }
