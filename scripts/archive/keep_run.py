"""Add a finished run to those of before, so that its figures can be compared when its checkpoints are gone.

input.metrics   metrics.json of the run
input.state     state.json of its last checkpoint, which names the weights by their hash
input.scores    scores.json of every evaluation of the run's model
output          JSON: a list of runs, each with hash (of state.json), stage, name, recipe, metrics, scores (see
                tpulm.specs.scores); the newest last
params.recipe   stage, name and recipe of the run

The runs of before are notes in the record of this job, see tpulm.core.ledger: Snakemake deletes the output before it.
"""

from tpulm.core import job_record, ledger
from tpulm.core.files import read_json, sha256, write_json
from tpulm.core.job import job

with job(snakemake.log[0], "history") as say:
    run = {"hash": sha256(snakemake.input.state)} | snakemake.params.recipe
    run["metrics"] = read_json(snakemake.input.metrics)
    run["scores"] = [score for path in sorted(snakemake.input.scores) for score in read_json(path)["scores"]]
    noted = ledger.notes_of(ledger.path_of(snakemake.log[0]), "kept_run")
    earlier = {before["hash"]: before for before in noted if before["hash"] != run["hash"]}
    job_record.note(kept_run=run)
    write_json(snakemake.output[0], [*earlier.values(), run])
    say(f"earlier runs: {len(earlier)}")
