"""Train on the TPU that is here, plan the same steps, and hold one against the other. It takes ten minutes.

    python benchmarks/tpu.py [--minutes 10]
    python benchmarks/tpu.py --tiny               the same at tiny size on a CPU, planned for --slice

Two steps, on a slice of any size: RoBERTa-base as pre-training has it (512 tokens, 32 records for each device), and
LoRA of Gemma 2B (512 tokens, 4 records for each device), with weights that are drawn, so nothing is downloaded. Each
trains in a process of its own, in five rounds, after its compilation; then it is planned in another one, as `snakemake
plan` does, without the TPU. The rows are written to benchmarks/results/tpu_steps.yaml, with which `make bench-plan`
shows them in its table, and fits the factors of plans to those with `use: fitted`.

Of a slice with several hosts, start it on each, at about the same time, with --hosts, --number (of this host, from 0)
and --coordinator (address of host 0 and a free port). Only host 0 writes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import plan_table  # it also finds the package
from ruamel.yaml import YAML
from tpulm.core import processes
from tpulm.core.accelerators import GIB, JAX_TPUS, TPUS, topology
from tpulm.core.devices import tpu_here
from tpulm.core.errors import UserError
from worker import Ended, Worker

HERE = Path(__file__).parent
ROUNDS, WARM = 5, 3  # steps that compile and fill the pipeline
HEAD = """# Steps measured by benchmarks/tpu.py, which writes this file. The keys are those of measured_steps.yaml.
# `use` is fitted or outside: whether `make bench-plan` fits the factors of plans to a row. You may change it.
# planned: lower bound and estimate in seconds, bytes for each device; peak_bytes: in use on the first device.
"""
WITHOUT = "to try this without one: python benchmarks/tpu.py --tiny --output FILE"
OPTIMIZER = {"weight_decay": 0.01, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-6, "global_clipnorm": None}
COMMON = {"packing": "concat", "microbatches": 1, "steps_per_execution": 1, "remat": False, "seed": 0, "mesh": [-1, 1]}
MASKING = {"mlm_probability": 0.15, "mask_replace_prob": 0.8, "random_replace_prob": 0.1}
# Without dropout of attention probabilities, which no kernel has.
ROBERTA = {"architecture": "roberta", "max_position_embeddings": 514, "attention_probs_dropout_prob": 0}
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TINY_GEMMA = {"architecture": "gemma", "num_layers": 2, "num_query_heads": 2, "num_key_value_heads": 1,
              "hidden_dim": 32, "intermediate_dim": 64, "head_dim": 16}  # fmt: skip


def runs(devices: int, tiny: bool) -> dict[str, dict]:
    """Return the runs to measure on so many devices: title, stage and recipe by name."""
    length = 128 if tiny else 512
    masked, causal = (2 * devices, 2 * devices) if tiny else (32 * devices, 4 * devices)
    common = COMMON | {"sequence_length": length, "optimizer": OPTIMIZER}
    base = {"model": TINY_GEMMA, "vocab_size": 512} if tiny else {"preset": "kaggle://keras/gemma/keras/gemma_2b_en/3"}
    roberta = {"precision": "mixed_bfloat16", "batch_size": masked, "masking": MASKING,
               "model": ROBERTA | (TINY if tiny else {}),
               "vocabulary": {"size": 512 if tiny else 50_265, "pad": 1}}  # fmt: skip
    gemma = {"precision": "bfloat16", "batch_size": causal, "method": "lora", "rank": 4, "base": base}
    small = "tiny " if tiny else ""
    return {
        "roberta-base": {
            "title": f"{small}RoBERTa-base, {length} tokens, {masked} records", "stage": "mlm",
            "recipe": common | roberta,
        },
        "gemma-2b-lora": {
            "title": f"{small}Gemma 2B, LoRA, {length} tokens, {causal} records", "stage": "finetune",
            "recipe": common | gemma,
        },
    }  # fmt: skip


def slice_of(device: str, devices: int) -> str:
    """Return the name of the slice with so many devices, by what JAX calls them. Raises UserError for no TPU."""
    if device not in JAX_TPUS:
        raise UserError(f'the device here is "{device}", no TPU; {WITHOUT}')
    version = JAX_TPUS[device]
    tpu = TPUS[version]
    chips = devices // tpu.devices
    return f"{version}-{2 * chips if tpu.counts == 'cores' else chips}"


def measured(run: dict, devices: int, seconds: float, folder: Path) -> dict:
    """Train a run on random records for so long; return the worker's `about`, and what the rounds took.

    devices  virtual ones, where there is no TPU
    """
    job = {"stage": run["stage"], "recipe": run["recipe"], "threads": os.cpu_count(), "devices": devices}
    worker = Worker([sys.executable, HERE / "jax_worker.py", json.dumps(job)], folder / "training.log")
    about = worker.ask("about")
    worker.ask(f"train {WARM}")
    worker.ask(f"train {WARM}")
    steps = worker.ask(f"fill {seconds / ROUNDS}")["steps"]
    rounds = [worker.ask(f"train {steps}") for _ in range(ROUNDS)]
    worker.end()
    taken = [answer["seconds"] / steps for answer in rounds]
    return about | {"seconds": taken, "peak_bytes": rounds[-1]["peak_bytes"]}


def row_of(run: dict, name: str, found: dict, kept: dict) -> dict:
    """Return the row of a measured step; kept  what the file says of it from before."""
    return {
        "title": run["title"],
        "slice": name,
        "seconds": round(statistics.median(found["seconds"]), 6),
        "spread": [round(of(found["seconds"]), 6) for of in (min, max)],
        "device": f"{found['devices']} x {found['device']}",
        "peak_bytes": found["peak_bytes"],
        "use": kept.get("use", "fitted"),
        "source": "benchmarks/tpu.py",
        "stands_for": "",
        "run": {"stage": run["stage"], "recipe": run["recipe"]},
    }


def plan(path: Path) -> None:
    """Plan the rows of a file that have no plan; write plans into it, and programs to results/steps beside it."""
    from tpulm.planning.compiled import analyze_program
    from tpulm.planning.estimate import step_estimate

    rows = read(path)
    plan_table.STEPS = path.parent / "steps"
    for name, row in rows.items():
        if "planned" in row:
            continue
        slice_ = topology(row["slice"])
        program, devices = plan_table.lowered_run(row["run"], plan_table.devices_of(slice_), name)
        found = analyze_program(program, slice_, devices)
        time = step_estimate(found, slice_)
        if time["estimated_seconds"] is not None:
            memory = ("arguments", "temporaries", "program", "total", "usable")
            plan_table.keep(name, {key: value for key, value in found.items() if key not in memory})
        wanted = ("lower_bound_seconds", "estimated_seconds", "bound_by")
        row["planned"] = {key: time[key] for key in wanted} | {"bytes": found["total"]}
        write(path, rows)


def read(path: Path) -> dict[str, dict]:
    """Return the rows of a file; none of one that is not there."""
    return YAML(typ="safe", pure=True).load(path)["rows"] if path.is_file() else {}


def write(path: Path, rows: dict[str, dict]) -> None:
    """Write rows to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = None, False
    with open(path, "w") as file:
        file.write(HEAD)
        yaml.dump({"rows": rows}, file)


def table(rows: dict[str, dict]) -> list[str]:
    """Return rows beside their plans, as Markdown."""
    lines = [
        "| step | slice | measured, ms | lowest, highest | at least | estimated | off by | GiB a device; as planned |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: | --- |",
    ]
    for row in rows.values():
        found, seconds = row["planned"], row["seconds"]
        least, estimate = found["lower_bound_seconds"], found["estimated_seconds"]
        times = [f"{1e3 * time:,.1f}" if time else "" for time in (least, estimate)]
        times.append(f"{estimate / seconds - 1:+.0%}" if estimate else "")
        peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / GIB:.2f}"
        spread = ", ".join(f"{1e3 * value:,.1f}" for value in row["spread"])
        cells = [row["title"], row["slice"], f"{1e3 * seconds:,.1f}", spread, *times]
        lines.append(f"| {' | '.join(cells)} | {peak}; {found['bytes'] / GIB:.2f} |")
    return lines


def measure(arguments: argparse.Namespace) -> None:
    """Measure, plan, and write the rows."""
    if arguments.hosts > 1:
        place = {
            processes.COUNT: arguments.hosts,
            processes.NUMBER: arguments.number,
            processes.COORDINATOR: arguments.coordinator,
        }
        os.environ |= {key: str(value) for key, value in place.items()}
    path, wanted = arguments.output, []
    # The number of devices is known once JAX has started: a batch must fit it, so a first process only asks.
    if arguments.tiny:
        devices = topology(arguments.slice).devices
    elif tpu_here():
        devices = int(subprocess.check_output([sys.executable, "-c", COUNT], text=True).split()[-1])
    else:
        raise UserError(f"there is no TPU here; {WITHOUT}")
    chosen = {name: run for name, run in runs(devices, arguments.tiny).items() if name in (arguments.steps or [name])}
    for name, run in chosen.items():
        with tempfile.TemporaryDirectory() as folder:
            # Half of the time is for imports, compilation and the plan.
            found = measured(run, devices, 30 * arguments.minutes / len(chosen), Path(folder))
        if found["process"]:
            continue
        slice_ = arguments.slice if arguments.tiny else slice_of(found["device"], found["devices"])
        rows, key = read(path), f"{name}-{slice_}"
        rows[key] = row_of(run, slice_, found, rows.get(key, {}))
        write(path, rows)
        wanted.append(key)
        print(f"{name}: {found['attention']}; {1e3 * rows[key]['seconds']:,.1f} ms a step", file=sys.stderr)
    if wanted:
        # In a process of its own, for which JAX's devices are those of a CPU.
        alone = {key: value for key, value in os.environ.items() if not key.startswith("TRAINING_")}
        subprocess.run([sys.executable, __file__, "--plan", "--output", str(path)], env=alone, check=True)
        rows = read(path)
        print("\n".join(table({key: rows[key] for key in wanted})))
        print(f"written to {path}")


COUNT = f"""
import sys
sys.path.insert(0, {str(HERE.parent / "scripts")!r})
from tpulm.training import runtime
runtime.start(1)
import jax
print(jax.device_count())
"""


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--steps", nargs="*", help="only these: roberta-base, gemma-2b-lora")
    parser.add_argument("--output", type=Path, default=plan_table.OWN)
    parser.add_argument("--tiny", action="store_true", help="tiny models, on this machine's CPUs")
    parser.add_argument("--slice", default="v5e-1", help="that --tiny plans for")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--number", type=int, default=0)
    parser.add_argument("--coordinator", metavar="ADDRESS:PORT")
    parser.add_argument("--plan", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tiny and arguments.output == plan_table.OWN:
        parser.error("--tiny needs --output: its rows are no measurements of a TPU")
    try:
        plan(arguments.output) if arguments.plan else measure(arguments)
    except (UserError, Ended) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
