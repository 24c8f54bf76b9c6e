"""Hold the model of plans against training steps that others have measured, and fit its factors to them.

    python benchmarks/plan_table.py compile [ROW ...] [--texts FOLDER]    what the compiler makes of each row
    python benchmarks/plan_table.py table                                 fit, leave one out, compare
    python benchmarks/plan_table.py add first-tpu.json [--source URL]     what `make first-tpu` measured, and all

The rows are in measured_steps.yaml, and those that benchmarks/tpu.py measured in results/tpu_steps.yaml. `compile`
takes a minute or more for each and writes what the model needs of the compiled program to results/steps/ROW.json; with
--texts, the text of the program is kept, compressed, and read again instead of compiled. `table` takes seconds. It
writes results/plan_table.md, and the factors, errors and numbers of rows into scripts/tpulm/planning/estimate.py, from
which plans take them. `add` appends to measured_steps.yaml, compiles the new rows and writes what `table` does.
"""

import argparse
import gzip
import io
import json
import math
import os
import re
import sys
from collections import defaultdict
from pathlib import Path
from textwrap import indent

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import numpy as np
from decoder import Decoder
from ruamel.yaml import YAML
from scipy.optimize import minimize
from tpulm.core.accelerators import Topology, parse_tpu, topology
from tpulm.planning.estimate import step_estimate

HERE = Path(__file__).parent
ROWS, OWN = HERE / "measured_steps.yaml", HERE / "results/tpu_steps.yaml"
STEPS, TABLE = HERE / "results/steps", HERE / "results/plan_table.md"
ESTIMATE = HERE.parent / "scripts/tpulm/planning/estimate.py"
START, TOLERANCE = (0.8, 0.8, 0.6), 0.25  # of the fit; of an estimate
ENOUGH = 5  # rows of a TPU version for an error of its own
# keras-hub's layouts of Gemma before and after its pull request 1491, by the dimension that they shard. LoRA's
# matrices had none: their paths did not match.
LAYOUTS = {
    "hidden": {
        "token_embedding/embeddings": (None, "model"),
        "decoder_block.*attention/(query|key|value)/kernel": (None, "model", None),
        "decoder_block.*attention/attention_output/kernel": (None, None, "model"),
        "decoder_block.*ffw_gating(_2)?/kernel": ("model", None),
        "decoder_block.*ffw_linear/kernel": (None, "model"),
    },
    "heads": {
        "token_embedding/embeddings": ("model", "batch"),
        "decoder_block.*attention/(query|key|value)/kernel": ("model", "batch", None),
        "decoder_block.*attention/attention_output/kernel": ("model", None, "batch"),
        "decoder_block.*ffw_gating(_2)?/kernel": ("batch", "model"),
        "decoder_block.*ffw_linear/kernel": ("model", "batch"),
    },
}


def rows() -> dict[str, dict]:
    """Return the measured steps by name, those of others first."""
    return {
        name: row
        for path in (ROWS, OWN)
        if path.is_file()
        for name, row in YAML(typ="safe", pure=True).load(path)["rows"].items()
    }


def lowered_run(run: dict, devices: list, where: str) -> tuple:
    """Return the lowered program of a run of this project, its devices, and the share of positions attended."""
    from keras.distribution import LayoutMap
    from tpulm.models import causal, sharding, token_losses
    from tpulm.planning.abstract_run import AbstractRun
    from tpulm.specs.training_step import TrainingStep
    from tpulm.training.runtime import set_precision

    if "layout" in run:

        def layout_map_of(backbone: type, mesh) -> LayoutMap:
            layout_map = LayoutMap(mesh)
            for path, axes in LAYOUTS[run["layout"]].items():
                layout_map[path] = axes
            return layout_map

        sharding.layout_map_of = layout_map_of
    if run.get("step") == "keras-hub":
        token_losses.head_of = lambda _: None
        causal.replace_call = lambda *_: None
    set_precision(run["recipe"]["precision"])
    abstract = AbstractRun(TrainingStep.of(run["stage"], where, run["recipe"]), devices)
    return abstract.lowered(), list(abstract.distribution.device_mesh.backend_mesh.devices.ravel())


def devices_of(slice_: Topology) -> list:
    """Return the devices of a slice for the compiler, which this process then asks."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_LOAD_LIBRARY": "1", "TPU_SKIP_MDS_QUERY": "1"}
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    from tpulm.training import runtime

    runtime.start(1)
    from jax.experimental import topologies

    return topologies.get_topology_desc(
        platform="tpu", topology_name=slice_.compiler_name, **slice_.compiler_options
    ).devices


def text_of(name: str, row: dict, slice_: Topology) -> tuple[str, list]:
    """Return the compiled text of a row, and the coordinates of the chip of each of its devices."""
    devices = devices_of(slice_)
    if "decoder" in row:
        from decoder_step import lowered

        program, devices = lowered(Decoder(**row["decoder"]), devices)
    else:
        program, devices = lowered_run(row["run"], devices, name)
    compiled = program.compile(compiler_options=row.get("options"))
    return compiled.as_text(), [list(device.coords) for device in devices]


def compile_row(name: str, row: dict, texts: Path | None) -> None:
    """Write what the model needs of a row's program."""
    from tpulm.planning.totals import total_work

    slice_ = topology(row["slice"])
    kept = texts / f"{name}.json.gz" if texts else None
    if kept and kept.is_file():
        text, coordinates = json.loads(gzip.decompress(kept.read_bytes()))
    else:
        text, coordinates = text_of(name, row, slice_)
        if kept:
            kept.write_bytes(gzip.compress(json.dumps([text, coordinates]).encode()))
    found = total_work(text, slice_, coordinates, attended=0.5 if "decoder" in row else 1.0)
    keep(name, found)
    print(name, found)


def add(path: Path, link: str) -> list[str]:
    """Append the planned runs of a first-tpu.json to measured_steps.yaml, and return the names of their rows.

    link  where the file was published. Exits with a sentence for another file, and for one without a TPU or a plan
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        chip, before, added = found["chip"], rows(), {}
    except (OSError, ValueError, KeyError, TypeError):
        sys.exit(f"error: {path} cannot be read; allowed: a first-tpu.json, as tools/first_tpu.py writes it.")
    if not chip["slice"]:
        sys.exit(
            f"error: {path} is of {chip['count']} x {chip['kind']}; allowed: a file of a TPU, which plans can predict."
        )
    for run, figures in found["runs"].items():
        if "planned" not in figures:
            continue
        base = name = f"first-tpu-{run.replace('/', '-')}-{chip['slice']}"
        number = 1
        while name in before:
            number += 1
            name = f"{base}-{number}"
        same = next((other for other, row in before.items() if row.get("run") == figures["run"]), None)
        added[name] = {
            "title": f"{run} of recipes/small/first-tpu.yaml, {figures['run']['recipe']['batch_size']} records",
            "slice": chip["slice"],
            "seconds": figures["seconds"],
            "peak_bytes": figures["peak_bytes"],
            "planned": figures["planned"],
            "use": "fitted",
            "source": link,
            "stands_for": "",
        } | ({"program": same} if same else {"run": figures["run"]})
    if not added:
        sys.exit(f"error: {path} has no run with a plan; allowed: a file in which the step that plans has passed.")
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = None, False
    text = io.StringIO()
    yaml.dump(added, text)
    with open(ROWS, "a", encoding="utf-8") as file:
        file.write("\n" + indent(text.getvalue(), "  "))
    return list(added)


def keep(name: str, found: dict) -> None:
    """Write what the model needs of a row's program."""
    STEPS.mkdir(parents=True, exist_ok=True)
    (STEPS / f"{name}.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")


def steps() -> dict[str, dict]:
    """Return what the model needs of each row's program; rows of the same program share it."""
    return {
        name: json.loads((STEPS / f"{row.get('program', name)}.json").read_text())
        for name, row in rows().items()
        if (STEPS / f"{row.get('program', name)}.json").is_file()
    }


def measured(row: dict) -> float:
    """Return the seconds of a step: as published, or from MaxText's TFLOP/s of a chip."""
    if "seconds" in row:
        return row["seconds"]
    return Decoder(**row["decoder"]).model_flops / (row["tflops"] * 1e12)


def fit(programs: dict[str, dict], table: dict[str, dict], names: list[str]) -> tuple[float, ...]:
    """Return the three factors, two digits each, by weighted least squares of log(estimated / measured)."""
    wanted = {name: measured(table[name]) for name in names}
    weights = {name: table[name].get("weight", 1) for name in names}
    unique: dict[str, str] = {}
    for name in names:
        unique.setdefault(table[name].get("program", name), name)
    slices = {name: topology(table[name]["slice"]) for name in names}

    def loss(factors: np.ndarray) -> float:
        found = {
            program: step_estimate(programs[name], slices[name], factors=tuple(factors))["estimated_seconds"]
            for program, name in unique.items()
        }
        return sum(
            weights[name] * math.log(found[table[name].get("program", name)] / seconds) ** 2
            for name, seconds in wanted.items()
        )

    best = minimize(loss, START, method="Nelder-Mead", bounds=[(0.05, 1.0)] * 3, options={"xatol": 2e-3, "fatol": 1e-5})
    return tuple(float(round(value, 2)) for value in best.x)


def compare() -> tuple[tuple[float, ...], dict[str, float], list[dict]]:
    """Return the factors, the errors of an estimate, and a comparison of each row that has been compiled.

    A version with ENOUGH fitted and held-out rows has an error of its own; "all" is for the others.

    Each: name, use (fitted, held-out or outside), measured, lower_bound, bound_by, and estimated with factors that were
    not fitted to the row.
    """
    table, programs = rows(), steps()
    fitted = [name for name in programs if use_of(table[name]) == "fitted"]
    factors = fit(programs, table, fitted)
    found = []
    for name, program in programs.items():
        row = table[name]
        own = fit(programs, table, [other for other in fitted if other != name]) if name in fitted else factors
        here = step_estimate(program, topology(row["slice"]), factors=own)
        line = {"name": name, "use": use_of(row), "measured": measured(row)}
        line |= {"lower_bound": here["lower_bound_seconds"], "estimated": here["estimated_seconds"]}
        found.append(line | {"bound_by": here["bound_by"], "off": here["estimated_seconds"] / line["measured"] - 1})
    over = defaultdict(list)
    for line in (line for line in found if line["use"] != "outside"):
        for group in ("all", version_of(table[line["name"]])):
            over[group].append(math.ceil(100 * (line["measured"] / line["estimated"] - 1)) / 100)
    return factors, {group: max(own) for group, own in over.items() if len(own) >= ENOUGH or group == "all"}, found


def use_of(row: dict) -> str:
    """Return fitted, held-out or outside."""
    return row["use"].split(",")[0]


def version_of(row: dict) -> str:
    """Return the TPU version of a measured step."""
    return parse_tpu(row["slice"])[0]


def numbers() -> dict[str, tuple[int, int, int]]:
    """Return the numbers of compiled rows by TPU version, see `estimate.MEASURED`."""
    table, found = rows(), {}
    for name in steps():
        ours = name.startswith("first-tpu-") or table[name]["source"] == "benchmarks/tpu.py"
        use = "ours" if ours else use_of(table[name])
        if use != "outside":
            found.setdefault(version_of(table[name]), [0, 0, 0])[("fitted", "held-out", "ours").index(use)] += 1
    return {version: tuple(counts) for version, counts in found.items()}


def without_version() -> dict[str, float]:
    """Return how far estimates are off, at most, with all rows of a TPU version left out of the fit, by version."""
    table, programs = rows(), steps()
    fitted = [name for name in programs if use_of(table[name]) == "fitted"]
    found: dict[str, float] = {}
    for version in sorted({version_of(table[name]) for name in fitted}):
        out = [name for name in fitted if version_of(table[name]) == version]
        factors = fit(programs, table, [name for name in fitted if name not in out])
        off = (
            step_estimate(programs[name], topology(table[name]["slice"]), factors=factors)["estimated_seconds"]
            / measured(table[name])
            - 1
            for name in out
        )
        found[version] = max(off, key=abs)
    return found


def write_estimate(factors: tuple[float, ...], errors: dict[str, float]) -> None:
    """Write the factors, the errors and the numbers of compiled rows into the module that plans take them from."""
    text = ESTIMATE.read_text(encoding="utf-8")
    values = dict(zip(("COMPUTE", "MEMORY", "LINKS"), map(str, factors), strict=True))
    counts = "".join(f'    "{version}": {of_version},\n' for version, of_version in sorted(numbers().items()))
    values |= {"ERRORS": json.dumps(errors), "MEASURED": f"{{\n{counts}}}"}
    for name, value in values.items():
        text = re.sub(rf"^{name} = ([\d.]+|{{[^}}]*}})", f"{name} = {value}", text, flags=re.MULTILINE)
    ESTIMATE.write_text(text, encoding="utf-8")


def write_table() -> None:
    """Write the comparison as Markdown, and what plans take of it."""
    factors, errors, found = compare()
    write_estimate(factors, errors)
    table, compared = rows(), {line["name"]: line for line in found}
    lines = [
        f"Factors: {factors[0]:.2f} of the peak arithmetic, {factors[1]:.2f} of the peak HBM bandwidth, "
        f"{factors[2]:.2f} of the peak link bandwidth. A fitted or held-out step takes at most {errors['all']:.0%} "
        "longer than estimated.",
        "",
        "| step | slice | use | measured, ms | at least, ms | estimated, ms | error | source |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for name, row in table.items():
        cells, line = [f"{1e3 * measured(row):,.1f}", "not compiled", "", ""], compared.get(name)
        if line:
            miss = " (miss)" if abs(line["off"]) > TOLERANCE and line["use"] != "outside" else ""
            cells = [f"{1e3 * line[key]:,.1f}" for key in ("measured", "lower_bound", "estimated")]
            cells.append(f"{line['off']:+.0%}{miss}")
        cells = [row["title"], row["slice"], row["use"], *cells, f"[{source(row)}]({row['source']})"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| version | fitted | held-out | outside | fitted, without rows of this version |"]
    lines += ["| --- | ---: | ---: | ---: | ---: |"]
    unseen = without_version()
    for version in dict.fromkeys(version_of(row) for row in table.values()):
        here = [line for line in found if version_of(table[line["name"]]) == version]
        off = [[line["off"] for line in here if line["use"] == use] for use in ("fitted", "held-out", "outside")]
        cells = [f"{len(own)}: {max(own, key=abs):+.0%}" if own else "" for own in off]
        lines.append(f"| {version} | {' | '.join(cells)} | {f'{unseen[version]:+.0%}' if version in unseen else ''} |")
    import data  # it needs the tests' environment, which is not on a TPU

    data.write(lines, TABLE, "make bench-plan")
    print("\n".join(lines))


def source(row: dict) -> str:
    """Return a short name of a row's source."""
    names = {
        "mlcommons": "MLPerf v0.7",
        "keras-hub": "keras-hub 1491",
        "ai.google": "tutorial",
        "tpu-recipes": "tpu-recipes",
        "colabtools": "tutorial on Colab",
        "benchmarks/tpu.py": "measured here",
        "first_tpu": "first-tpu",
        "issues": "first-tpu",
    }
    return next(
        (name for word, name in (names | {"maxtext": "MaxText", "mintext": "notes"}).items() if word in row["source"]),
        "",
    )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["compile", "add", "table"])
    parser.add_argument("rows", nargs="*", help="rows to compile, or files to add")
    parser.add_argument("--source", default="tools/first_tpu.py", help="where added files were published")
    parser.add_argument("--texts", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "add":
        for name in (name for path in arguments.rows for name in add(Path(path), arguments.source)):
            if "run" in rows()[name]:
                compile_row(name, rows()[name], arguments.texts)
        write_table()
    elif arguments.what == "compile":
        programs = {name: row for name, row in rows().items() if "run" in row or "decoder" in row}
        for name in arguments.rows or programs:
            if name not in programs:
                parser.error(f"{name} is no row with a program; allowed: {', '.join(programs)}")
            compile_row(name, programs[name], arguments.texts)
    else:
        write_table()


if __name__ == "__main__":
    main()
