"""The training step on this machine, beside the published one, and what surrounds it.

    python benchmarks/steps.py [--rounds 5] [--only PART ...] [--quick]
    python benchmarks/steps.py --plans      the table of recipes again, by their plans of today

- steps: a small RoBERTa on the same records, trained by the published `fit`, by `backend: tensorflow` and by
  `backend: jax` (step_worker.py), each in a process of its own. All three are there from the beginning, and train by
  turns, so that a busy machine slows all of them down. Then two more seeds, and the held-out loss of all.
- gap: what of a segment of the shipped config is no training, by its record (tpulm.training.history), and which part
  of a segment that would be in each recipe that benchmarks/recipes.py has planned, by the estimate of a step.

Prints tables, and writes them to benchmarks/results/steps.md. A part that fails is named there, and the others are
measured all the same. With --quick, all of it is at tiny size, and nothing is written.
"""

import argparse
import platform
import statistics
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import data  # it also finds the package and the tests' Workflow
import pytest
from conftest import ROOT, Workflow, reduced
from data import machine, snakemake
from gaps import gap_rows, gaps, with_plans_of_today
from step_training import FULL, OURS, PUBLISHED, QUICK, Size, Training, prepared

RESULT = ROOT / "benchmarks/results/steps.md"
SEEDS = (0, 1, 2)
PARTS_MEASURED = ("steps", "gap")


def measure_steps(folder: Path, scratch: Path, size: Size, rounds: int) -> tuple[dict, dict]:
    """Return by way the seconds of a step in each round, and held-out losses."""
    ways = [PUBLISHED, *OURS]
    workers = {way: Training(way, folder, scratch / way, size, SEEDS[0]) for way in ways}
    for worker in workers.values():
        worker.train(1 + size.of_round // 2)  # compiled, and warm
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, worker in workers.items():
            seconds[way].append(worker.train(size.of_round)["seconds"] / size.of_round)
            print(f"{way}: {seconds[way][-1] * 1e3:.0f} ms a step", file=sys.stderr)
    losses = {way: [worker.finish(size)] for way, worker in workers.items()}
    for seed in SEEDS[1:] if size is FULL else ():
        for way in ways:
            losses[way].append(Training(way, folder, scratch / way, size, seed).finish(size))
    return seconds, losses


def step_rows(seconds: dict[str, list[float]], losses: dict[str, list[float]], tokens: int) -> list[str]:
    """Return the table of the ways, medians with the lowest and the highest; a ratio is that of a round."""
    rows = [
        "| trained by | ms a step | tokens/s | ratio to the published | target | held-out loss, three seeds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for way, taken in seconds.items():
        middle = statistics.median(taken)
        name, ratio, target = "the published `fit`", "1", ""
        if way != PUBLISHED:
            found = [other / own for other, own in zip(seconds[PUBLISHED], taken, strict=True)]
            name, target = f"`backend: {way}`", f"{OURS[way]}"
            ratio = f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
        step = f"{middle * 1e3:.0f} ({min(taken) * 1e3:.0f} to {max(taken) * 1e3:.0f})"
        held_out = " ".join(f"{loss:.3f}" for loss in losses[way])
        rows.append(f"| {' | '.join([name, step, f'{tokens / middle:,.0f}', ratio, target, held_out])} |")
    return rows


def steps_lines(scratch: Path, size: Size, rounds: int) -> list[str]:
    """Return the table of training steps."""
    results = prepared(scratch / "records", size)
    table = step_rows(*measure_steps(results, scratch / "workers", size, rounds), size.length * size.batch_size)
    about = (
        f"RoBERTa of {size.model['num_hidden_layers']} layers x {size.model['hidden_size']}, vocabulary "
        f"{size.vocabulary:,}, batch {size.batch_size} x {size.length}, float32, two threads. Medians of {rounds} "
        f"rounds of {size.of_round} steps, lowest and highest in brackets. Held-out loss in nats per masked token "
        f"after {size.steps} steps."
    )
    return [about, "", *table]


def gap_lines(scratch: Path, quick: bool) -> list[str]:
    """Return the tables of the gap, of a run of the example run."""
    workflow = Workflow(scratch / "whole")
    if quick:
        reduced(workflow)
        (workflow / "small.yaml").replace(workflow / "config.yaml")
    snakemake(workflow)
    return gap_rows(gaps(workflow))


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
    parser.add_argument("--only", nargs="*", choices=PARTS_MEASURED, help="these parts; nothing is written")
    parser.add_argument("--quick", action="store_true", help="at tiny size; nothing is written")
    parser.add_argument("--plans", action="store_true", help="only write the table of recipes by the plans of today")
    arguments = parser.parse_args()
    if arguments.plans:
        RESULT.write_text(with_plans_of_today(RESULT.read_text()))
        return
    size = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        parts = {
            "steps": partial(steps_lines, scratch, size, arguments.rounds),
            "gap": partial(gap_lines, scratch, arguments.quick),
        }
        lines, failed = measured({name: parts[name] for name in arguments.only or PARTS_MEASURED})
    lines = [f"{machine()}, Python {platform.python_version()}.", "", *lines]
    print("\n".join(lines))
    if not (arguments.quick or arguments.only):
        data.write(lines, RESULT, "make bench-steps")
    if failed:
        sys.exit(f"error: not measured: {', '.join(failed)}; the messages are above")


if __name__ == "__main__":
    main()
