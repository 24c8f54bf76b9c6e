"""Print the tables that compare all runs, and say which differences between models are real.

input.table    results/compare/runs.md
input.models   results/compare/models.md
"""

from pathlib import Path

from tpulm.core.job import job

with job(snakemake.log[0], "compare") as say:
    lines = Path(snakemake.input.table).read_text(encoding="utf-8").splitlines()
    for line in lines or ["the config trains no run; see README.md, Sweeps."]:
        say(line)
    for line in Path(snakemake.input.models).read_text(encoding="utf-8").splitlines():
        say(line)
