"""Add a finished run to those of before, so that its figures can be compared when its checkpoints are gone.

input.metrics   metrics.json of the run
input.state     state.json of its last checkpoint, which names the weights by their hash
input.scores    scores.json of every evaluation of the run's model
output          JSON: a list of runs, each with hash (of state.json), stage, name, recipe, metrics, scores (see
                tpulm.core.scores); the newest last
params.recipe   stage, name and recipe of the run

Snakemake deletes the output before the job. The runs of before are in a hidden file beside it, in a bucket too:
see tpulm.core.files.hidden_copy.
"""

import json
from pathlib import Path

from tpulm.core import bucket
from tpulm.core.files import hidden_copy, read_json, sha256, write_json
from tpulm.core.job import job
from tpulm.core.job_record import url_of

with job(snakemake.log[0], "history") as say:
    path = Path(snakemake.output[0])
    kept = hidden_copy(path)
    place = url_of(kept) or str(kept)
    known = json.loads(bucket.opened(place).read()) if bucket.exists(place) else []
    run = {"hash": sha256(snakemake.input.state)} | snakemake.params.recipe
    run["metrics"] = read_json(snakemake.input.metrics)
    run["scores"] = [score for path in sorted(snakemake.input.scores) for score in read_json(path)["scores"]]
    earlier = [before for before in known if before["hash"] != run["hash"]]
    for target in (kept, path):
        write_json(target, [*earlier, run])
    if bucket.remote(place):
        bucket.upload(kept, place)
    say(f"earlier runs: {len(earlier)}")
