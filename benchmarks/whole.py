"""What the embedded job takes from nothing, beside an earlier version, and which jobs take it."""

import os
import shutil
import statistics
import subprocess
from collections import defaultdict
from functools import partial
from pathlib import Path

from conftest import PARTS, ROOT, Workflow, existing, reduced
from data import Time, by_turns, median, snakemake
from tpulm.core import job_record

AIM, NAMED = 0.6, 8  # of the time that the earlier version takes; rules in the table
# What the embedded job of the first version made, by the names of today.
CURVES = ("mlm-tiny", "base-small", "finetune-python")
FIRST = ("corpus", "tokenizer", "mlm", "base", "finetune", *(f"results/figures/training/{run}.svg" for run in CURVES))


def earlier(commit: str, folder: Path) -> Workflow:
    """Return the workflow of an earlier commit, in a folder of its own."""
    folder.mkdir()
    parts = [
        part
        for part in PARTS
        if subprocess.run(["git", "cat-file", "-e", f"{commit}:{part}"], cwd=ROOT, capture_output=True).returncode == 0
    ]
    archive = subprocess.run(["git", "archive", commit, *parts], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "x"], cwd=folder, input=archive, check=True)
    return existing(folder)


def whole_lines(scratch: Path, runs: int, before: str | None, quick: bool) -> list[str]:
    """Return what the embedded job takes from nothing; the last run of now is left in scratch/now."""
    here = Workflow(scratch / "now")
    then = earlier(before, scratch / "then") if before else None
    for workflow in (here, then) if quick else ():
        if workflow:
            reduced(workflow)
            (workflow / "small.yaml").replace(workflow / "config.yaml")

    def run(workflow: Workflow, *targets: str) -> Time:
        for made in ("results", "logs", ".snakemake"):
            shutil.rmtree(workflow / made, ignore_errors=True)
        return snakemake(workflow, *targets)

    def told(times: list[Time]) -> str:
        said = "one run" if runs == 1 else f"medians of {runs} runs by turns, lowest and highest in brackets"
        return f"The embedded job, `snakemake` on the shipped config, takes {spoken(times)} ({said})."

    if not then:
        return [told(*by_turns(runs, partial(run, here)))]
    # The whole is after the part: its results are those that are left.
    part, whole, former = by_turns(runs, partial(run, here, *FIRST), partial(run, here), partial(run, then))
    lines = [
        told(whole),
        f"At {before} it took {spoken(former)}: ratios {compared(whole, former)}; aim {AIM}.",
        "Without scores, tasks, the search for overlap, models for transformers and the report in one file, of which "
        f"the first version had none, it takes {spoken(part)}: ratios {compared(part, former)}.",
    ]
    missed = median(whole).clock > AIM * median(former).clock
    return lines + (["", *profile(here)] if missed else [])


def compared(times: list[Time], others: list[Time]) -> str:
    """Return the ratios of two ways, run by run: by the clock, and of the processors."""
    pairs = list(zip(times, others, strict=True))
    clock = [one.clock / other.clock for one, other in pairs]
    return f"{spread(clock)} and {spread([one.processors / other.processors for one, other in pairs])}"


def spoken(times: list[Time]) -> str:
    """Return medians with the lowest and the highest, and how busy the processors were."""
    clock, processors = zip(*times, strict=True)
    busy = f"{median(times).processors / median(times).clock:.2f} of {os.cpu_count()} were busy"
    return f"{spread(clock, 0)} s by the clock, {spread(processors, 0)} s of the processors, of which {busy}"


def spread(values: list[float], digits: int = 2) -> str:
    """Return the median with the lowest and the highest."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f}" + (f" ({low:.{digits}f} to {high:.{digits}f})" if len(values) > 1 else "")


def profile(workflow: Workflow) -> list[str]:
    """Return a table of the rules whose jobs took the most time of the processors, by their own records."""
    taken: dict[str, list[float]] = defaultdict(list)
    for path in sorted((workflow / "logs").rglob("*.jobs.jsonl")):
        lines = {line["event"]: line for line in job_record.read(path)}  # of the last attempt
        if {"start", "end"} <= set(lines):
            taken[lines["start"]["rule"]].append(lines["end"]["cpu_seconds"])
    rows = sorted(taken.items(), key=lambda row: -sum(row[1]))
    rest = [seconds for _, jobs in rows[NAMED:] for seconds in jobs]
    total = sum(sum(jobs) for _, jobs in rows)
    named = [(f"`{rule}`", jobs) for rule, jobs in rows[:NAMED]] + ([("all others", rest)] if rest else [])
    return [
        "The whole misses its aim; what takes the time, in the last run:",
        "",
        "| rule | jobs | s of the processors | of all jobs |",
        "| --- | ---: | ---: | ---: |",
        *(f"| {name} | {len(jobs)} | {sum(jobs):.1f} | {sum(jobs) / total:.0%} |" for name, jobs in named),
    ]
