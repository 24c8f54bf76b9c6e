"""The plans of the shipped recipes: what `snakemake plan` says of each, gathered into one table.

    python benchmarks/recipes.py plan [RECIPE ...] [--minutes 10]     compile; a recipe by its name, all by default
    python benchmarks/recipes.py table                                write the table

`plan` keeps what the table and benchmarks/gaps.py need in results/recipe_plans.json, recipe by recipe; a program that
takes longer than the minutes to compile is named as such. Compiled programs are kept in .snakemake/compiled. `table`
takes seconds, and writes results/recipes.md and the table of README.md. Nothing is downloaded.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import data  # it also finds the package and the tests' Workflow
from conftest import ROOT, Workflow, outside
from tpulm.config.reading import read_config
from tpulm.config.runs import Run, runs_of
from tpulm.core.accelerators import GIB, topology
from tpulm.core.files import read_json

RECIPES = ROOT / "recipes"
PLANS, RESULT = ROOT / "benchmarks/results/recipe_plans.json", ROOT / "benchmarks/results/recipes.md"
BEGIN = "<!-- `make bench-plan` writes from here -->\n"
NOT_YET = {"planned": False, "reason": "not compiled yet"}
KEPT = ("lower_bound_seconds", "estimated_seconds", "bound_by", "model_flops_utilisation", "tokens_per_second", "hours")


def planned_runs(recipe: Path) -> list[tuple[Run, str]]:
    """Return the runs of a recipe, with each slice that it names."""
    config = read_config([str(recipe)], {})
    slices = dict.fromkeys(topology(name).name for name in config["plan"]["topologies"])
    return [(run, name) for run in runs_of(config) for name in slices]


def plan(recipe: Path, run: Run, slice_: str, minutes: float) -> dict:
    """Return what is kept of the plan of a run: planned, and where it is not, the reason."""
    if run.backend == "tensorflow":
        return {"planned": False, "reason": "trains on TensorFlow"}
    if run.needs_manifest:
        return {"planned": False, "reason": "takes its tokenizer from a hub"}
    with tempfile.TemporaryDirectory() as temporary:
        workflow = Workflow(Path(temporary) / "workflow")
        compiled = ROOT / ".snakemake/compiled"
        compiled.mkdir(parents=True, exist_ok=True)
        (workflow / ".snakemake").mkdir()
        (workflow / ".snakemake/compiled").symlink_to(compiled)
        file = f"results/plan/{run.stage}/{run.name}/{slice_}.json"
        snakemake = str(Path(sys.executable).with_name("snakemake"))
        command = [snakemake, "--configfile", f"recipes/{recipe.name}", "--cores", str(os.cpu_count()), file]
        process = subprocess.Popen(
            command, cwd=workflow.folder, env=outside(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=60 * minutes)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its own session: the compiler, too
            process.communicate()
            return {"planned": False, "reason": f"not compiled within {minutes:g} minutes"}
        if process.returncode:
            print(said[-3000:], file=sys.stderr)
            return {"planned": False, "reason": f"snakemake ended with {process.returncode}"}
        return kept(read_json(workflow / file))


def kept(found: dict) -> dict:
    """Return what is kept of a plan."""
    if not found["planned"]:
        return {"planned": False, "reason": found["reason"]}
    if not found["memory"]["fits"]:
        return {"planned": False, "reason": found["sentence"]}
    memory = {name: found["memory"][name] for name in ("total", "hbm")}
    return {"planned": True, "attention": found["attention"]} | memory | {name: found[name] for name in KEPT}


def plan_all(names: list[str], minutes: float) -> None:
    """Plan recipes, all where none is named, and keep the plans of each as soon as it is there."""
    plans = read_json(PLANS) if PLANS.is_file() else {}
    shipped = sorted(RECIPES.glob("*.yaml"))
    there = {path.name: planned_runs(path) for path in shipped}
    plans = {name: found for name, found in plans.items() if name in there}
    for name, runs in there.items():
        if names and Path(name).stem not in names:
            continue
        for run, slice_ in runs:
            found, known = (
                plan(RECIPES / name, run, slice_, minutes),
                plans.setdefault(name, {}).setdefault(run.key, {}),
            )
            if found["planned"] or not known.get(slice_, {}).get("planned"):  # a busy machine takes no plan away
                known[slice_] = found
            print(f"{name}: {run.key} on {slice_}: {found}", flush=True)
            PLANS.parent.mkdir(exist_ok=True)
            PLANS.write_text(json.dumps(dict(sorted(plans.items())), indent=1) + "\n")


def write_table() -> None:
    """Write the plans that are kept as Markdown."""
    lines = [
        "| recipe: run | slice | GiB a device | at least, ms | estimated, ms | bound by | MFU | hours |",
        "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    missing: dict[str, dict[str, list[str]]] = {}  # slices by reason and recipe
    plans = read_json(PLANS) if PLANS.is_file() else {}
    for path in sorted(RECIPES.glob("*.yaml")):
        for run, slice_ in planned_runs(path):
            found = plans.get(path.name, {}).get(run.key, {}).get(slice_, NOT_YET)
            if not found["planned"]:
                reasons = missing.setdefault(found["reason"].rstrip("."), {})
                reasons.setdefault(path.stem, []).append(slice_)
                continue
            cells = [
                f"{path.stem}: `{run.key}`",
                slice_,
                f"{found['total'] / GIB:.1f} of {found['hbm'] / GIB:.0f}",
                *(f"{1e3 * found[name]:,.1f}" for name in ("lower_bound_seconds", "estimated_seconds")),
                found["bound_by"],
                f"{found['model_flops_utilisation']:.0%}",
                f"{found['hours']:,.1f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    if len(lines) == 2:
        lines = ["None of them has been compiled yet."]
    for reason, recipes in missing.items():
        said = [f"{name} ({', '.join(dict.fromkeys(slices))})" for name, slices in recipes.items()]
        lines += ["", f"Without a plan here, {reason}: {', '.join(said)}."]
    data.publish(lines, RESULT, BEGIN)
    print("\n".join(lines))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["plan", "table"])
    parser.add_argument("recipes", nargs="*", metavar="RECIPE")
    parser.add_argument("--minutes", type=float, default=10.0, help="for a program, at the most")
    arguments = parser.parse_args()
    if arguments.what == "plan":
        plan_all([Path(name).stem for name in arguments.recipes], arguments.minutes)
    else:
        write_table()


if __name__ == "__main__":
    main()
