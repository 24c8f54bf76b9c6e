"""Print the tables that compare all runs, tests of differences between models, published figures, and earlier runs.

input.table     results/compare/runs.md
input.models    results/compare/models.md
input.published results/compare/published.json, if a run repeats a published one
input.history   outputs of scripts/archive/keep_run.py, also for runs that the config no longer names
params.recipe   current: folders of the config's runs, relative to results/
"""

from pathlib import Path

from tpulm.core.files import read_json
from tpulm.core.job import job
from tpulm.report.published import markdown as markdown_of_published
from tpulm.report.tables import fitted, scores_then_and_now

with job(snakemake.log[0], "") as say:
    written = [Path(snakemake.input.table), Path(snakemake.input.models)]
    parts = [path.read_text(encoding="utf-8") for path in written]
    parts[0] = parts[0] or "the config trains no runs; there is nothing to compare."
    parts += [markdown_of_published(read_json(path)) for path in snakemake.input.published]
    runs_by_path = {path.removesuffix(".json"): read_json(path) for path in snakemake.input.history}
    table = scores_then_and_now(runs_by_path, snakemake.params.recipe["current"])
    if table:
        heading = "scores of earlier runs, by the hash of the last state.json, and of the current run of the same name:"
        parts.append(f"{heading}\n{table}")
    for line in fitted("\n".join(filter(None, parts))):
        say(line)
    say(f"with all digits: {' and '.join(str(path.with_suffix('.csv')) for path in written)}")
