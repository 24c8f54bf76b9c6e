"""The gap between two segments of a run: as measured here, and as a part of the segments of each recipe."""

import re

import data  # noqa: F401  it also finds the package and the tests' Workflow
from conftest import ROOT, Workflow
from tpulm.config.model_sizes import STORED, checkpoint_bytes, model_size, optimizer_bytes, weight_bytes
from tpulm.config.outline import Outline, Run
from tpulm.config.reading import read_config
from tpulm.core.files import read_json
from tpulm.core.live_metrics import GAP, read_metrics
from tpulm.planning.estimate import of_roofs

PLANS = ROOT / "benchmarks/results/recipe_plans.json"
RATE = 1e9  # bytes a second that each host reads and writes: an assumption
AIM = 0.02  # of a segment
LONGEST = "The gap of a recipe is the longest gap on JAX above, {} s, plus the time "  # begins the second table


def gaps(workflow: Workflow) -> dict[str, tuple[str, dict[str, float]]]:
    """Return of each run in a finished workflow, by its key, its backend and the seconds of its last segment's parts.

    Raises LookupError for a run whose log does not have them.
    """
    found = {}
    for run in Outline(read_config([str(workflow / "config.yaml")], {})).runs.values():
        log = workflow / f"logs/{run.path}/metrics.jsonl"
        records = [record["seconds"] for record in read_metrics(log) if "seconds" in record]
        if not records:
            raise LookupError(f"{log} has no record of the end of a segment")
        found[run.key] = run.backend, records[-1]
    return found


def gap_of(seconds: dict[str, float]) -> float:
    """Return the seconds of the parts in which nothing is trained."""
    return sum(seconds.get(name, 0.0) for name in GAP)


def moved_bytes(run: Run) -> int:
    """Return what a host reads and writes in the gap: base, checkpoint before, checkpoint; its part of the last two."""
    state = weight_bytes(run) + optimizer_bytes(run) + checkpoint_bytes(run)
    base = STORED["bfloat16"] * model_size(run).parameters if run.stage == "finetune" else 0
    return base + state // run.recipe["resources"].get("hosts", 1)


def gap_rows(segments: dict[str, tuple[str, dict[str, float]]]) -> list[str]:
    """Return the tables of the gap between two segments here, and of its part of a segment of each recipe."""
    names = (*GAP, "evaluate", "train")
    rows = [f"| last segment of | {' | '.join(names)} | gap |", "| --- |" + " ---: |" * (len(names) + 1)]
    longest = 0.0
    for key, (backend, seconds) in segments.items():
        if backend == "jax":
            longest = max(longest, gap_of(seconds))
        cells = [f"{seconds.get(name, 0.0):.2f} s" for name in names]
        rows.append(f"| `{key}` of the shipped config, on {backend} | {' | '.join(cells)} | {gap_of(seconds):.1f} s |")
    return [*rows, "", *recipe_rows(round(longest, 1))]


def recipe_rows(longest: float) -> list[str]:
    """Return the table of the part that the gap has of a segment of each planned recipe; longest  gap, in seconds."""
    rows = [
        f"{LONGEST.format(longest)}in which its hosts read the base model and the last checkpoint and write the next "
        f"checkpoint, at {RATE / 1e9:g} GB/s per host (assumed). Target: less than {AIM:.0%} of a segment.",
        "",
        "| recipe | slice | steps a segment | estimate of a step | minutes a segment | gap | share of a segment |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    missed = []
    for key, run, slice_, step in planned():
        steps = run.recipe["checkpoint_every"]
        gap, segment = longest + moved_bytes(run) / RATE, steps * step
        share = gap / (gap + segment)
        miss = " (miss)" if share > AIM else ""
        if miss:
            missed.append((segment, steps >= run.recipe["steps"]))
        cells = [f"{steps:,}", f"{step * 1e3:,.1f} ms", f"{segment / 60:,.1f}", f"{gap:.0f} s", f"{share:.2%}{miss}"]
        rows.append(f"| {key} | {slice_} | {' | '.join(cells)} |")
    if missed:
        longest_missed, whole = max(segment for segment, _ in missed), sum(alone for _, alone in missed)
        rows += [
            "",
            "The gap does not depend on the length of a segment. Runs with segments of at most "
            f"{longest_missed / 60:.0f} minutes miss the target. A larger `checkpoint_every` reduces the share of the "
            f"gap. {whole} of the {len(missed)} runs that miss the target have only one segment.",
        ]
    return rows


def with_plans_of_today(text: str) -> str:
    """Return the text of results/steps.md with the table of recipes by the plans that are kept now."""
    begin, end = map(re.escape, LONGEST.split("{}"))
    measured, longest, _ = re.split(f"{begin}([\\d.]+){end}", text)
    return measured + "\n".join(recipe_rows(float(longest))) + "\n"


def planned() -> list[tuple[str, Run, str, float]]:
    """Return recipe with key, run, slice and estimated seconds of a step of what recipes.py has planned on JAX."""
    found = []
    for name, runs in (read_json(PLANS) if PLANS.is_file() else {}).items():
        by_key = {run.key: run for run in Outline(read_config([str(ROOT / "recipes" / name)], {})).runs.values()}
        for key, slices in runs.items():
            run = by_key.get(key.partition(", ")[0])  # of a run with phases, one plan for each
            for slice_, plan in slices.items():
                if plan["planned"] and run and run.backend == "jax":
                    step = of_roofs(plan["seconds"])["estimated_seconds"]
                    found.append((f"{name}: `{key}`", run, slice_, step))
    return found
