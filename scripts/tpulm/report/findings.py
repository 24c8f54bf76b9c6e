"""What the page says of how good the models are, what they cost, and how runs compare.

Each function returns what a template of the same name in report/page/ shows; see tpulm.report.story.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tpulm.config.artifacts import CHECKPOINT_FILES
from tpulm.core.scores import CHANCE, Score, verdict
from tpulm.report import charts
from tpulm.report.curves import curves_of
from tpulm.report.graph import acyclic, drawing, reduced
from tpulm.report.jobs import PAUSE
from tpulm.report.plan_table import name_of
from tpulm.report.score_curves import over_tokens
from tpulm.report.sources import Sources, devices_of, pointer

KINDS = {"mlm": "a masked language model", "base": "a causal language model", "finetune": "a finetuned model"}
METRIC = {"loss": "nats per token", "masked": "nats per masked token"}


def described(recipe: Mapping[str, Any], sources: Sources) -> list[dict[str, Any]]:
    """Return every run with the places of what is known of it."""
    runs, devices = [], devices_of(recipe, sources)
    for run in recipe["runs"]:
        metrics, timings = (f"{run['folder']}/{file}" for file in ("metrics.json", "timings.csv"))
        states = sources.names(f"{run['folder']}/checkpoints/*/{CHECKPOINT_FILES['state']}")
        figures = sources.json(metrics) or {}
        key = next((key for key in ("parameters", "total_parameters") if key in figures), None)
        runs.append(
            run
            | {
                "kind": KINDS[run["stage"]],
                "metrics": metrics,
                "timings": timings,
                "state": states[-1] if states else "",
                "parameters": f"{metrics}#/{key}" if key else None,
                "trainable": f"{metrics}#/trainable_share" if "trainable_share" in figures else None,
                "has_steps": "steps" in figures,
                "texts": list(figures.get("loss", {})),
                "measured": bool(figures),
                "devices": devices[run["label"]],
            }
        )
    return runs


def training(runs: list[dict[str, Any]], sources: Sources) -> dict[str, Any]:
    """Return the curves of all runs that have begun."""
    found = [pick(run) | curves_of(run, sources) for run in runs]
    return {"curves": {"runs": [run for run in found if run["loss"]]}, "runs": runs}


def pick(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a curve says of its run."""
    return {key: run[key] for key in ("stage", "name", "label")}


def quality(runs: list[dict[str, Any]], sources: Sources) -> dict[str, Any]:
    """Return all scores, and the metrics of each stage."""
    scores = scores_of(sources)
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for row in filter(leading, scores):
        groups.setdefault((row["group"], row["metric"], row["on"]), []).append(row)
    found = [
        {
            "metric": metric,
            "on": on,
            "higher": rows[0]["higher"],
            "spec": charts.intervals(
                [{"name": row["model"]} | row["numbers"] for row in rows],
                [{"name": row["model"]} | found for row in rows for found in row["baseline_numbers"]],
                metric.replace("_", " "),
            ),
        }
        for (_, metric, on), rows in groups.items()
    ]
    stages = {stage: [run for run in runs if run["stage"] == stage and run["measured"]] for stage in KINDS}
    return {
        "charts": found,
        "over_tokens": over_tokens(runs, sources),
        "scores": scores,
        "masked": stages["mlm"],
        "base": stages["base"],
        "tuned": stages["finetune"],
    }


def scores_of(sources: Sources) -> list[dict[str, Any]]:
    """Return every score of the evaluations that measured the models that runs end with."""
    rows = []
    for file in sources.names("evaluation/*/scores.json"):
        found = sources.json(file)
        for number, said in enumerate(found["scores"]):
            score = Score(**said)
            if score.step is not None:
                continue
            at = f"{file}#{pointer('scores', number)}"
            baselines = {name: at + pointer("baselines", name) for name in score.baselines}
            limits = {"value": score.value, "low": score.low, "high": score.high, "source": f"{at}/value"}
            rows.append(
                {
                    "score": score,
                    "model": found["model"].replace("base-training/", "base/", 1),
                    "metric": score.metric,
                    "group": score.group,
                    "on": score.on,
                    "higher": score.higher_is_better,
                    "interval": score.low is not None,
                    "chance": score.chance is not None,
                    "at": at,
                    "baselines": list(baselines.items()),
                    "numbers": limits,
                    "baseline_numbers": [
                        {"value": value, "which": name, "source": baselines[name]}
                        for name, value in score.baselines.items()
                    ],
                }
            )
    return rows


def leading(row: Mapping[str, Any]) -> bool:
    """Return whether a row of `scores_of` stands for the others."""
    return row["score"].leads


def first_measures(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return of the rows of each model on each set the first, whose measure the set is known by."""
    found: dict[tuple, dict[str, Any]] = {}
    for row in rows:
        found.setdefault((row["model"], row["group"], row["on"]), row)
    return list(found.values())


def summary(runs: list[dict[str, Any]], sources: Sources) -> dict[str, Any]:
    """Return the first screen."""
    totals = sources.json("jobs.json")["totals"]
    return {
        "runs": runs,
        "best": best_of(runs, sources),
        "counted": totals["jobs"] > 0,
        "price_known": totals["price"] is not None,
        "unknown_power": ", ".join(totals["unknown_power"]),
    }


def best_of(runs: list[dict[str, Any]], sources: Sources) -> list[dict[str, Any]]:
    """Return the rows of the first table: scores of text, of pairs and of tasks, or else the losses on test text."""
    rows = []
    labels = {run["label"]: number for number, run in enumerate(runs)}
    leaders = first_measures(filter(leading, scores_of(sources)))
    for row in sorted(leaders, key=lambda row: labels.get(row["model"], len(labels))):
        score, named = row["score"], dict(row["baselines"]) | {CHANCE: f"{row['at']}/chance"}
        rivals = sorted(score.rivals.items(), key=lambda item: item[1], reverse=score.higher_is_better)
        which, value = rivals[0] if rivals else ("", None)
        limits = {key: f"{row['at']}/{key}" if row["interval"] else None for key in ("low", "high")}
        shown = best_row(row["model"], row["on"], row["metric"], f"{row['at']}/value", named.get(which), which)
        rows.append(shown | limits | {"verdict": "" if value is None else score.beside(value)})
    for run in runs:
        if not run["measured"] or any(row["model"] == run["label"] for row in rows):
            continue
        at = f"{run['metrics']}#"
        if run["stage"] == "finetune":
            at += "/loss/finetune_test"
            which = "its base model"
            rows.append(
                best_row(
                    run["label"], "text to finetune on", METRIC["loss"], f"{at}/after/loss", f"{at}/before/loss", which
                )
            )
        elif run["stage"] == "mlm":
            which = "unigram entropy"
            rows.append(
                best_row(
                    run["label"], "corpus", METRIC["masked"], f"{at}/test/loss", f"{at}/test/unigram_entropy", which
                )
            )
        else:
            rows.append(best_row(run["label"], "corpus", METRIC["loss"], f"{at}/test/loss", None, ""))
    for row in rows:
        if row["baseline"] and "verdict" not in row:
            row["verdict"] = verdict(sources.value(row["source"]), sources.value(row["baseline"]), False, None, None)
    return rows


def best_row(model: str, on: str, metric: str, source: str, baseline: str | None, which: str) -> dict[str, Any]:
    """Return a row of the first table, without an interval."""
    row = {"model": model, "on": on, "metric": metric.replace("_", " "), "source": source}
    return row | {"baseline": baseline, "which": which, "low": None, "high": None}


def compared(sources: Sources) -> dict[str, Any]:
    """Return the comparison of runs, of stages that have several."""
    file = "compare/runs.csv"
    columns = sources.columns(file) if file in sources else {}
    stages = [str(stage) for stage in columns.get("stage", [])]
    groups = []
    for number, stage in enumerate(stages):
        row: dict[str, Any] = {name: column[number] for name, column in columns.items()}
        if stages.count(stage) > 1 or row["seeds"] > 1:
            settings = str(row["settings"]) if isinstance(row["settings"], str) else ""
            groups.append(row | {"at": f"{file}#/{number}", "settings": settings.split(), "several": row["seeds"] > 1})
    found = [
        {"stage": stage, "spec": spread([row for row in groups if row["stage"] == stage])}
        for stage in dict.fromkeys(row["stage"] for row in groups)
    ]
    return {"groups": groups, "charts": found}


def spread(rows: list[dict[str, Any]]) -> dict:
    """Return the chart of groups of runs: the loss on the test split, a standard deviation to both sides."""
    points = []
    for row in rows:
        mean, deviation = row["test_loss"], row["test_loss_std"] if row["several"] else None
        low, high = (None, None) if deviation is None else (mean - deviation, mean + deviation)
        points.append({"name": row["run"], "value": mean, "low": low, "high": high, "source": f"{row['at']}/test_loss"})
    return charts.intervals(points, [], "loss on the test split, nats per token")


def plans(recipe: Mapping[str, Any], runs: list[dict[str, Any]], sources: Sources) -> dict[str, Any]:
    """Return the plans beside what was measured."""
    rows, memory = [], []
    by_label = {run["label"]: run for run in runs}
    for file in sources.names("plan/*/*/*.json"):
        plan = sources.json(file)
        label, of_task = name_of(plan), "task" in plan
        if not of_task and label not in by_label:
            continue
        measured = {"timings": None, "devices": None} if of_task else pick_measured(by_label[label])
        row = {"run": label, "slice": plan["topology"], "file": file, "planned": plan["planned"], **measured}
        if plan["planned"]:
            held = plan["memory"]
            parts = {key: held.get(key) for key in ("arguments", "temporaries", "program")}
            memory += [
                {"name": f"{label} on {plan['topology']}", "part": part, "share": size / held["hbm"]}
                for part, size in parts.items()
                if size
            ]
            row["fits"] = plan["estimated_seconds"] is not None
        else:
            row["reason"] = plan["reason"].removeprefix("unplanned: ")
        rows.append(row)
    return {"plans": rows, "memory": charts.shares(memory) if memory else None}


def pick_measured(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the measured time of a run's step is, and on what it was measured."""
    return {key: run[key] for key in ("timings", "devices")}


def jobs(recipe: Mapping[str, Any], sources: Sources) -> dict[str, Any]:
    """Return the timeline of jobs, with pauses cut out, and the time by rule."""
    account = sources.json("jobs.json")
    stages = recipe["rules"]

    def on_axis(time: float) -> float:
        """Return a time without the pauses before it; a tenth of PAUSE stays in the place of each, to be seen."""
        before = (pause["seconds"] for pause in account["pauses"] if pause["after"] < time)
        return round(time - sum(seconds - PAUSE / 10 for seconds in before), 3)

    rows, failed = [], []
    for job in account["jobs"]:
        started = on_axis(job["started"])
        times = {"ready": max(round(started - min(job["waited"], PAUSE), 3), 0.0), "started": started}
        times["ended"] = round(started + job["seconds"], 3)
        rows.append({"rule": job["rule"], "of": job["of"], "stage": stages.get(job["rule"], "other")} | times)
        failed += [
            {"rule": job["rule"], "of": job["of"], "failed": on_axis(attempt["ended"] or attempt["started"])}
            for attempt in job.get("failed", [])
        ]
    rules = sorted(account["rules"], key=lambda name: -account["rules"][name]["seconds"])
    return {
        "jobs": rows,
        "failed": account["totals"]["failed_attempts"],
        "timeline": charts.timeline(rows, failed),
        "pauses": [f"jobs.json#/pauses/{number}" for number in range(len(account["pauses"]))],
        "rules": [
            {"name": name, "stage": stages.get(name, "other"), "at": f"jobs.json#{pointer('rules', name)}"}
            for name in rules
        ],
    }


def workflow(recipe: Mapping[str, Any], sources: Sources) -> dict[str, Any]:
    """Return the graph of the rules that had jobs."""
    account = sources.json("jobs.json")
    edges = [(one, other) for one, other in account["edges"]]
    if not edges:
        return {"graph": None}
    stages = recipe["rules"]
    counts = {name: rule["jobs"] for name, rule in account["rules"].items()}
    before = reduced(acyclic(edges))
    order = [(rule, sorted(before[rule])) for rule in account["rules"] if rule in before]
    return {"graph": drawing(edges, stages, counts), "order": order}
