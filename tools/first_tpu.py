"""Train for some minutes on the accelerator of this machine, and write one page and one JSON file about it.

    make first-tpu            or: python tools/first_tpu.py

It trains the models of recipes/small/first-tpu.yaml over all chips, kills a training, resumes it, compares bytes, and
compares measured steps with their plans. If a step fails, the page names its log, and the next step begins. The folders
experiments/first-tpu and experiments/first-tpu-killed are deleted first. first-tpu.json names no path, host or user;
`python benchmarks/plan_table.py add FILE` adds it to the table of plans.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

try:
    from ruamel.yaml import YAML
    from tpulm.config.reading import read_yaml
    from tpulm.core import ledger
    from tpulm.core.accelerators import GIB, slice_named
    from tpulm.core.devices import accelerator_here, tpu_here
    from tpulm.core.errors import UserError, first_line
    from tpulm.core.files import fingerprints, read_json, write_json, write_text
    from tpulm.core.live_metrics import latest
    from tpulm.report.sources import columns_of
    from tpulm.report.tables import aligned
except ModuleNotFoundError as error:
    sys.exit(f"error: this Python has no {error.name}; activate the environment: `. .venv/bin/activate`.")

FOLDER, KILLED = Path("experiments/first-tpu"), Path("experiments/first-tpu-killed")
MASKED, TENSORFLOW, LORA = "mlm/jax", "mlm/tensorflow", "finetune/lora"
ASK = """
import json, sys
sys.path.append("scripts")
if sys.argv[1] == "jax":
    import jax
    jax.numpy.ones(8).sum().block_until_ready()
    platform, kind, count = jax.default_backend(), jax.devices()[0].device_kind, jax.device_count()
else:
    from tpulm.training import tensorflow_runtime as runtime
    count = runtime.strategy_here(True, 1).num_replicas_in_sync
    platform, kind = "tpu", runtime.device_name("")
print(json.dumps({"platform": platform, "kind": kind, "count": count}))
"""


def find_chips() -> dict:
    """Return platform, kind and count of the devices, and the name of their slice. Exits without any."""
    library = "jax" if find_spec("jax") else "tensorflow"
    # A process of its own: devices belong to it until it ends.
    asked = subprocess.run([sys.executable, "-c", ASK, library], capture_output=True, text=True)
    if asked.returncode:
        sys.exit(f"error: {library} finds no device: {(asked.stderr.splitlines() or ['it was killed'])[-1]}")
    chips = json.loads(asked.stdout.splitlines()[-1])
    if chips["platform"] == "cpu":
        if accelerator_here():
            sys.exit("error: JAX does not find the accelerator of this machine: make setup ENVIRONMENT=tpu, or gpu")
        chips["count"] = 8  # virtual devices, as in the recipe
    return chips | {"slice": slice_named(chips["kind"], chips["count"])}


def config_for(chips: dict) -> dict:
    """Return the recipe for these chips, with the runs that this environment can train."""
    cpus = chips["platform"] == "cpu"
    config = read_yaml(ROOT / f"recipes/small/first-tpu{'-on-cpus' if cpus else ''}.yaml")
    masked = config["mlm"]["runs"]
    for run in () if cpus else (*masked.values(), config["base"]["small"], config["finetune"]["runs"]["lora"]):
        run |= {"batch_size": 32 * chips["count"], "host_device_count": chips["count"]}
        run["resources"] = {"accelerator": chips["slice"]} if chips["slice"] else {}
    if chips["slice"]:
        config["plan"]["topologies"] = [chips["slice"]]
    if not find_spec("jax"):
        del masked["jax"], config["base"], config["finetune"], config["prompts"]["generate"]
    # On a TPU, TensorFlow trains in the environment tpu-tensorflow alone, which has no JAX.
    if not find_spec("tensorflow") or (tpu_here() and find_spec("jax")):
        del masked["tensorflow"]
    return config


def build(name: str, *targets: str, folder: Path = FOLDER, killed: Callable[[], bool] | None = None) -> None:
    """Run `snakemake -d FOLDER` with a log of this name. Raises UserError if it fails.

    killed  whether to kill it now; it fails if that is never true
    """
    with open(FOLDER / f"logs/{name}.txt", "w") as log:
        command = [sys.executable, "-m", "snakemake", *targets, "-d", folder]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        while process.poll() is None and not (killed and killed()):
            time.sleep(0.01)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    if process.wait() != (-signal.SIGKILL if killed else 0):
        raise UserError(f"the output of snakemake is in {FOLDER}/logs/{name}.txt")


class Trial:
    """The steps of a trial: what is known of each, and what the runs measured."""

    def __init__(self, chips: dict, config: dict):
        """Begin anew in the folders of the trial."""
        for folder in (FOLDER, KILLED):
            shutil.rmtree(folder, ignore_errors=True)
        (FOLDER / "logs").mkdir(parents=True)
        with open(FOLDER / "config.yaml", "w") as file:
            YAML(typ="safe", pure=True).dump(config, file)
        self.chips, self.masked, self.slice = chips, config["mlm"]["runs"], config["plan"]["topologies"][0]
        self.steps: list[dict] = []
        self.runs: dict[str, dict] = {}

    def step(self, name: str, function: Callable[..., str], *arguments: str) -> None:
        """Run a function that returns a sentence or raises an error, and print how it went."""
        print(f"{name} ...", flush=True)
        began = time.monotonic()
        try:
            said, passed = function(*arguments), True
        except (UserError, OSError, LookupError, ValueError) as error:
            said, passed = f"failed: {first_line(error)}", False
        seconds = round(time.monotonic() - began, 1)
        self.steps.append({"name": name, "seconds": seconds, "passed": passed, "said": said})
        print(f"    {seconds:.0f} s: {said}", flush=True)

    def prepare(self) -> str:
        """Make the records of the masked models, of which the run that is killed gets a copy."""
        build("text", "tfrecords")
        shutil.copytree(FOLDER, KILLED)
        return "text, vocabulary and records are there"

    def train(self, run: str) -> str:
        """Train and evaluate a run."""
        build(run.replace("/", "-"), f"results/{run}/metrics.json")
        folders = sorted((FOLDER / f"results/{run}/checkpoints").iterdir())
        losses = columns_of([folder / "history.csv" for folder in folders])["loss"]
        # Without the first step of each segment, which compiles.
        times = [time for folder in folders for time in columns_of([folder / "timings.csv"])["seconds_per_step"][1:]]
        jobs = [job for job in ledger.jobs_of(FOLDER) if job["id"].startswith(f"{run}/0")]
        peaks = [job["attempts"][-1].get("device_memory_bytes") or 0 for job in jobs]
        self.runs[run] = {"steps": len(losses), "losses": [losses[0], losses[-1]], "seconds": median(times)}
        self.runs[run] |= {"peak_bytes": max(peaks) or None, "sha256": fingerprints(folders[-1])["weights.safetensors"]}
        return f"{len(losses)} steps, {1e3 * median(times):,.1f} ms each, loss {losses[0]:.2f} to {losses[-1]:.2f}"

    def kill_and_resume(self) -> str:
        """Kill a training in its second segment, resume it, and compare it with the unbroken run."""
        every = self.masked["jax"]["checkpoint_every"]
        first, last = (f"results/{MASKED}/checkpoints/{step:08d}" for step in (every, 2 * every))
        if MASKED not in self.runs:
            raise UserError("there is no unbroken run to compare with")

        def trained() -> int:
            return (latest(KILLED / f"logs/{MASKED}/metrics.jsonl") or {"step": 0})["step"]

        build("killed", f"{last}/state.json", folder=KILLED, killed=lambda: trained() > every)
        at = trained()
        before = (KILLED / first / "state.json").stat().st_mtime_ns
        build("resumed", f"{last}/state.json", folder=KILLED)
        here, there = fingerprints(FOLDER / last), fingerprints(KILLED / last)
        other = [name for name in here if here[name] != there.get(name) and name != "timings.csv"]
        self.runs[MASKED] |= {"killed_at": at, "same_bytes": not other}
        if other or (KILLED / first / "state.json").stat().st_mtime_ns != before:
            raise UserError(f"after a kill at step {at}, {', '.join(other) or first} was not the same")
        return f"killed at step {at}, resumed from step {every}: the last checkpoint has the same bytes"

    def plan(self) -> str:
        """Plan the runs on JAX."""
        if not find_spec("libtpu"):
            return "left out: the TPU compiler is not installed; make setup ENVIRONMENT=tpu installs it"
        files = {run: f"results/plan/{run}/{self.slice}.json" for run in (MASKED, LORA) if run in self.runs}
        if not files:
            raise UserError("there is no measured run to compare with")
        build("plan", *files.values())
        for run, file in files.items():
            found = read_json(FOLDER / file)
            if not found["planned"]:
                raise UserError(f"{run} has no plan: {found['reason']}")
            keys = ("lower_bound_seconds", "estimated_seconds", "bound_by", "program_sha256")
            planned = {key: found[key] for key in keys} | {"slice": self.slice, "bytes": found["memory"]["total"]}
            self.runs[run] |= {"planned": planned, "run": {"stage": found["stage"], "recipe": found["recipe"]}}
        return f"for {self.slice}{'' if self.chips['slice'] else ', which is not here: nothing can be compared'}"

    def sample(self) -> str:
        """Run prompts on the models."""
        build("samples", f"results/{MASKED}/fill_mask.json", f"results/{LORA}/generations.json")
        (filled,) = read_json(FOLDER / f"results/{MASKED}/fill_mask.json")
        return f"{filled['prompt']} {', '.join(answer['token_str'].strip() for answer in filled['answers'])}"

    def write(self) -> None:
        """Write the page, and the JSON without its sentences: they may name paths."""
        software = {name: version for job in ledger.jobs_of(FOLDER) for name, version in job["software"].items()}
        versions = {"python": platform.python_version()} | dict(sorted(software.items()))
        steps = [{key: step[key] for key in ("name", "seconds", "passed")} for step in self.steps]
        found = {"chip": self.chips, "versions": versions, "steps": steps, "runs": self.runs}
        write_json(FOLDER / "first-tpu.json", found)
        cells = [["step", "seconds", "what happened"]]
        cells += [[step["name"], f"{step['seconds']:.0f}", step["said"]] for step in self.steps]
        runs = [["run", "ms a step", "planned", "GiB of a device", "planned", "SHA-256 of the weights"]]
        for run, measured in self.runs.items():
            planned = measured.get("planned", {})
            figures = [(measured["seconds"], 1e3), (planned.get("estimated_seconds"), 1e3)]
            figures += [(measured["peak_bytes"], 1 / GIB), (planned.get("bytes"), 1 / GIB)]
            shown = [f"{figure * factor:,.2f}" if figure else "not known" for figure, factor in figures]
            runs.append([run, *shown, measured["sha256"]])
        title = f"# First steps on {self.chips['count']} x {self.chips['kind']}"
        names = ", ".join(f"{name} {version}" for name, version in versions.items())
        write_text(FOLDER / "first-tpu.md", f"{title}\n\n{aligned(cells)}\n{aligned(runs)}\nVersions: {names}.\n")


def main() -> None:
    """Take all steps, and write what came of them."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    os.chdir(ROOT)
    chips = find_chips()
    trial = Trial(chips, config_for(chips))
    trial.step("text and records", trial.prepare)
    if "jax" in trial.masked:
        trial.step("masked model with JAX", trial.train, MASKED)
        trial.step("kill and resume", trial.kill_and_resume)
        trial.step("LoRA with JAX", trial.train, LORA)
        trial.step("plan", trial.plan)
        trial.step("samples", trial.sample)
    if "tensorflow" in trial.masked:
        trial.step("masked model with TensorFlow", trial.train, TENSORFLOW)
    trial.write()
    failed = sum(not step["passed"] for step in trial.steps)
    print(f"{failed} of {len(trial.steps)} steps failed; {FOLDER}/first-tpu.md and .json have the measurements")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
