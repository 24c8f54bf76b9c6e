"""Compare all runs by their held-out metrics; runs that differ only in their seed are one row, mean and spread.

input.metrics   metrics.json of each run, in the order of params.recipe
output.csv      a row for each run or group: stage, run, seeds (number), settings (that differ within the stage), and
                for each split mean and sample standard deviation of loss and accuracy
output.table    the same as a Markdown table
params.recipe   groups: stage, name, runs (number, in the order of input.metrics), settings
"""

from tpulm.core.files import read_json, write_text
from tpulm.core.job import job
from tpulm.report.tables import as_csv, comparison_rows, markdown

with job(snakemake.log[0], "compare"):
    rows = comparison_rows(snakemake.params.recipe["groups"], [read_json(path) for path in snakemake.input.metrics])
    write_text(snakemake.output.csv, as_csv(rows, list(rows[0]) if rows else ["stage", "run"]))
    write_text(snakemake.output.table, markdown(rows))
