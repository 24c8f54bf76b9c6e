"""From the start of a training process to the end of its first step, without and with programs compiled before."""

import contextlib
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from conftest import Workflow
from kills import start
from step_table import OURS, PUBLISHED, named
from step_training import Size, Training, prepared, workflow_in
from tpulm.training.phases import process_age
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


def job_seconds(workflow: Workflow, backend: str, steps: int) -> float:
    """Return the seconds from the start of the job that trains the run of a backend to the end of its first step.

    The job is killed then. Raises RuntimeError where it ends before.
    """
    for made in ("results", "logs"):
        shutil.rmtree(workflow / made / "mlm", ignore_errors=True)
    segment = f"mlm/{backend}/checkpoints/{steps:08d}"
    log = workflow / f"logs/mlm/{backend}/{steps:08d}.log"
    process = start(workflow, f"results/{segment}/state.json", "--nolock")  # the lock of the one killed before
    try:
        while not (log.is_file() and FIRST.search(log.read_text())):
            if process.poll() is not None:
                raise RuntimeError((workflow / "snakemake.out").read_text()[-3000:])
            time.sleep(0.005)
        ages = [process_age(one.pid) for one in below(process.pid) if is_script(one)]
        if not ages:
            raise RuntimeError(f"{log} has a first step, and its job has ended")
        return max(ages)
    finally:
        end(process)


def below(process: int) -> list[psutil.Process]:
    """Return the processes that one has started, and those have."""
    try:
        return psutil.Process(process).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def is_script(process: psutil.Process) -> bool:
    """Return whether a process runs the script of a rule."""
    try:
        command = process.cmdline()
    except psutil.Error:  # it has ended meanwhile
        return False
    return len(command) > 1 and ".snakemake/scripts/" in command[1]


def end(process: subprocess.Popen) -> None:
    """Kill a snakemake and all that it has started."""
    found = below(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for one in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(found, timeout=60)


def measure_jobs(workflows: list[Workflow], size: Size, rounds: int) -> dict[str, tuple[list, list]]:
    """Return by backend what `job_seconds` finds for each workflow, round by round, for each of both starts."""
    found: dict[str, tuple[list, list]] = {backend: ([], []) for backend in OURS}
    for _ in range(rounds):
        for backend, starts in found.items():
            for workflow in workflows:
                shutil.rmtree(workflow / ".snakemake/compiled", ignore_errors=True)
            for times in starts:
                times.append([job_seconds(workflow, backend, size.steps) for workflow in workflows])
                print(f"{backend}: {times[-1]} s to the first step of a job", file=sys.stderr)
    return found


def first_lines(scratch: Path, size: Size, rounds: int, before: str | None) -> list[str]:
    """Return the tables of first steps."""
    now = workflow_in(scratch / "records")
    workflows = [now, *([earlier(before, scratch / "records-then")] if before else [])]
    results, *_ = [prepared(workflow, size) for workflow in workflows]
    how = f"medians of {rounds} starts by turns, lowest and highest in brackets" if rounds > 1 else "one start"
    found = measure_first(results, scratch / "first", size, rounds)
    lines = [
        f"From the start of the process to the end of the first step of the same trainings, in seconds ({how}).",
        "",
        *first_rows(found),
    ]
    if not before:
        return lines
    about = f"The same of the jobs of the workflow, which check their records first, beside those of {before} ({how})."
    return [*lines, "", about, "", *job_rows(measure_jobs(workflows, size, rounds), before)]


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
