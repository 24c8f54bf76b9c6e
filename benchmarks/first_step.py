"""From the start of a training process to the end of its first step, without and with programs compiled before."""

import os
import re
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from conftest import Workflow
from kills import start
from step_table import OURS, PUBLISHED, named
from step_training import Size, Training, prepared, workflow_in
from whole import earlier, spread

AIM = 1 / 3  # of what the earlier version takes
STARTS = ("nothing compiled before", "compiled before")
FIRST = re.compile(r"^step 1/", re.M)  # in the log of a training


def measure_first(folder: Path, scratch: Path, size: Size, rounds: int) -> dict[str, tuple[list, list]]:
    """Return by way the seconds of each phase to the end of the first step, for each of both starts, by turns."""
    found: dict[str, tuple[list, list]] = {way: ([], []) for way in (PUBLISHED, *OURS)}
    for _ in range(rounds):
        for way, starts in found.items():
            shutil.rmtree(scratch / way, ignore_errors=True)  # with what the last round compiled
            for phases in starts:
                worker = Training(way, folder, scratch / way, size)
                phases.append(worker.train(1)["phases"])
                worker.end()
                print(f"{way}: {sum(phases[-1].values()):.1f} s to the first step", file=sys.stderr)
    return found


def started(workflow: Workflow, backend: str, steps: int) -> float:
    """Return the seconds from the start of the job that trains the run of a backend to the end of its first step.

    The job is killed then. Raises RuntimeError where it ends before.
    """
    for made in ("results", "logs"):
        shutil.rmtree(workflow / made / "mlm", ignore_errors=True)
    segment = f"mlm/{backend}/checkpoints/{steps:08d}"
    log = workflow / f"logs/mlm/{backend}/{steps:08d}.log"
    process = start(workflow, f"results/{segment}/state.json", "--nolock")
    try:
        while not (log.is_file() and FIRST.search(log.read_text())):
            if process.poll() is not None:
                raise RuntimeError((workflow / "snakemake.out").read_text()[-3000:])
            time.sleep(0.005)
        taken = time.time() - job_of(process.pid).create_time()
    finally:
        descendants = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        psutil.wait_procs(descendants)
    return taken


def job_of(snakemake: int) -> psutil.Process:
    """Return the process of the script that a snakemake runs."""
    below = psutil.Process(snakemake).children(recursive=True)
    return next(one for one in below if ".snakemake/scripts/" in " ".join(one.cmdline()[1:2]))


def measure_jobs(workflows: list[Workflow], size: Size, rounds: int) -> dict[str, tuple[list, list]]:
    """Return by backend the seconds of `started`, of each workflow in each round, for each of both starts, by turns."""
    found: dict[str, tuple[list, list]] = {backend: ([], []) for backend in OURS}
    for _ in range(rounds):
        for backend, starts in found.items():
            for workflow in workflows:
                shutil.rmtree(workflow / ".snakemake/compiled", ignore_errors=True)
            for times in starts:
                times.append([started(workflow, backend, size.steps) for workflow in workflows])
                print(f"{backend}: {times[-1]} s to the first step of a job", file=sys.stderr)
    return found


def first_lines(scratch: Path, size: Size, rounds: int, before: str | None) -> list[str]:
    """Return the tables of first steps."""
    now = workflow_in(scratch / "records")
    found = measure_first(prepared(now, size), scratch / "first", size, rounds)
    lines = [
        f"From the start of the process to the end of the first step of the same trainings, in seconds; medians of "
        f"{rounds} starts by turns, lowest and highest in brackets.",
        "",
        *first_rows(found),
    ]
    if not before:
        return lines
    then = earlier(before, scratch / "records-then")
    prepared(then, size)
    return [
        *lines,
        "",
        f"The same of the jobs of the workflow, which check their records first, beside those of {before}; medians of "
        f"{rounds} starts by turns, lowest and highest in brackets.",
        "",
        *job_rows(measure_jobs([now, then], size, rounds), before),
    ]


def first_rows(found: dict[str, tuple[list, list]]) -> list[str]:
    """Return a row for each way and start, and for each phase a column with its median."""
    phases = list(next(iter(found.values()))[0][0])

    def cells(rounds: list[dict[str, float]]) -> list[str]:
        medians = [f"{statistics.median(one[phase] for one in rounds):.1f}" for phase in phases]
        return [*medians, spread([sum(one.values()) for one in rounds], 1)]

    return table(["trained by", *phases, "all"], found, cells)


def job_rows(found: dict[str, tuple[list, list]], before: str) -> list[str]:
    """Return a row for each backend and start: seconds of now and before, and their ratio, round by round."""

    def cells(rounds: list[list[float]]) -> list[str]:
        ratios = [now / then for now, then in rounds]
        aim = f"{AIM:.2f}{' (miss)' if statistics.median(ratios) > AIM else ''}"
        return [*(spread(list(times), 1) for times in zip(*rounds, strict=True)), spread(ratios), aim]

    return table(["trained by", "now", f"at {before}", "ratio", "aim"], found, cells)


def table(head: list[str], found: dict[str, tuple[list, list]], cells: Callable[[list], list[str]]) -> list[str]:
    """Return a table with a row for each way and start: what `cells` makes of its rounds."""
    rows = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    for way, starts in found.items():
        for name, rounds in zip(STARTS, starts, strict=True):
            rows.append(f"| {' | '.join([f'{named(way)}, {name}', *cells(rounds)])} |")
    return rows
