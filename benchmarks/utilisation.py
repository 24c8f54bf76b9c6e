"""The model FLOPs utilisation (MFU) that plans reach, beside what is aimed at, and what bounds a step.

    python benchmarks/utilisation.py compile [RUN-SLICE ...] [--before] [--layers 1 3] [--texts FOLDER]
    python benchmarks/utilisation.py table

The rows are in utilisation.yaml. `compile` takes minutes for each. It compiles a run with few layers, twice; layers
take the same time and memory, so all of them follow from the two. With one number of `--layers`, the run itself: 0 is
all that it has. What the table needs is kept in results/utilisation.json, row by row; with --texts, the text of each
program is kept, compressed, and read again instead of compiled. `table` takes seconds, and writes
results/utilisation.md.
"""

import argparse
import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import data  # it also finds the package
import plan_table
from conftest import ROOT
from ruamel.yaml import YAML
from tpulm.config.outline import Outline, Run
from tpulm.config.reading import read_config
from tpulm.core.accelerators import GIB, Topology, topology
from tpulm.core.files import read_json
from tpulm.planning.estimate import FACTORS, of_roofs, step_estimate
from tpulm.planning.totals import total_work

ROWS, RECIPE = ROOT / "benchmarks/utilisation.yaml", ROOT / "recipes/tpu-plans.yaml"
KEPT, RESULT = ROOT / "benchmarks/results/utilisation.json", ROOT / "benchmarks/results/utilisation.md"
SUMMED = ("total", "model_flops")  # what each layer adds to


def rows() -> dict[str, dict]:
    """Return what is planned, by RUN-SLICE: run, slice, target, and the changes of the recipe: before, and now."""
    table = YAML(typ="safe", pure=True).load(ROWS)
    return {
        f"{name}-{slice_}": {
            "run": name,
            "slice": slice_,
            "target": target,
            "before": before,
            "now": table["now"].get(name, {}).get(slice_, {}),
        }
        for name, before in table["before"].items()
        for slice_, target in table["targets"].items()
    }


def run_of(row: dict) -> Run:
    """Return the run of a row."""
    return next(run for run in Outline(read_config([str(RECIPE)], {})).runs.values() if run.name == row["run"])


def changed(recipe: dict, changes: dict[str, Any]) -> dict:
    """Return a recipe with other values, by their keys, with dots between those of mappings."""
    recipe = json.loads(json.dumps(recipe))
    for key, value in changes.items():
        *path, last = key.split(".")
        where = recipe
        for part in path:
            where = where[part]
        where[last] = value
    return recipe


def compiled(row: dict, state: str, layers: int) -> list:
    """Return what `program_of` does for a row before or now."""
    if state == "before":  # as models were built then
        plan_table.devices_of(topology(row["slice"]))  # it starts the runtime, which comes first
        from tpulm.models import token_losses
        from tpulm.models.attention import Attention
        from tpulm.training import jax_run

        jax_run.attention_of = lambda *_: Attention("plain", "as it was")
        token_losses.head_of = lambda _: None
    run = run_of(row)
    return program_of(run, changed(run.plan_recipe(), row[state]), row["slice"], layers)


def abstract_of(run: Run, recipe: dict, slice_: str, layers: int) -> tuple[Any, int]:
    """Return an AbstractRun of a run on a slice, and the layers that the run has.

    recipe  of the plan of the run
    layers  of the model; 0 for as many as it has
    """
    devices = plan_table.devices_of(topology(slice_))
    from tpulm.planning.abstract_run import AbstractRun, without_preset
    from tpulm.specs.training_step import TrainingStep
    from tpulm.training.runtime import set_precision

    step = TrainingStep.of(run.stage, run.key, recipe)
    set_precision(step.model.precision)
    model = without_preset(step.model)
    key = "num_hidden_layers" if run.stage == "mlm" else "num_layers"
    whole = model.source.sizes[key]
    sizes = dict(model.source.sizes) | {key: layers or whole}
    step = replace(step, model=replace(model, source=replace(model.source, sizes=sizes)))
    return AbstractRun(step, devices), whole


def program_of(run: Run, recipe: dict, slice_: str, layers: int) -> list:
    """Return compiled text, coordinates of the chips of its devices, and what is known; arguments as `abstract_of`."""
    abstract, whole = abstract_of(run, recipe, slice_, layers)
    from tpulm.models.flops import model_flops_of
    from tpulm.planning.compiled import program_sha256

    step, lowered = abstract.step, abstract.lowered()
    program = lowered.compile()
    memory = program.memory_analysis()
    known = {
        "layers": whole,
        "program_sha256": program_sha256(lowered),
        "total": memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes,
        "model_flops": model_flops_of(abstract),
        "attention": str(abstract.run.attention),
        "records": step.batch_size,
        "tokens": step.tokens_per_step,
        "microbatches": step.microbatches,
        "remat": step.remat,
    }
    partitions = abstract.distribution.device_mesh.backend_mesh.devices.ravel()
    return [program.as_text(), [list(device.coords) for device in partitions], known]


def text_in(texts: Path | None, name: str, make: Callable[[], list]) -> list:
    """Return what `make` does, out of a folder of kept texts where it is there."""
    file = texts / f"{name}.json.gz" if texts else None
    if file and file.is_file():
        return json.loads(gzip.decompress(file.read_bytes()))
    program = make()
    if file:
        file.write_bytes(gzip.compress(json.dumps(program).encode()))
    return program


def found_in(text: str, coordinates: list, known: dict, slice_: Topology) -> dict:
    """Return what is kept of a program."""
    found = step_estimate(total_work(text, slice_, coordinates), slice_)
    return known | {"seconds": found["seconds"], "devices": len(coordinates)}


def origin(row: dict, state: str) -> str:
    """Return a hash of what the figures of a row follow from, see `recipe_hash`."""
    return recipe_hash(changed(run_of(row).plan_recipe(), row[state]), row["slice"])


def recipe_hash(recipe: dict, slice_: str) -> str:
    """Return a hash of what a plan's program follows from: the planned recipe and the slice."""
    return hashlib.sha256(json.dumps([recipe, slice_], sort_keys=True).encode()).hexdigest()


def current(kept: dict[str, dict], name: str, row: dict, state: str) -> dict[str, dict]:
    """Return the programs of a row, by their layers, that are of the row as it is now."""
    programs, of = kept.get(name, {}).get(state, {}), origin(row, state)
    return {layers: found for layers, found in programs.items() if found.get("origin") == of}


def compile_rows(names: list[str], state: str, depths: list[int], texts: Path | None) -> None:
    """Compile rows, before or now, with so many layers each; keep what the table needs as soon as it is there."""
    for name, row in rows().items():
        if names and name not in names:
            continue
        for layers in depths:
            program = text_in(texts, f"{name}-{state}-{layers}", lambda: compiled(row, state, layers))  # noqa: B023
            found = found_in(*program, topology(row["slice"])) | {"origin": origin(row, state)}
            kept = read_json(KEPT) if KEPT.is_file() else {}
            kept.setdefault(name, {}).setdefault(state, {})[str(layers or found["layers"])] = found
            KEPT.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
            print(name, state, layers, found, flush=True)


def whole(programs: dict[str, dict]) -> dict | None:
    """Return what follows of programs, by their layers, for all layers, with its times; None where they do not say it.

    Each layer adds what the deeper of two programs has more than the other, by their difference in layers.
    """
    if not programs:
        return None
    layers = next(iter(programs.values()))["layers"]
    if str(layers) in programs:
        found = programs[str(layers)]
        return found | of_roofs(found["seconds"])
    if len(programs) < 2:
        return None
    few, more = sorted(map(int, programs))[:2]
    first, last = programs[str(few)], programs[str(more)]
    ahead = (layers - more) / (more - few)
    found = last | {name: last[name] + ahead * (last[name] - first[name]) for name in SUMMED}
    found["seconds"] = {
        name: seconds + ahead * (seconds - first["seconds"][name]) for name, seconds in last["seconds"].items()
    }
    return found | of_roofs(found["seconds"])


def utilisation(found: dict, slice_: Topology) -> float:
    """Return the MFU of a step, by its estimate."""
    return found["model_flops"] / (found["estimated_seconds"] * found["devices"] * slice_.flops)


def target_of(target: Any) -> float | None:
    """Return an MFU that is aimed at: a number, or a share of what the model makes of a measured step."""
    if not isinstance(target, dict):
        return float(target)
    name, programs = target["of"], plan_table.steps()
    if name not in programs:
        return None
    row = plan_table.rows()[name]
    slice_ = topology(row["slice"])
    estimated = step_estimate(programs[name], slice_)["estimated_seconds"]
    flops = plan_table.Decoder(**row["decoder"]).model_flops
    return target["share"] * flops / (estimated * slice_.flops)


def write_table() -> None:
    """Write the MFU of each row, and what takes the time where the target is missed."""
    kept = read_json(KEPT) if KEPT.is_file() else {}
    lines = [
        "| run | slice | batch, microbatch | GiB a device | ms a step | MFU before | MFU | target | bound by |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    missed, missing = [], []
    for name, row in rows().items():
        slice_, target = topology(row["slice"]), target_of(row["target"])
        now, before = (whole(current(kept, name, row, state)) for state in ("now", "before"))
        if now is None:
            missing.append(f"{row['run']} ({row['slice']})")
            continue
        reached = utilisation(now, slice_)
        miss = target is not None and reached < target
        cells = [
            f"{now['records']:,}, {now['records'] // now['microbatches']:,}" + (", remat" if now["remat"] else ""),
            f"{now['total'] / GIB:.1f} of {slice_.hbm / GIB:.0f}",
            f"{1e3 * now['estimated_seconds']:,.0f}",
            f"{utilisation(before, slice_):.0%}" if before else "",
            f"{reached:.0%}" + (" (miss)" if miss else ""),
            "" if target is None else f"{target:.0%}",
            now["bound_by"],
        ]
        lines.append(f"| {row['run']} | {row['slice']} | {' | '.join(cells)} |")
        if miss:
            missed.append(profile(row, now))
    if len(lines) == 2:
        lines = ["No row has been compiled yet."]
    if missed:
        lines += ["", "Where the target is missed, each time as a share of the estimated step:", "", *missed]
    if missing:
        lines += ["", f"Not compiled yet: {', '.join(missing)}."]
    data.write(lines, RESULT, "make bench-plan")
    print("\n".join(lines))


def profile(row: dict, found: dict) -> str:
    """Return a line with the parts of a step's estimate."""
    parts = zip(found["seconds"].items(), FACTORS, strict=True)
    said = [f"{name} {seconds / share / found['estimated_seconds']:.0%}" for (name, seconds), share in parts]
    return f"- {row['run']} on {row['slice']}: {'; '.join(said)}."


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["compile", "table"])
    parser.add_argument("rows", nargs="*", metavar="RUN-SLICE")
    parser.add_argument("--before", action="store_true", help="as it was: plain attention, logits of the vocabulary")
    parser.add_argument("--layers", nargs="+", type=int, default=[1, 3])
    parser.add_argument("--texts", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "compile":
        compile_rows(arguments.rows, "before" if arguments.before else "now", arguments.layers, arguments.texts)
    else:
        write_table()


if __name__ == "__main__":
    main()
