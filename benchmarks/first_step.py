"""From the start of a training process to the end of its first step, without and with programs compiled before."""

import shutil
import statistics
import sys
from pathlib import Path

from step_table import OURS, PUBLISHED, named
from step_training import Size, Training, prepared
from whole import spread

AIMS = {"tensorflow": 7.7, "jax": 3.3}  # seconds
STARTS = ("nothing compiled before", "compiled before")


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


def first_lines(scratch: Path, size: Size, rounds: int) -> list[str]:
    """Return the table of first steps."""
    found = measure_first(prepared(scratch / "records", size), scratch / "first", size, rounds)
    return [
        f"From the start of the process to the end of the first step of the same trainings, in seconds; medians of "
        f"{rounds} starts by turns, lowest and highest in brackets. Aim: a third of what the first version took when "
        f"that was measured.",
        "",
        *first_rows(found),
    ]


def first_rows(found: dict[str, tuple[list, list]]) -> list[str]:
    """Return a row for each way and start, and for each phase a column with its median."""
    phases = list(next(iter(found.values()))[0][0])
    rows = [
        f"| trained by | {' | '.join(phases)} | all | aim |",
        f"| --- |{' ---: |' * (len(phases) + 2)}",
    ]
    for way, starts in found.items():
        for start, times in zip(STARTS, starts, strict=True):
            medians = [f"{statistics.median(one[phase] for one in times):.1f}" for phase in phases]
            taken = [sum(one.values()) for one in times]
            aim = f"{AIMS[way]}{' (miss)' if statistics.median(taken) > AIMS[way] else ''}" if way in AIMS else ""
            rows.append(f"| {' | '.join([f'{named(way)}, {start}', *medians, spread(taken, 1), aim])} |")
    return rows
