"""Build the template contexts of the page's sections on training, quality, comparison of runs, plans and jobs.

Each context is for the template of report/page/ of the same name; see tpulm.report.data_section.
"""

import json
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from tpulm.core.devices import devices_in_words
from tpulm.core.experiments import CONFIG, directory_option, from_workflow
from tpulm.report import charts, svg
from tpulm.report.curves import curves_of, first_measures, over_tokens, parameters_of
from tpulm.report.jobs import PAUSE
from tpulm.report.sources import Sources, format_duration
from tpulm.report.tables import HEAD, notes_of, plan_name, rows_of, show, title_of
from tpulm.report.verdicts import verdicts
from tpulm.specs.artifacts import CHECKPOINT_FILES, TRAINED_ON
from tpulm.specs.scores import BASE, LOSS, scores_in

MODEL_OF_STAGE = {"mlm": "a masked language model", "base": "a causal language model", "finetune": "a finetuned model"}
PUBLISHED = "compare/published.json"
LOSSES = {"mlm": "nats per masked token", "base": "nats per token", "finetune": "nats per token"}


def describe_runs(recipe: Mapping[str, Any], sources: Sources) -> list[dict[str, Any]]:
    """Return every run of the page's recipe with its metrics, state, timings and devices."""
    runs = []
    for run in recipe["runs"]:
        metrics, timings = (f"{run['folder']}/{file}" for file in ("metrics.json", "timings.csv"))
        states = sources.names(f"{run['folder']}/checkpoints/*/{CHECKPOINT_FILES['state']}")
        figures, state, measured = sources.json(metrics) or {}, states[-1] if states else "", sources.columns(timings)
        runs.append(
            run
            | {
                "kind": MODEL_OF_STAGE[run["stage"]],
                "metrics": metrics,
                "timings": timings,
                "files": [file for file in (metrics, state, timings) if file in sources],
                "figures": figures,
                "losses": scores_in(figures) if figures else [],
                "state": sources.json(state) or {},
                "parameters": parameters_of(figures),
                "seconds": middle(measured.get("seconds_per_step")),
                "speed": middle(measured.get("tokens_per_second")),
                "operations": operations_of(measured),
                "devices": devices_in_words(str(measured.get("devices", [""])[-1])),
            }
        )
    return runs


def demo(recipe: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the command that opens the demo of the evaluated models; None without any."""
    folders = [f"{recipe['results']}/{run['folder']}" for run in runs if run["figures"]]
    return f"python tools/demo.py {directory_option()}{' '.join(folders)}" if folders else None


def next_run(recipe: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the file of the config, and the command that runs the workflow after a change to it; None for a module."""
    files, option = list(map(from_workflow, recipe["configfiles"])), directory_option()
    if recipe["configfiles"] == [str(CONFIG)]:
        return files[0], f"snakemake {option}".strip()
    return (files[-1], f"snakemake {option}--configfile {' '.join(files)}") if files else None


def middle(values: list | None) -> float | None:
    """Return the median of a column; None without values."""
    return median(values) if values else None


def operations_of(timings: Mapping[str, list]) -> list[tuple[str, str, float]]:
    """Return (steps, operation, share of time) for the costliest operations of each profile in timings."""
    operations = []
    for profile in (json.loads(text) for text in timings.get("profile", []) if text):
        first, last = profile["steps"]
        operations += [(f"{first} to {last}", name, share) for name, share in profile["operations"]]
    return operations


def training(runs: list[dict[str, Any]], sources: Sources) -> dict[str, Any]:
    """Return the context of the training section: the curves of all runs that have begun."""
    curves = [{key: run[key] for key in ("stage", "name", "label")} | curves_of(run, sources) for run in runs]
    curves = [run for run in curves if run["loss"]]
    return {
        "files": [file for run in curves for file in run.pop("files")],
        "curves": {width: charts.training_panels(curves, width) for width in (svg.WIDE, svg.NARROW)} if curves else {},
        "points": [
            {
                key: charts.thinned(value, charts.points_of(curves)) if isinstance(value, dict) else value
                for key, value in run.items()
            }
            for run in curves
        ],
        "runs": runs,
        "phases": [(run["label"], run["phases"], charts.shares(run["phases"])) for run in runs if "phases" in run],
        "unpromised": [run["label"] for run in runs if not run["figures"].get("bytes_promised", True)],
    }


def quality(
    runs: list[dict[str, Any]], scores: Sequence[dict[str, Any]], losses: Sequence[dict[str, Any]], sources: Sources
) -> dict[str, Any]:
    """Return the context of the quality section; scores, losses  from `curves.final_scores` and `curves.losses_of`."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for row in (row for row in scores if row["score"].leads):
        score = row["score"]
        groups.setdefault((score.group, score.metric, score.on), []).append(row)
    quality_charts = [
        {
            "metric": metric,
            "on": on,
            "higher": rows[0]["score"].higher_is_better,
            "files": [row["file"] for row in rows],
            "spec": charts.intervals(
                [charts.point_of(row["model"], row["score"]) for row in rows],
                [
                    {"name": row["model"], "value": value, "which": name}
                    for row in rows
                    for name, value in row["score"].compared_with.items()
                ],
                metric.replace("_", " "),
            ),
        }
        for (_, metric, on), rows in groups.items()
    ]
    return {
        "charts": quality_charts,
        "over_tokens": over_tokens(runs, sources),
        "scores": scores,
        "files": list(dict.fromkeys(row["file"] for row in scores)),
        "losses": losses,
        "published": sources.json(PUBLISHED) or [],
        "published_file": PUBLISHED,
    }


def summary(
    runs: list[dict[str, Any]], scores: Sequence[dict[str, Any]], losses: Sequence[dict[str, Any]], sources: Sources
) -> dict[str, Any]:
    """Return the context of the summary; scores, losses  as in `quality`."""
    totals = sources.json("jobs.json")["totals"]
    best = best_of(runs, scores, losses)
    return {
        "verdicts": verdicts(runs, scores, sources),
        "runs": runs,
        "best": best,
        "files": list(dict.fromkeys(row["file"] for row in best)),
        "totals": totals,
        "unknown_power": ", ".join(totals["unknown_power"]),
    }


def best_of(
    runs: list[dict[str, Any]], scores: Sequence[dict[str, Any]], losses: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the rows of the summary's table: the main scores of each model, or its test losses if it has no scores."""
    rows = []
    labels = {run["label"]: number for number, run in enumerate(runs)}
    leaders = first_measures(scores)
    scored = {row["model"] for row in leaders}
    texts = {run["label"]: TRAINED_ON[run["stage"]] for run in runs}
    leaders += [
        row
        for row in first_measures(losses)
        if row["model"] not in scored and row["score"].set == texts.get(row["model"])
    ]
    for row in sorted(leaders, key=lambda row: labels.get(row["model"], len(labels))):
        metric = row["score"].metric
        unit = LOSSES[row["model"].partition("/")[0]] if metric == LOSS else metric.replace("_", " ")
        baselines = row["score"].baselines
        baseline = (BASE, baselines[BASE]) if BASE in baselines else row["score"].best_baseline
        rows.append(row | {"unit": unit, "baseline": baseline or ("", None)})
    return rows


def compared_runs(sources: Sources) -> dict[str, Any]:
    """Return the context of the comparison of runs, for stages with several runs or seeds."""
    file = "compare/runs.csv"
    columns = sources.columns(file) if file in sources else {}
    stages = [str(stage) for stage in columns.get("stage", [])]
    groups = []
    for number, stage in enumerate(stages):
        row: dict[str, Any] = {name: column[number] for name, column in columns.items()}
        if stages.count(stage) > 1 or row["seeds"] > 1:
            settings = str(row["settings"]) if isinstance(row["settings"], str) else ""
            groups.append(row | {"settings": settings.split(), "several": row["seeds"] > 1})
    stage_charts = [
        {"stage": stage, "spec": spread([row for row in groups if row["stage"] == stage])}
        for stage in dict.fromkeys(row["stage"] for row in groups)
    ]
    return {"groups": groups, "charts": stage_charts, "file": file}


def spread(rows: list[dict[str, Any]]) -> dict:
    """Return a chart of the test losses of groups of runs, with one standard deviation to both sides."""
    points = []
    for row in rows:
        mean, deviation = row["test_loss"], row["test_loss_std"] if row["several"] else None
        low, high = (None, None) if deviation is None else (mean - deviation, mean + deviation)
        points.append({"name": row["run"], "value": mean, "low": low, "high": high})
    return charts.intervals(points, [], "loss on the test split, nats per token")


def plans(runs: list[dict[str, Any]], sources: Sources) -> dict[str, Any]:
    """Return the context of the plan section: plans and measured step times."""
    by_label = {run["label"]: run for run in runs}
    plan_by_file = {file: sources.json(file) for file in sources.names("plan/*/*/*.json")}
    plan_by_file = {file: plan for file, plan in plan_by_file.items() if "task" in plan or plan_name(plan) in by_label}
    rows = []
    for plan in plan_by_file.values():
        run = {} if "task" in plan else by_label[plan_name(plan)]
        for number, row in enumerate(rows_of([plan])):
            measured = {"seconds": run.get("seconds"), "devices": run.get("devices")} if number == 0 else {}
            rows.append({"cells": [show(cell) for cell in row]} | measured)
    planned = [plan | {"name": title_of(plan)} for plan in plan_by_file.values() if plan["planned"]]
    return {
        "files": list(plan_by_file),
        "head": HEAD,
        "rows": rows,
        "notes": notes_of(plan_by_file.values()),
        "planned": planned,
        "timed": [plan for plan in planned if plan["estimated_seconds"]],
    }


def jobs(recipe: Mapping[str, Any], sources: Sources) -> dict[str, Any]:
    """Return the context of the jobs section: the timeline without pauses, and the time by rule."""
    account = sources.json("jobs.json")
    stages = recipe["rules"]

    def on_axis(time: float) -> float:
        """Return a time without the pauses before it; a tenth of PAUSE remains of each, to be visible."""
        before = (pause["seconds"] for pause in account["pauses"] if pause["after"] < time)
        return round(time - sum(seconds - PAUSE / 10 for seconds in before), 3)

    rows, failed = [], []
    for job in account["jobs"]:
        started = on_axis(job["started"])
        times = {"ready": max(round(started - min(job["waited"], PAUSE), 3), 0.0), "started": started}
        times["ended"] = round(started + job["seconds"], 3)
        name = f"{job['rule']} {job['of']}".strip()
        said = f"{name}: {format_duration(job['seconds'])}"
        rows.append({"rule": job["rule"], "said": said, "stage": stages.get(job["rule"], "other")} | times)
        failed += [
            {"rule": job["rule"], "said": name, "failed": on_axis(attempt["ended"] or attempt["started"])}
            for attempt in job.get("failed", [])
        ]
    rules = sorted(account["rules"], key=lambda name: -account["rules"][name]["seconds"])
    return {
        "jobs": rows,
        "totals": account["totals"],
        "timeline": charts.timeline(rows, failed),
        "pauses": account["pauses"],
        "rules": [account["rules"][name] | {"name": name, "stage": stages.get(name, "other")} for name in rules],
    }
