"""Tabulate the training speed of each run on the machine where it was trained.

input    timings.csv of each run: step, seconds_per_step, tokens_per_second, devices, profile
output   HTML, with the costliest operations of the steps that a run was profiled in
"""

import csv
import json
from pathlib import Path
from statistics import median

from tpulm.core.files import write_text
from tpulm.core.job import job
from tpulm.report.html import page, section, table

with job(snakemake.log[0], "report"):
    rows, operations = [], []
    for path in snakemake.input.timings:
        with open(path, encoding="utf-8") as file:
            timings = list(csv.DictReader(file))
        seconds, speed = (
            median(float(row[name]) for row in timings) for name in ("seconds_per_step", "tokens_per_second")
        )
        stage, run = Path(path).parts[-3:-1]
        rows.append([stage.removesuffix("-training"), run, seconds, round(speed)])
        for profile in (json.loads(row["profile"]) for row in timings if row.get("profile")):
            first, last = profile["steps"]
            operations += [
                [*rows[-1][:2], f"{first} to {last}", name, f"{share:.1%}"] for name, share in profile["operations"]
            ]
    text = (
        "Medians over the lines of progress, compilation left out. Another machine or another load gives other figures."
    )
    content = table(["stage", "run", "seconds per step", "tokens per second"], rows)
    if operations:
        about = (
            "Instructions of the compiled step, and what of the model they come from where the trace has it; shares of "
            "the time of all instructions on the devices. TensorBoard opens the trace, in the folder profile beside "
            "the run's logs."
        )
        head = ["stage", "run", "steps", "operation", "share of the time"]
        content += section("The costliest operations of profiled steps", about, table(head, operations))
    write_text(snakemake.output[0], page("Training speed", text, content))
