"""The gap between two segments of a run, here and as a part of the segments of each recipe."""

import json
from pathlib import Path

import data  # noqa: F401  it also finds the package and the tests' Workflow
from conftest import ROOT, Workflow
from tpulm.config.reading import read_config
from tpulm.config.runs import Run, runs_of
from tpulm.core.accelerators import topology
from tpulm.tracking.live_metrics import GAP


def gaps(workflow: Workflow) -> dict[str, dict[str, float]]:
    """Return the seconds of the phases of the last segment of each run in a finished workflow, by its key."""
    found = {}
    for run in runs_of(read_config([str(workflow / "config.yaml")], {})):
        log = workflow / f"{run.folder.replace('results/', 'logs/').replace('base-training', 'base')}/metrics.jsonl"
        records = [json.loads(line) for line in log.read_text().splitlines()]
        found[run.key] = [record["seconds"] for record in records if "seconds" in record][-1]
    return found


def gap_rows(phases: dict[str, dict[str, float]], recipes: list[tuple[str, Run, str, float]]) -> list[str]:
    """Return the tables of the gap between two segments here, and of its part of a segment of each recipe.

    recipes  file, run, slice of TPUs, and seconds of a step by the plan's estimate
    """
    rows = ["| last segment of | " + " | ".join((*GAP, "train", "gap")) + " |", "| --- |" + " --- |" * (len(GAP) + 2)]
    longest = 0.0
    for key, seconds in phases.items():
        gap = sum(seconds.get(name, 0.0) for name in GAP)
        longest = max(longest, gap)
        cells = [*(f"{seconds.get(name, 0.0):.1f} s" for name in GAP), f"{seconds['train']:.1f} s", f"{gap:.1f} s"]
        rows.append(f"| `{key}` of the shipped config | {' | '.join(cells)} |")
    rows += ["", f"With the longest of these gaps, {longest:.0f} s:", ""]
    rows += [
        "| recipe | slice | steps of a segment | estimate of a step | gap, of a segment |",
        "| --- |" + " --- |" * 4,
    ]
    for file, run, slice_, step in recipes:
        steps = run.recipe["checkpoint_every"]
        share = longest / (longest + steps * step)
        rows.append(f"| {file}: `{run.key}` | {slice_} | {steps:,} | {step * 1e3:.1f} ms | {share:.2%} |")
    return rows


def planned(folder: Path) -> list[tuple[str, Run, str, float]]:
    """Return recipe, run, slice and estimated seconds of a step of all that can be planned without a network."""
    found = []
    for recipe in sorted((ROOT / "recipes").glob("*.yaml")):
        workflow = Workflow(folder / recipe.stem)
        config = read_config([str(recipe)], {})
        runs = [run for run in runs_of(config) if not run.needs_manifest and run.backend != "tensorflow"]
        names = {(run, topology(name).name) for run in runs for name in config["plan"]["topologies"]}
        files = {(run, name): f"results/plan/{run.stage}/{run.name}/{name}.json" for run, name in names}
        if not files:
            continue
        workflow.as_a_user("--configfile", f"recipes/{recipe.name}", "--cores", "2", "--keep-going", *files.values())
        for (run, name), file in sorted(files.items(), key=lambda item: item[1]):
            plan = json.loads((workflow / file).read_text())
            if plan["planned"]:
                found.append((recipe.name, run, name, plan["estimated_seconds"]))
    return found
