"""Print the table that compares all runs.

input.table   results/compare/runs.md
"""

from pathlib import Path

from tpulm.core.job import job

with job(snakemake.log[0], "compare") as say:
    lines = Path(snakemake.input.table).read_text(encoding="utf-8").splitlines()
    for line in lines or ["the config trains no run; see README.md, Sweeps."]:
        say(line)
