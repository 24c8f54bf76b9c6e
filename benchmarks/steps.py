"""The training step on this machine, beside the published one, and what surrounds it.

    python benchmarks/steps.py [--rounds 5] [--before COMMIT] [--only PART ...] [--quick]

- steps: a small RoBERTa on the same records, trained by the published `fit`, by `backend: tensorflow` and by
  `backend: jax` (step_worker.py), each in a process of its own. All three are there from the beginning, and train by
  turns, so that a busy machine slows all of them down. Then two more seeds, and the held-out loss of all.
- first step: from the start of the process to the end of its first step, without and with programs compiled before.
- whole: `snakemake` on the shipped config, beside that of an earlier COMMIT, by turns; processor time of all processes.
- generation: what start-up and compilation cost when the finetuned model of that job generates; the same two versions.
- gap: what of a segment of the shipped config is no training, by its own record (tpulm.training.phases), and which part
  of a segment that would be in each recipe that benchmarks/recipes.py has planned, by the estimate of a step.

Prints tables, and writes them to benchmarks/results/steps.md and into README.md. A part that fails is named there, and
the others are measured all the same; README.md is written only where all parts are there. With --quick, all of it is at
tiny size, and nothing is written.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import data  # it also finds the package and the tests' Workflow
import pytest
from conftest import PARTS, ROOT, Workflow, existing, reduced
from data import by_turns, machine, median, timed
from gaps import gap_rows, gaps, planned
from generation import generation_lines
from ruamel.yaml import YAML
from step_table import OURS, PUBLISHED, ratios, step_rows
from worker import Worker

RESULT = ROOT / "benchmarks/results/steps.md"
BEGIN = "<!-- `make bench-steps` writes from here -->\n"
WORKER = ROOT / "benchmarks/step_worker.py"
SEEDS, PROFILED = (0, 1, 2), 5  # seeds, and the steps of a profile
PARTS_MEASURED = ("steps", "whole", "generation", "gap")  # the last two are of what the whole has left


class Size(NamedTuple):
    """What is trained: tokens of a record, records of a batch, and of the steps those of a round and all."""

    model: dict
    vocabulary: int
    length: int
    batch_size: int
    of_round: int
    steps: int


def of(hidden: int, layers: int, length: int) -> dict:
    """Return the model of a size."""
    return {
        "architecture": "roberta", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 4,
        "intermediate_size": 4 * hidden, "max_position_embeddings": length + 4, "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
    }  # fmt: skip


FULL = Size(of(256, 4, 128), 10_048, 128, 8, of_round=40, steps=400)
QUICK = Size(of(16, 1, 32), 400, 32, 4, of_round=2, steps=12)


class Training(Worker):
    """A process that trains in one way when it is told to."""

    def __init__(self, way: str, folder: Path, cache: Path, size: Size, seed: int):
        """Start it; cache  the folder that it keeps compiled programs below."""
        job = {
            "seed": seed, "steps": size.steps, "batch_size": size.batch_size, "model": size.model, "rate": 1e-3,
            "warmup": size.steps // 10, "weight_decay": 0.01, "threads": 2,
        }  # fmt: skip
        self.step = 0
        super().__init__([sys.executable, WORKER, way, folder, json.dumps(job)], cache / f"{way}.log")

    def train(self, steps: int) -> dict:
        """Train so many steps; return the answer."""
        self.step += steps
        return self.ask(f"train {steps}")

    def profile(self) -> list[tuple[str, float]]:
        """Train a few steps; return their costliest operations, with their shares of the time of all."""
        self.step += PROFILED
        return self.ask(f"profile {PROFILED}")["operations"]

    def finish(self, size: Size) -> float:
        """Train what is left of the run; return the held-out loss, and end the process."""
        if size.steps > self.step:
            self.train(size.steps - self.step)
        loss = self.ask("loss")["loss"]
        self.end()
        return loss


def prepared(folder: Path, size: Size) -> Path:
    """Return the results of a workflow in `folder`: records of the source of Python's library, and their tokenizer."""
    workflow = Workflow(folder)
    config = {
        "title": "Steps",
        "corpus": {"source": "python-source", "held_out": {"validation": 0.02, "test": 0.02}},
        "tokenizer": {"vocab_size": size.vocabulary},
        "tfrecords": {"sequence_length": size.length, "shards": {"train": 1, "validation": 1, "test": 1}},
    }
    if size is QUICK:
        config["corpus"] = config["corpus"] | {"max_documents": 400}
    with open(workflow / "config.yaml", "w") as file:
        YAML(typ="safe", pure=True).dump(config, file)
    workflow.as_a_user("results/tfrecords/manifest.json", "--cores", "2")
    return workflow / "results"


def measure_steps(folder: Path, scratch: Path, size: Size, rounds: int) -> tuple[dict, dict, dict, dict]:
    """Return by way the seconds of a step in each round, those to the first step, held-out losses, profiles.

    Those to the first step are by phase, without and with compiled programs; at tiny size only without. Profiles are
    the costliest operations, of those that miss their aims.
    """
    ways = [PUBLISHED, *OURS]

    def started(way: str, seed: int = SEEDS[0]) -> Training:
        return Training(way, folder, scratch / way, size, seed)

    first: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for way in ways if size is FULL else ():
        worker = started(way)
        first[way].append(worker.train(1)["phases"])
        worker.end()
    workers = {}
    for way in ways:  # one after another: nothing else runs beside the start of a process
        workers[way] = started(way)
        first[way].append(workers[way].train(1)["phases"])
    for worker in workers.values():
        worker.train(size.of_round // 2)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, worker in workers.items():
            seconds[way].append(worker.train(size.of_round)["seconds"] / size.of_round)
            print(f"{way}: {seconds[way][-1] * 1e3:.0f} ms a step", file=sys.stderr)
    missed = (way for way, aim in OURS.items() if statistics.median(ratios(seconds, way)) < aim)
    profiles = {way: workers[way].profile() for way in missed}
    losses = {way: [worker.finish(size)] for way, worker in workers.items()}
    for seed in SEEDS[1:] if size is FULL else ():
        for way in ways:
            losses[way].append(started(way, seed).finish(size))
    return seconds, first, losses, profiles


def earlier(commit: str, folder: Path) -> Workflow:
    """Return the workflow of an earlier commit, in a folder of its own."""
    folder.mkdir()
    parts = [
        part
        for part in PARTS
        if subprocess.run(["git", "cat-file", "-e", f"{commit}:{part}"], cwd=ROOT).returncode == 0
    ]
    archive = subprocess.run(["git", "archive", commit, *parts], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "x"], cwd=folder, input=archive, check=True)
    return existing(folder)


def whole_lines(scratch: Path, runs: int, before: str | None, quick: bool) -> list[str]:
    """Return what the embedded job takes from nothing; the last run of now is left in scratch/now."""
    workflows = [Workflow(scratch / "now")]
    if before:
        workflows.append(earlier(before, scratch / "then"))
    if quick:
        for workflow in workflows:
            reduced(workflow)
            (workflow / "small.yaml").replace(workflow / "config.yaml")

    def run(workflow: Workflow) -> data.Time:
        for made in ("results", "logs", ".snakemake"):
            shutil.rmtree(workflow / made, ignore_errors=True)
        command = [str(Path(sys.executable).with_name("snakemake")), "--cores", str(os.cpu_count())]
        return timed(command, cwd=workflow.folder)

    medians = [median(times) for times in by_turns(runs, *(partial(run, workflow) for workflow in workflows))]
    told = [f"{time.clock:.0f} s by the clock, {time.processors:.0f} s of the processors" for time in medians]
    runs_said = "one run" if runs == 1 else f"medians of {runs} runs by turns"
    lines = [f"The embedded job, `snakemake` on the shipped config, takes {told[0]} ({runs_said})."]
    if before:
        clock, processors = (own / other for own, other in zip(*medians, strict=True))
        lines.append(f"At {before} it took {told[1]}: ratios {clock:.2f} and {processors:.2f}; aim 0.6.")
    return lines


def steps_lines(scratch: Path, size: Size, rounds: int) -> list[str]:
    """Return the table of training steps."""
    results = prepared(scratch / "records", size)
    table = step_rows(*measure_steps(results, scratch / "workers", size, rounds), size.length * size.batch_size)
    about = (
        f"RoBERTa of {size.model['num_hidden_layers']} layers x {size.model['hidden_size']}, vocabulary "
        f"{size.vocabulary:,}, batch {size.batch_size} x {size.length}, float32, two threads. Medians of {rounds} "
        f"rounds of {size.of_round} steps by turns, lowest and highest in brackets; held-out loss in nats per masked "
        f"token after {size.steps} steps."
    )
    return [about, "", *table]


def gap_lines(scratch: Path) -> list[str]:
    """Return the tables of the gap, of the run of the embedded job that `whole_lines` left."""
    return gap_rows(gaps(existing(scratch / "now")), planned())


def measured(parts: dict[str, Callable[[], list[str]]]) -> tuple[list[str], list[str]]:
    """Return the lines of all parts, and the names of those that failed; why is printed."""
    lines: list[str] = []
    failed = []
    for name, part in parts.items():
        print(f"measuring: {name}", file=sys.stderr, flush=True)
        try:
            lines += [*part(), ""]
        except (Exception, pytest.fail.Exception) as error:  # one part that fails must not cost the hour of the others
            traceback.print_exc()
            failed.append(name)
            lines += [f"Not measured: {name} ({type(error).__name__}).", ""]
    return lines[:-1], failed


def main() -> None:
    """Measure, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", metavar="COMMIT", help="measure the embedded job beside that of this commit, too")
    parser.add_argument("--wholes", type=int, help="runs of the embedded job, of each commit; 3 with --before, else 1")
    parser.add_argument("--only", nargs="*", choices=PARTS_MEASURED, help="these parts; nothing is written")
    parser.add_argument("--quick", action="store_true", help="at tiny size; nothing is written")
    arguments = parser.parse_args()
    size = QUICK if arguments.quick else FULL
    wholes = arguments.wholes or (3 if arguments.before and not arguments.quick else 1)
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        parts = {
            "steps": partial(steps_lines, scratch, size, arguments.rounds),
            "whole": partial(whole_lines, scratch, wholes, arguments.before, arguments.quick),
            "generation": partial(generation_lines, scratch, wholes, arguments.before),
            "gap": partial(gap_lines, scratch),
        }
        lines, failed = measured({name: parts[name] for name in arguments.only or PARTS_MEASURED})
    head = f"Measured by `make bench-steps` on {machine()}, Python {platform.python_version()}."
    text = "\n".join([head, "", *lines]) + "\n"
    print(text)
    if not (arguments.quick or arguments.only):
        if failed:
            RESULT.write_text(text)
        else:
            data.publish(text.splitlines(), RESULT, BEGIN)
    if failed:
        sys.exit(f"error: not measured: {', '.join(failed)}; the messages are above")


if __name__ == "__main__":
    main()
