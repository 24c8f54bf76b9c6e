"""The training step on this machine, beside the published one, and what surrounds it.

    python benchmarks/steps.py [--rounds 5] [--before COMMIT] [--quick]

- steps: a small RoBERTa on the same records, trained by the published `fit`, by `backend: tensorflow` and by
  `backend: jax` (step_worker.py), each in a process of its own. All three are there from the beginning, and train by
  turns, so that a busy machine slows all of them down. Then two more seeds, and the held-out loss of all.
- first step: from the start of the process to the end of its first step, without and with programs compiled before.
- gap: what of a segment of the shipped config is no training, by its own record (tpulm.training.phases), and which part
  of a segment that would be in each recipe that can be planned, by the plan's estimate of a step.
- whole: `snakemake` on the shipped config, beside that of an earlier COMMIT, by turns; processor time of all processes.

Prints tables, and writes them to benchmarks/results/steps.md and into README.md.
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
from pathlib import Path
from typing import NamedTuple

import data  # it also finds the package and the tests' Workflow
from conftest import PARTS, ROOT, Workflow
from data import Time, by_turns, machine, median, timed
from gaps import gap_rows, gaps, planned
from ruamel.yaml import YAML

RESULT = ROOT / "benchmarks/results/steps.md"
BEGIN = "<!-- `make bench-steps` writes from here -->\n"
WORKER = ROOT / "benchmarks/step_worker.py"
PUBLISHED, OURS = "published", {"tensorflow": 1.8, "jax": 1.3}  # and their aims
SEEDS = (0, 1, 2)


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


FULL = Size(of(256, 4, 128), 10_048, 128, 8, of_round=20, steps=400)
QUICK = Size(of(16, 1, 32), 400, 32, 4, of_round=2, steps=12)


class Worker:
    """A process that trains in one way when it is told to."""

    def __init__(self, way: str, folder: Path, cache: Path, size: Size, seed: int):
        """Start it; cache  the folder that it keeps compiled programs below."""
        cache.mkdir(parents=True, exist_ok=True)
        job = {
            "seed": seed, "steps": size.steps, "batch_size": size.batch_size, "model": size.model, "rate": 1e-3,
            "warmup": size.steps // 10, "weight_decay": 0.01, "threads": 2,
        }  # fmt: skip
        self.step, self.log = 0, cache / f"{way}.log"
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(WORKER), way, str(folder), json.dumps(job)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=cache,
                env=os.environ | {"HF_HUB_OFFLINE": "1"},
            )  # fmt: skip

    def ask(self, command: str) -> dict:
        """Return the answer to a command. Raises RuntimeError where the process has ended."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(self.log.read_text()[-3000:])
        return json.loads(answer)

    def train(self, steps: int) -> dict:
        """Train so many steps; return the answer."""
        self.step += steps
        return self.ask(f"train {steps}")

    def finish(self, size: Size) -> float:
        """Train what is left of the run; return the held-out loss, and end the process."""
        if size.steps > self.step:
            self.train(size.steps - self.step)
        loss = self.ask("loss")["loss"]
        self.end()
        return loss

    def end(self) -> None:
        """End the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def prepared(folder: Path, size: Size) -> Path:
    """Return the results of a workflow in `folder`: records of Python's documentation, and their tokenizer."""
    workflow = Workflow(folder)
    config = {
        "title": "Steps",
        "corpus": {"source": "python-docs", "held_out": {"validation": 0.02, "test": 0.02}},
        "tokenizer": {"vocab_size": size.vocabulary},
        "tfrecords": {"sequence_length": size.length, "shards": {"train": 1, "validation": 1, "test": 1}},
    }
    if size is QUICK:
        config["corpus"] = config["corpus"] | {"max_documents": 400}
    with open(workflow / "config.yaml", "w") as file:
        YAML(typ="safe", pure=True).dump(config, file)
    workflow.as_a_user("results/tfrecords/manifest.json", "--cores", "2")
    return workflow / "results"


def measure_steps(folder: Path, scratch: Path, size: Size, rounds: int) -> tuple[dict, dict, dict]:
    """Return by way the seconds of a step in each round, those to the end of the first step, and the held-out losses.

    The seconds to the first step are two: without and with compiled programs; at tiny size only without.
    """
    ways = [PUBLISHED, *OURS]

    def started(way: str, seed: int = SEEDS[0]) -> Worker:
        return Worker(way, folder, scratch / way, size, seed)

    first: dict[str, list[float]] = {way: [] for way in ways}
    for way in ways if size is FULL else ():
        worker = started(way)
        first[way].append(worker.train(1)["age"])
        worker.end()
    workers = {}
    for way in ways:  # one after another: nothing else runs beside the start of a process
        workers[way] = started(way)
        first[way].append(workers[way].train(1)["age"])
    for worker in workers.values():
        worker.train(size.of_round // 2)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, worker in workers.items():
            seconds[way].append(worker.train(size.of_round)["seconds"] / size.of_round)
            print(f"{way}: {seconds[way][-1] * 1e3:.0f} ms a step", file=sys.stderr)
    losses = {way: [worker.finish(size)] for way, worker in workers.items()}
    for seed in SEEDS[1:] if size is FULL else ():
        for way in ways:
            losses[way].append(started(way, seed).finish(size))
    return seconds, first, losses


def step_rows(seconds: dict, first: dict, losses: dict, tokens: int) -> list[str]:
    """Return the table of the ways: medians with the lowest and the highest.

    The ratio of a round is that of two measurements next to each other.
    """
    rows = [
        "| trained by | ms a step | tokens/s | ratio to the published | aim | held-out loss, three seeds | first step; "
        "with programs compiled before |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for way, taken in seconds.items():
        middle = statistics.median(taken)
        ratios = [other / own for other, own in zip(seconds[PUBLISHED], taken, strict=True)]
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        name = "the published `fit`" if way == PUBLISHED else f"`backend: {way}`"
        cells = [
            name,
            f"{middle * 1e3:.0f} ({min(taken) * 1e3:.0f} to {max(taken) * 1e3:.0f})",
            f"{tokens / middle:,.0f}",
            "1" if way == PUBLISHED else ratio,
            "" if way == PUBLISHED else f"{OURS[way]}",
            " ".join(f"{loss:.3f}" for loss in losses[way]),
            "; ".join(f"{age:.1f} s" for age in first[way]),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


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
    workflow = Workflow.__new__(Workflow)
    workflow.folder = folder
    return workflow


def whole(workflow: Workflow) -> Time:
    """Return what the embedded job takes, from nothing."""
    for made in ("results", "logs", ".snakemake"):
        shutil.rmtree(workflow / made, ignore_errors=True)
    command = [str(Path(sys.executable).with_name("snakemake")), "--cores", str(os.cpu_count())]
    return timed(command, cwd=workflow.folder)


def main() -> None:
    """Measure, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", metavar="COMMIT", help="measure the embedded job beside that of this commit, too")
    parser.add_argument("--wholes", type=int, default=3, help="runs of the embedded job, of each commit")
    parser.add_argument("--quick", action="store_true", help="the steps only, at tiny size; nothing is written")
    arguments = parser.parse_args()
    size = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        results = prepared(scratch / "records", size)
        measured = measure_steps(results, scratch / "workers", size, arguments.rounds)
        lines = step_rows(*measured, size.length * size.batch_size)
        if arguments.quick:
            print("\n".join(lines))
            return
        now = Workflow(scratch / "now")
        ways = [lambda: whole(now)]
        if arguments.before:
            then = earlier(arguments.before, scratch / "then")
            ways.append(lambda: whole(then))
        wholes = by_turns(arguments.wholes if arguments.before else 1, *ways)
        lines += ["", *gap_rows(gaps(now), planned(scratch / "plans")), ""]
    medians = [median(times) for times in wholes]
    told = [f"{time.clock:.0f} s by the clock, {time.processors:.0f} s of the processors" for time in medians]
    lines.append(f"The embedded job, `snakemake` on the shipped config, takes {told[0]}.")
    if arguments.before:
        clock, processors = (own / other for own, other in zip(*medians, strict=True))
        lines.append(f"At {arguments.before} it took {told[1]}: ratios {clock:.2f} and {processors:.2f}; aim 0.6.")
    head = (
        f"Measured by `make bench-steps` on {machine()}, Python {platform.python_version()}: RoBERTa of 4 layers x "
        f"256, vocabulary {size.vocabulary:,}, batch {size.batch_size} x {size.length}, float32, two threads. Medians "
        f"of {arguments.rounds} rounds of {size.of_round} steps by turns, lowest and highest in brackets; held-out "
        f"loss in nats per masked token after {size.steps} steps."
    )
    data.publish([head, "", *lines], RESULT, BEGIN)
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
