"""The plans of the shipped recipes: what `snakemake plan` says of each, gathered into one table.

    python benchmarks/recipes.py plan [RECIPE ...] [--minutes 10]     compile; a recipe by its name, all by default
    python benchmarks/recipes.py plan RECIPE --layers 1 3 [--texts FOLDER]    the same by two programs of few layers
    python benchmarks/recipes.py plan RECIPE --only KEY               of it what the config calls so
    python benchmarks/recipes.py check [RECIPE ...]                   name plans whose program has changed since
    python benchmarks/recipes.py table                                write the table

`plan` keeps what the table and benchmarks/gaps.py need in results/recipe_plans.json, recipe by recipe; a program that
takes longer than the minutes to compile is named as such. With --layers, figures follow from two programs of so many
layers, as in utilisation.py. Models on tasks are planned in this way only; what their plans take of a hub is in
published_tasks.yaml. Compiled programs are kept in .snakemake/compiled. `check` lowers each program again without
compiling it, half a minute for each: changes of recipes, models and kernels show in it. `table` takes seconds, and
writes results/recipes.md. Nothing is downloaded.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import data  # it also finds the package and the tests' Workflow
import utilisation
from conftest import ROOT, Workflow, evaluations_of, outside
from ruamel.yaml import YAML
from tpulm.config.outline import Run
from tpulm.config.reading import read_config
from tpulm.core.accelerators import GIB, topology
from tpulm.core.files import read_json
from tpulm.planning.estimate import of_roofs
from tpulm.specs.classification_heads import masked_model
from tpulm.workflow.budget import plan_recipe

RECIPES = ROOT / "recipes"
PUBLISHED = ROOT / "benchmarks/published_tasks.yaml"
PLANS, RESULT = ROOT / "benchmarks/results/recipe_plans.json", ROOT / "benchmarks/results/recipes.md"
NOT_YET = {"planned": False, "reason": "not compiled yet"}
STALE = {"planned": False, "reason": "changed since it was compiled"}
KEPT = ("program_sha256", "attention", "total", "hbm", "seconds", "devices", "model_flops")


@dataclass(frozen=True)
class Planned:
    """The runs that one plan is made for, see `tpulm.config.evaluations.Evaluations.runs_by_plan`.

    name    its folder below results/plan/
    chains  what trains with the planned step
    number  of the phase, of a run with phases; phase  its steps in words
    """

    name: str
    chains: list[Run]
    number: int | None = None
    phase: str = ""

    @property
    def run(self) -> Run:
        """The run, or the first of the chains."""
        return self.chains[0]


def planned_runs(recipe: Path) -> list[tuple[Planned, str]]:
    """Return the runs of a recipe, and models on tasks, with each slice that it names."""
    config = read_config([str(recipe)], {})
    slices = dict.fromkeys(topology(name).name for name in config["plan"]["topologies"])
    planned = evaluations_of(config).runs_by_plan.items()
    parts = [part for name, chains in planned for part in phases_of(name, chains)]
    return [(part, slice_) for part in parts for slice_ in slices]


def phases_of(name: str, chains: list[Run]) -> list[Planned]:
    """Return a plan for each phase of a run with phases, otherwise one."""
    if "phases" not in chains[0].recipe:
        return [Planned(name, chains)]
    return [
        Planned(name, [run], number, f", steps {phase.first + 1:,} to {phase.until:,}")
        for number, (phase, run) in enumerate(zip(chains[0].phases, chains[0].by_phase, strict=True))
    ]


def recipe_of(planned: Planned) -> dict:
    """Return the recipe of a plan, with what is published of the model and the examples of a task.

    Raises LookupError for a task whose model or examples published_tasks.yaml does not know.
    """
    run, recipe = planned.run, plan_recipe(planned.chains)
    if not run.task:
        return recipe
    table = YAML(typ="safe", pure=True).load(PUBLISHED)
    labels = table["labels"][run.recipe.get("dataset")][run.recipe.get("name")]
    model = masked_model(table["models"][run.origin["pretrained"]]) if run.origin else {}
    return recipe | model | {"outputs": labels or 1}


def origin(planned: Planned, slice_: str) -> str:
    """Return a hash of what the figures of a plan follow from."""
    return utilisation.recipe_hash(recipe_of(planned), slice_)


def plan(recipe: Path, planned: Planned, slice_: str, minutes: float) -> dict:
    """Return what is kept of the plan of a run: planned, and where it is not, the reason."""
    run = planned.run
    if run.task:
        return {"planned": False, "reason": "of a model on a task, which --layers plans"}
    if run.plan_inputs["manifest"]:
        return {"planned": False, "reason": "takes its tokenizer from a hub"}
    with tempfile.TemporaryDirectory() as temporary:
        workflow = Workflow(Path(temporary) / "workflow")
        compiled = ROOT / ".snakemake/compiled"
        compiled.mkdir(parents=True, exist_ok=True)
        (workflow / ".snakemake").mkdir()
        (workflow / ".snakemake/compiled").symlink_to(compiled)
        file = f"results/plan/{planned.name}/{slice_}.json"
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
        found = read_json(workflow / file)
        return kept(found | found["phases"][planned.number] if found.get("phases") else found)


def program_name(recipe: Path, planned: Planned) -> str:
    """Return what to call the program of a plan; tasks may have one in common."""
    if not planned.run.task:
        return f"{recipe.stem}-{planned.run.name}" + ("" if planned.number is None else f"-{planned.number}")
    step = {key: value for key, value in recipe_of(planned).items() if key not in ("where", "steps", "chains")}
    return f"{recipe.stem}-{utilisation.recipe_hash(step, '')[:12]}"


def plan_few(recipe: Path, planned: Planned, slice_: str, depths: list[int], texts: Path | None) -> dict:
    """Return what `plan` does, as it follows from programs of two depths: each layer takes and needs the same."""
    programs, described, run = {}, recipe_of(planned), planned.run
    for layers in depths:
        name = f"{program_name(recipe, planned)}-{slice_}-{layers}"
        made = utilisation.text_in(texts, name, lambda: utilisation.program_of(run, described, slice_, layers))  # noqa: B023
        programs[str(layers)] = utilisation.found_in(*made, topology(slice_))
    found = utilisation.whole(programs)
    hbm = topology(slice_).hbm
    if found["total"] > hbm:
        return {
            "planned": False,
            "reason": f"it needs {found['total'] / GIB:.1f} of {hbm / GIB:.0f} GiB by {depths} layers",
        }
    return {"planned": True, "layers": depths} | {name: (found | {"hbm": hbm})[name] for name in KEPT}


def kept(found: dict) -> dict:
    """Return what is kept of a plan."""
    if not found["planned"]:
        return {"planned": False, "reason": found["reason"]}
    if not found["memory"]["fits"]:
        return {"planned": False, "reason": found["sentence"]}
    flat = found | found["memory"] | {"model_flops": found["model_flops_per_step"]}
    return {"planned": True} | {name: flat[name] for name in KEPT}


def plan_all(names: list[str], only: str | None, make: Callable[[Path, Planned, str], dict]) -> None:
    """Plan recipes, all where none is named, and keep the plans of each as soon as it is there.

    only  the key of a run or of a task; None for all of them

    Raises SystemExit for a recipe or a key that is not there.
    """
    plans = read_json(PLANS) if PLANS.is_file() else {}
    shipped = sorted(RECIPES.glob("*.yaml"))
    there = {path.name: planned_runs(path) for path in shipped}
    plans = {name: found for name, found in plans.items() if name in there}
    recipes = {name: runs for name, runs in there.items() if not names or Path(name).stem in names}
    keys = sorted({run.run.key for runs in recipes.values() for run, _ in runs})
    if unknown := sorted(set(names) - {Path(name).stem for name in there}):
        sys.exit(
            f"error: no recipe is called {', '.join(unknown)}; allowed: {', '.join(Path(name).stem for name in there)}"
        )
    if only and only not in keys:
        sys.exit(f"error: --only {only} is in none of these recipes; allowed: {', '.join(keys)}")
    for name, runs in recipes.items():
        for run, slice_ in runs:
            if only not in (None, run.run.key):
                continue
            found = make(RECIPES / name, run, slice_) | {"origin": origin(run, slice_)}
            known = plans.setdefault(name, {}).setdefault(key_of(run), {})
            if found["planned"] or not current(known, run, slice_)["planned"]:  # a busy machine takes no plan away
                known[slice_] = found
            print(f"{name}: {key_of(run)} on {slice_}: {found}", flush=True)
            PLANS.parent.mkdir(exist_ok=True)
            PLANS.write_text(json.dumps(dict(sorted(plans.items())), indent=1) + "\n")


def current(plans: dict[str, dict], run: Planned, slice_: str) -> dict:
    """Return the plan of a run on a slice out of those of the run, if it is of the run as it is now."""
    found = plans.get(slice_, NOT_YET)
    return found if not found["planned"] or found.get("origin") == origin(run, slice_) else STALE


def stale() -> list[str]:
    """Return the recipes whose plans are of another recipe than the shipped one."""
    plans = read_json(PLANS)
    return [
        path.stem
        for path in sorted(RECIPES.glob("*.yaml"))
        if any(
            current(plans.get(path.name, {}).get(key_of(run), {}), run, name) is STALE
            for run, name in planned_runs(path)
        )
    ]


def check_all(names: list[str]) -> bool:
    """Print which plans are of another program than the recipe's run has now; return whether there are any."""
    plans, changed = read_json(PLANS), False
    for path in sorted(RECIPES.glob("*.yaml")):
        if names and path.stem not in names:
            continue
        for run, slice_ in planned_runs(path):
            found = current(plans.get(path.name, {}).get(key_of(run), {}), run, slice_)
            if found["planned"]:
                layers = found.get("layers", [0])[-1]
                abstract, _ = utilisation.abstract_of(run.run, recipe_of(run), slice_, layers)
                from tpulm.planning.compiled import program_sha256  # after the runtime has started

                if program_sha256(abstract.lowered()) == found["program_sha256"]:
                    continue
            elif found is not STALE:
                continue
            changed = True
            print(f"{path.stem}: {key_of(run)} on {slice_} has changed; python benchmarks/recipes.py plan {path.stem}")
    return changed


def key_of(planned: Planned) -> str:
    """Return how the plans name what is planned: by its key and, on a task, by the model."""
    run = planned.run
    return f"{run.key}, {run.identity['path']}" if run.task else run.key + planned.phase


def said_of(planned: Planned) -> str:
    """Return how the table calls what is planned."""
    number = len(planned.chains)
    chains = f", {number} chains" if number > 1 else ", 1 chain" if planned.run.task else ""
    as_on_jax = ", as on JAX" if planned.run.backend == "tensorflow" else ""
    return f"`{key_of(planned)}`{chains}{as_on_jax}"


def write_table() -> None:
    """Write the plans that are kept as Markdown."""
    lines = [
        "| recipe: run | slice | GiB a device | at least, ms | estimated, ms | bound by | MFU | hours |",
        "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    missing: dict[str, dict[str, list[str]]] = {}  # slices by reason and recipe
    starred = False
    plans = read_json(PLANS) if PLANS.is_file() else {}
    for path in sorted(RECIPES.glob("*.yaml")):
        for run, slice_ in planned_runs(path):
            found = current(plans.get(path.name, {}).get(key_of(run), {}), run, slice_)
            if not found["planned"]:
                reasons = missing.setdefault(found["reason"].rstrip("."), {})
                name = f"{path.stem}: {run.run.key}" if run.run.task else path.stem
                reasons.setdefault(name, []).append(slice_)
                continue
            found |= of_roofs(found["seconds"])
            hours = found["estimated_seconds"] * run.run.recipe["steps"] * len(run.chains) / 3600
            cells = [
                f"{path.stem}: {said_of(run)}" + (" *" if "layers" in found else ""),
                slice_,
                f"{found['total'] / GIB:.1f} of {found['hbm'] / GIB:.0f}",
                *(f"{1e3 * found[name]:,.1f}" for name in ("lower_bound_seconds", "estimated_seconds")),
                found["bound_by"],
                f"{utilisation.utilisation(found, topology(slice_)):.0%}",
                f"{hours:,.1f}" if hours >= 1 else f"{hours:.2f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
            starred = starred or "layers" in found
    if len(lines) == 2:
        lines = ["No recipe has been compiled yet."]
    if starred:
        lines += ["", "\\* Extrapolated from two programs with few layers, because each layer adds the same cost."]
    for reason, recipes in missing.items():
        said = [f"{name} ({', '.join(dict.fromkeys(slices))})" for name, slices in recipes.items()]
        lines += ["", f"No plan in this table, {reason}: {', '.join(said)}."]
    data.write(lines, RESULT, "make bench-plan")
    print("\n".join(lines))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["plan", "check", "table"])
    parser.add_argument("recipes", nargs="*", metavar="RECIPE")
    parser.add_argument("--minutes", type=float, default=10.0, help="for a program, at the most")
    parser.add_argument("--layers", nargs=2, type=int)
    parser.add_argument("--only", metavar="KEY", help="of a run or a task, such as evaluation.tasks.mnli")
    parser.add_argument("--texts", type=Path, help="programs of few layers, read instead of compiled")
    arguments = parser.parse_args()
    names = [Path(name).stem for name in arguments.recipes]
    if arguments.what == "plan" and arguments.layers:
        plan_all(names, arguments.only, lambda *what: plan_few(*what, arguments.layers, arguments.texts))
    elif arguments.what == "plan":
        plan_all(names, arguments.only, lambda *what: plan(*what, arguments.minutes))
    elif arguments.what == "check":
        sys.exit(check_all(names))
    else:
        write_table()


if __name__ == "__main__":
    main()
