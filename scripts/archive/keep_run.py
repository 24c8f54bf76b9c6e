"""Add a finished run to the earlier ones, to compare its figures after its checkpoints are deleted.

input.metrics   metrics.json of the run
input.state     state.json of the last checkpoint, which names the weights by their hash
input.scores    scores.json of every evaluation of the run's model
output          JSON: a list of runs, the newest last: hash (of state.json), stage, name, recipe, metrics, scores (see
                tpulm.specs.scores)
params.recipe   stage, name and recipe of the run

Earlier runs are read from notes in this job's record (tpulm.core.ledger), because Snakemake deletes the output.
"""

from tpulm.core import job_record, ledger
from tpulm.core.files import read_json, sha256, write_json
from tpulm.core.job import job

with job(snakemake.log[0], "history") as say:
    run = {"hash": sha256(snakemake.input.state)} | snakemake.params.recipe
    run["metrics"] = read_json(snakemake.input.metrics)
    run["scores"] = [score for path in sorted(snakemake.input.scores) for score in read_json(path)["scores"]]
    noted = ledger.notes_of(ledger.path_of(snakemake.log[0]), "kept_run")
    earlier = {record["hash"]: record for record in noted if record["hash"] != run["hash"]}
    job_record.note(kept_run=run)
    write_json(snakemake.output[0], [*earlier.values(), run])
    say(f"earlier runs: {len(earlier)}")
