"""The curves and the scores on the report's page: of training, and of models beside their baselines."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tpulm.core import live_metrics
from tpulm.report.charts import by_tokens
from tpulm.report.sources import Sources, columns_of
from tpulm.specs.artifacts import CHECKPOINT_FILES, SEGMENT_FILES
from tpulm.specs.scores import BASE, WHOLE, scores_in

POINTS = 800  # of a curve, at most


def kept(values: Sequence[float], points: int = POINTS) -> np.ndarray:
    """Return which points of a curve to keep, as indices in order: the lowest and the highest of equal spans.

    So peaks stay, and nothing is averaged. The first and the last are among them. NaN counts as the highest.
    """
    count = len(values)
    if count <= points:
        return np.arange(count)
    numbers = np.nan_to_num(np.asarray(values, float), nan=np.inf)
    bounds = np.linspace(0, count, points // 2).astype(int)
    found = {0, count - 1}
    for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
        found |= {start + int(numbers[start:stop].argmin()), start + int(numbers[start:stop].argmax())}
    return np.array(sorted(found))


def curves_of(run: dict[str, Any], sources: Sources) -> dict[str, Any]:
    """Return the curves of a run, by what they show: loss, learning_rate, gradient_norm, tokens_per_second, mfu.

    run  of the page's recipe

    Each curve is steps and values; `held_out` is the loss on the validation split. tokens and seconds say how far the
    run was at some steps, for other axes. `files` are those that they are from, without the log.
    """
    folder, log = run["folder"], run["log"]
    live = list(live_metrics.read_metrics(sources.files[log])) if log in sources else []
    history, timings = (columns_so_far(folder, file, sources, log, live) for file in SEGMENT_FILES.values())
    # Of a segment that still runs only the log tells.
    done = history[1]["step"][-1] if history[1] else 0
    going = [record for record in live if record["step"] > done and "last_step" in record]
    found: dict[str, Any] = {"held_out": held_out(run, history[1], live, sources)}
    parts = {"tokens_per_second": timings} | dict.fromkeys(("loss", "learning_rate", "gradient_norm"), history)
    for name, (_, columns) in parts.items():
        more = [(record["step"], record[name]) for record in going if record.get(name) is not None]
        found[name] = curve(columns.get("step"), columns.get(name), more)
    utilised = [(record["step"], record["mfu"]) for record in live if record.get("mfu") is not None]
    found["mfu"] = curve(None, None, utilised)
    found |= {"clock": clock(timings[1], going), "tokens_per_step": tokens_per_step(timings[1])}
    return found | {"files": [*history[0], *timings[0]]}


def columns_so_far(folder: str, file: str, sources: Sources, log: str, live: list[dict]) -> tuple[list[str], dict]:
    """Return files and columns of a run's history or timings: of the whole run, or of the checkpoints there are.

    Where the log is newer than the file of the whole run, the run trains again: what is beyond the log's last step is
    of the training before.
    """
    names, whole = sources.names(f"{folder}/checkpoints/*/{file}"), f"{folder}/{file}"
    if whole in sources:
        again = live and sources.files[log].stat().st_mtime_ns > sources.files[whole].stat().st_mtime_ns
        last = live[-1]["step"] if again else 0
        names = [name for name in names if int(Path(name).parent.name) <= last] if again else [whole]
    return names, sources.columns(names[0]) if len(names) == 1 else columns_of([sources.files[name] for name in names])


def curve(
    steps: list[float] | None, values: list[float] | None, more: list[tuple[int, float]]
) -> dict[str, Any] | None:
    """Return the points of a curve that are kept, `more` of the log after those of a file; None for none."""
    there = zip(steps, values, strict=True) if steps and values else ()
    pairs = [(int(step), value) for step, value in there if math.isfinite(value)] + more
    if not pairs:
        return None
    points = [pairs[number] for number in kept([value for _, value in pairs])]
    return {
        "steps": [step for step, _ in points],
        "values": [value for _, value in points],
        "of": len(pairs),
    }


def held_out(run: dict[str, Any], history: dict, live: list[dict], sources: Sources) -> dict[str, Any] | None:
    """Return the losses on the validation split: at the checkpoints, and between them where the run was evaluated."""
    found = {record["step"]: record["held_out"]["loss"] for record in live if "held_out" in record}
    steps, losses = history.get("step", []), history.get("held_out_loss", [])
    found |= {int(step): loss for step, loss in zip(steps, losses, strict=False) if not math.isnan(loss)}
    for name in sources.names(f"{run['folder']}/checkpoints/*/{CHECKPOINT_FILES['state']}"):
        state = sources.json(name)
        if state["stopped_at"] is None or state["step"] <= state["stopped_at"]:
            found[state["step"]] = state["evaluation"]["loss"]
    return {"steps": sorted(found), "values": [found[step] for step in sorted(found)]} if found else None


def clock(timings: dict, going: list[dict]) -> dict[str, list[float]]:
    """Return the seconds of training up to some steps, by the time of a step measured there; pauses are left out."""
    steps, seconds = [0.0], [0.0]
    for step, taken in zip(timings.get("step", []), timings.get("seconds_per_step", []), strict=True):
        seconds.append(seconds[-1] + (step - steps[-1]) * taken)
        steps.append(step)
    for record in going:
        done = record["step"] * record["tokens_per_second"] / max(record["tokens"], 1)  # steps a second
        seconds.append(seconds[-1] + (record["step"] - steps[-1]) / max(done, 1e-9))
        steps.append(record["step"])
    index = kept(seconds, 100)
    return {"steps": [steps[i] for i in index], "seconds": [round(seconds[i], 3) for i in index]}


def tokens_per_step(timings: dict) -> int | None:
    """Return the tokens that a step reads, by its time and speed; None where nothing was timed yet."""
    seconds, speeds = timings.get("seconds_per_step"), timings.get("tokens_per_second")
    return round(seconds[-1] * speeds[-1]) if seconds and speeds else None


def scores_in_files(sources: Sources) -> list[dict[str, Any]]:
    """Return every score of every evaluation, also of checkpoints: model, file and score."""
    return [
        {"model": content["model"], "file": file, "score": score}
        for file in sources.names("evaluation/*/scores.json")
        for content in [sources.json(file)]
        for score in scores_in(content)
    ]


def final_scores(runs: Iterable[Mapping[str, Any]], sources: Sources) -> list[dict[str, Any]]:
    """Return the scores of the models that runs end with, as `scores_in_files` does.

    Beside the score of a finetuned model stands that of its base, unless the evaluation has put it there.
    """
    rows = [row for row in scores_in_files(sources) if row["score"].step is None]
    bases = {run["label"]: run.get("base") for run in runs}
    values = {(row["model"], row["score"].name): row["score"].value for row in rows}
    for row in rows:
        score = row["score"]
        before = values.get((bases.get(row["model"]), score.name))
        if before is not None:
            row["score"] = replace(score, baselines={BASE: before} | score.baselines)
    return rows


def losses_of(runs: Iterable[Mapping[str, Any]], sources: Sources) -> list[dict[str, Any]]:
    """Return the scores on tokens of all models, in the order of the runs, as `final_scores` returns the others."""
    files = [run["metrics"] for run in runs if run["figures"]]
    files += [file for file in sources.names("mlm/*/metrics.json") if file not in files]  # of models from elsewhere
    return [
        {"model": str(Path(file).parent), "file": file, "score": score, "parameters": parameters_of(sources.json(file))}
        for file in files
        for score in scores_in(sources.json(file))
    ]


def parameters_of(metrics: Mapping[str, Any]) -> int | None:
    """Return the number of parameters of a model by the content of its metrics.json; None where it is empty."""
    return metrics.get("parameters", metrics.get("total_parameters"))


def first_measures(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first row of each model on each set that leads, whose measure the set is known by."""
    found: dict[tuple, dict[str, Any]] = {}
    for row in (row for row in rows if row["score"].leads):
        found.setdefault((row["model"], row["score"].group, row["score"].on), row)
    return list(found.values())


def over_tokens(runs: Iterable[Mapping[str, Any]], sources: Sources) -> list[dict[str, Any]]:
    """Return a chart for each metric on each set of items: the scores of every run's checkpoints by tokens seen.

    runs  of `result_section.describe_runs`. Scores of kinds of items are drawn by plot_checkpoints

    Each has metric, on, higher, spec and the files that its scores are from.
    """
    seen = {run["label"]: tokens_per_step(sources.columns(run["timings"])) for run in runs if run["timings"] in sources}
    charts: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}
    for row in scores_in_files(sources):
        score = row["score"]
        each = seen.get(row["model"])
        if score.step is not None and score.part == WHOLE and each:
            key = (score.metric, score.on, score.higher_is_better)
            charts.setdefault(key, []).append(row | {"tokens": score.step * each})
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
