"""What start-up and compilation cost when a finetuned model generates, beside an earlier version."""

import re
import shutil
import statistics
from functools import partial
from pathlib import Path

from conftest import Workflow, existing
from data import Time, by_turns, median, snakemake

TARGET, LOG = "results/finetune/python/generations.json", "logs/finetune/python/generate.log"
ONCE = "results/lora/python/generations.json"  # where the first versions had it
SAID = re.compile(r"([\d.]+) s to start, ([\d.]+) s to compile and generate, ([\d.]+) s to generate again")


def generated(workflow: Workflow, compiled: bool) -> Time:
    """Return what the generations of a finished workflow take, Snakemake's start included.

    compiled  whether programs that were compiled before are there
    """
    if not compiled:
        shutil.rmtree(workflow / ".snakemake/compiled", ignore_errors=True)
    return snakemake(workflow, TARGET if (workflow / TARGET).exists() else ONCE, "--force")


def generation_lines(scratch: Path, runs: int, before: str | None) -> list[str]:
    """Return what is said of generation: by turns without and with compiled programs, of now and of a commit before.

    scratch  has finished runs of the shipped config, in the folder now, and where there is a commit before in then
    """
    now = existing(scratch / "now")
    workflows = [now, *([existing(scratch / "then")] if before else [])]
    parts: dict[bool, list[list[float]]] = {False: [], True: []}

    def measured(workflow: Workflow, compiled: bool) -> Time:
        taken = generated(workflow, compiled)
        if workflow is now:
            said = SAID.search((workflow / LOG).read_text())
            assert said, f"{LOG} does not say what took the time"
            parts[compiled].append([float(seconds) for seconds in said.groups()])
        return taken

    ways = [partial(measured, workflow, compiled) for workflow in workflows for compiled in (False, True)]
    clocks = [f"{median(times).clock:.1f} s" for times in by_turns(runs, *ways)]
    lines = [
        f"`{TARGET}`, the same prompts before and after finetuning, takes {clocks[0]}, and {clocks[1]} with programs "
        f"compiled before{f'; at {before} {clocks[2]} and {clocks[3]}' if before else ''} "
        f"({'one run' if runs == 1 else f'medians of {runs} runs by turns'}, Snakemake included).",
        "",
        "| | start | compile and generate | generate again |",
        "| --- | ---: | ---: | ---: |",
    ]
    for compiled, name in ((False, "nothing compiled before"), (True, "compiled before")):
        medians = map(statistics.median, zip(*parts[compiled], strict=True))
        lines.append(f"| {name} | {' | '.join(f'{seconds:.1f} s' for seconds in medians)} |")
    return lines
