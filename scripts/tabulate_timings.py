"""Tabulate the training speed of each run on the machine where it was trained.

input    timings.csv of each run: step, seconds_per_step, tokens_per_second, devices
output   HTML
"""

import csv
from pathlib import Path
from statistics import median

from tpulm.core.files import write_text
from tpulm.core.job import job
from tpulm.report.html import page, table

with job(snakemake.log[0], "report"):
    rows = []
    for path in snakemake.input.timings:
        with open(path, encoding="utf-8") as file:
            timings = list(csv.DictReader(file))
        seconds, speed = (
            median(float(row[name]) for row in timings) for name in ("seconds_per_step", "tokens_per_second")
        )
        stage, run = Path(path).parts[-3:-1]
        rows.append([stage.removesuffix("-training"), run, seconds, round(speed)])
    text = (
        "Medians over the lines of progress, compilation left out. Another machine or another load gives other figures."
    )
    write_text(
        snakemake.output[0],
        page("Training speed", text, table(["stage", "run", "seconds per step", "tokens per second"], rows)),
    )
