"""Print the tables that compare all runs, say which differences between models are real, and what ran before.

input.table     results/compare/runs.md
input.models    results/compare/models.md
input.published results/compare/published.json, if a run repeats a published one
input.history   what scripts/archive/keep_run.py has kept of each run, also of those that the config names no more
params.recipe   current: the folders below results/ of the runs that the config names
"""

from pathlib import Path

from tpulm.core.files import read_json
from tpulm.core.job import job
from tpulm.report.published import markdown as markdown_of_published
from tpulm.report.tables import scores_then_and_now

with job(snakemake.log[0], "compare") as say:
    lines = Path(snakemake.input.table).read_text(encoding="utf-8").splitlines()
    for line in lines or ["the config trains no runs; there is nothing to compare."]:
        say(line)
    for line in Path(snakemake.input.models).read_text(encoding="utf-8").splitlines():
        say(line)
    for path in snakemake.input.published:
        say("")
        for line in markdown_of_published(read_json(path)).splitlines():
            say(line)
    kept = {path.removesuffix(".json"): read_json(path) for path in snakemake.input.history}
    table = scores_then_and_now(kept, snakemake.params.recipe["current"])
    if table:
        say("scores of earlier runs, by the hash of the last state.json, and of the current run of the same name:")
    for line in table.splitlines():
        say(line)
