"""Read training curves and scores of the runs from their files, for the report's page."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpulm.core import live_metrics
from tpulm.report.charts import by_tokens
from tpulm.report.sources import Sources, columns_of
from tpulm.specs.artifacts import CHECKPOINT_FILES, SEGMENT_FILES
from tpulm.specs.phases import tokens_until
from tpulm.specs.scores import BASE, WHOLE, scores_in


def curves_of(run: dict[str, Any], sources: Sources) -> dict[str, Any]:
    """Return the curves of a run, each with steps and values; None for a curve without points.

    Curves: loss, learning_rate, gradient_norm, tokens_per_second, mfu, and held_out, the loss on the validation split;
    and the `files` that they are from, without the log.

    run  from the page's recipe
    """
    folder, log = run["folder"], run["log"]
    live = list(live_metrics.read_metrics(sources.files[log])) if log in sources else []
    history, timings = (columns_so_far(folder, file, sources, log, live) for file in SEGMENT_FILES.values())
    # A segment that still runs is only in the log.
    done = history[1]["step"][-1] if history[1] else 0
    running = [record for record in live if record["step"] > done and "last_step" in record]
    curves: dict[str, Any] = {"held_out": held_out(run, history[1], live, sources)}
    files = {"tokens_per_second": timings} | dict.fromkeys(("loss", "learning_rate", "gradient_norm"), history)
    for name, (_, columns) in files.items():
        more = [(record["step"], record[name]) for record in running if record.get(name) is not None]
        curves[name] = curve(columns.get("step"), columns.get(name), more)
    utilised = [(record["step"], record["mfu"]) for record in live if record.get("mfu") is not None]
    curves["mfu"] = curve(None, None, utilised)
    return curves | {"files": [*history[0], *timings[0]]}


def columns_so_far(folder: str, file: str, sources: Sources, log: str, live: list[dict]) -> tuple[list[str], dict]:
    """Return files and columns of a run's history or timings: of the whole run, or of its checkpoints so far."""
    names, whole = sources.names(f"{folder}/checkpoints/*/{file}"), f"{folder}/{file}"
    if whole in sources:
        retrained = live and sources.files[log].stat().st_mtime_ns > sources.files[whole].stat().st_mtime_ns
        last = live[-1]["step"] if retrained else 0
        names = [name for name in names if int(Path(name).parent.name) <= last] if retrained else [whole]
    return names, sources.columns(names[0]) if len(names) == 1 else columns_of([sources.files[name] for name in names])


def curve(
    steps: list[float] | None, values: list[float] | None, more: list[tuple[int, float]]
) -> dict[str, Any] | None:
    """Return the points of a curve, those of a file and then `more` of the log; None without points."""
    from_file = zip(steps, values, strict=True) if steps and values else ()
    pairs = [(int(step), value) for step, value in from_file if math.isfinite(value)] + more
    return {"steps": [step for step, _ in pairs], "values": [value for _, value in pairs]} if pairs else None


def held_out(run: dict[str, Any], history: dict, live: list[dict], sources: Sources) -> dict[str, Any] | None:
    """Return the curve of a run's validation losses; see `held_out_of`."""
    names = sources.names(f"{run['folder']}/checkpoints/*/{CHECKPOINT_FILES['state']}")
    return held_out_of(history, map(sources.json, names), live)


def held_out_of(history: dict, states: Iterable[Mapping], live: Iterable[dict] = ()) -> dict[str, Any] | None:
    """Return the curve of the validation losses at checkpoints, by their states, and between them; None without any."""
    loss_at = {record["step"]: record["held_out"]["loss"] for record in live if "held_out" in record}
    steps, losses = history.get("step", []), history.get("held_out_loss", [])
    loss_at |= {int(step): loss for step, loss in zip(steps, losses, strict=False) if not math.isnan(loss)}
    for state in states:
        if state["stopped_at"] is None or state["step"] <= state["stopped_at"]:
            loss_at[state["step"]] = state["evaluation"]["loss"]
    return {"steps": sorted(loss_at), "values": [loss_at[step] for step in sorted(loss_at)]} if loss_at else None


def tokens_per_step(timings: dict) -> int | None:
    """Return the tokens of a step, from the last step time and speed; None without timings."""
    seconds, speeds = timings.get("seconds_per_step"), timings.get("tokens_per_second")
    return round(seconds[-1] * speeds[-1]) if seconds and speeds else None


def tokens_after(step: int, run: Mapping[str, Any], per_step: int) -> int:
    """Return the tokens that a run has read after `step` steps; per_step  of a step, if it has no phases."""
    phases = [phase for phase in run.get("phases", []) if phase["first"] < step]
    return tokens_until({"phases": phases}, step, 0) if phases else step * per_step


def scores_in_files(sources: Sources) -> list[dict[str, Any]]:
    """Return model, file and score for every score of every evaluation, checkpoints included."""
    return [
        {"model": content["model"], "file": file, "score": score}
        for file in sources.names("evaluation/*/scores.json")
        for content in [sources.json(file)]
        for score in scores_in(content)
    ]


def final_scores(runs: Iterable[Mapping[str, Any]], sources: Sources) -> list[dict[str, Any]]:
    """Return the rows of `scores_in_files` of final models.

    The base model is the first baseline of a finetuned model, also where its evaluation has not compared the two.
    """
    rows = [row for row in scores_in_files(sources) if row["score"].step is None]
    bases = {run["label"]: run.get("base") for run in runs}
    values = {(row["model"], row["score"].name): row["score"].value for row in rows}
    for row in rows:
        score = row["score"]
        before = score.baselines.get(BASE, values.get((bases.get(row["model"]), score.name)))
        if before is not None:
            row["score"] = replace(score, baselines={BASE: before} | score.baselines)
    return rows


def losses_of(runs: Iterable[Mapping[str, Any]], sources: Sources) -> list[dict[str, Any]]:
    """Return the token losses and accuracies of all models in the order of the runs: model, file, score, parameters."""
    files = [run["metrics"] for run in runs if run["figures"]]
    files += [file for file in sources.names("mlm/*/metrics.json") if file not in files]  # metrics of external models
    return [
        {"model": str(Path(file).parent), "file": file, "score": score, "parameters": parameters_of(sources.json(file))}
        for file in files
        for score in scores_in(sources.json(file))
    ]


def parameters_of(metrics: Mapping[str, Any]) -> int | None:
    """Return the number of parameters in the content of metrics.json; None if that is empty."""
    return metrics.get("parameters", metrics.get("total_parameters"))


def first_measures(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first leading row of each model on each set: the main measure of the set."""
    leaders: dict[tuple, dict[str, Any]] = {}
    for row in (row for row in rows if row["score"].leads):
        leaders.setdefault((row["model"], row["score"].group, row["score"].on), row)
    return list(leaders.values())


def over_tokens(runs: Iterable[Mapping[str, Any]], sources: Sources) -> list[dict[str, Any]]:
    """Return a chart of checkpoint scores by training tokens for each metric and set: metric, on, higher, files, spec.

    runs  from `result_section.describe_runs`. Scores of kinds of items are drawn by plot_checkpoints
    """
    timed = {run["label"]: run for run in runs if run["timings"] in sources}
    tokens_of_step = {label: tokens_per_step(sources.columns(run["timings"])) for label, run in timed.items()}
    charts: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}
    for row in scores_in_files(sources):
        score = row["score"]
        tokens = tokens_of_step.get(row["model"])
        if score.step is not None and score.part == WHOLE and tokens:
            key = (score.metric, score.on, score.higher_is_better)
            charts.setdefault(key, []).append(row | {"tokens": tokens_after(score.step, timed[row["model"]], tokens)})
    return [
        {
            "metric": metric.replace("_", " "),
            "on": on,
            "higher": higher,
            "files": [row["file"] for row in rows],
            "spec": by_tokens([(row["model"], row["score"], row["tokens"]) for row in rows]),
        }
        for (metric, on, higher), rows in sorted(charts.items())
    ]
