"""Compare the figures of runs with the published ones that they repeat.

input.metrics, input.history, input.timings   files of each run, in the order of params.recipe
input.answers    fill_mask.json of each run with published answers, in the same order
output           JSON: for each run its path, source, and rows: figure, published, reached, verdict
params.recipe    for each run its path, and published, see the config
"""

from pathlib import Path

from tpulm.core.files import read_json, write_json
from tpulm.core.job import job
from tpulm.report.published import answers_beside, beside_published
from tpulm.report.sources import columns_of

with job(snakemake.log[0], "compare published"):
    answers, comparisons = iter(snakemake.input.answers), []
    for run, *paths in zip(
        snakemake.params.recipe, snakemake.input.metrics, snakemake.input.history, snakemake.input.timings, strict=True
    ):
        metrics, history, timings = read_json(paths[0]), *(columns_of([Path(path)]) for path in paths[1:])
        rows = beside_published(run["published"], metrics, history, timings)
        if "answers" in run["published"]:
            rows += answers_beside(run["published"]["answers"], read_json(next(answers)))
        comparisons.append({"run": run["path"], "source": run["published"]["source"], "rows": rows})
    write_json(snakemake.output[0], comparisons)
