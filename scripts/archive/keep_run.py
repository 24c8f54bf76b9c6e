"""Add a finished run to those of before, so that its figures can be compared when its checkpoints are gone.

input.metrics   metrics.json of the run
input.state     state.json of its last checkpoint, which names the weights by their hash
input.scores    scores.json of every evaluation of the run's model
output          JSON: a list of runs, each with hash (of state.json), stage, name, recipe, metrics, scores (see
                tpulm.core.scores); the newest last. What is in the file stays.
params.recipe   stage, name and recipe of the run
"""

from pathlib import Path

from tpulm.core.files import read_json, sha256, write_json
from tpulm.core.job import job

with job(snakemake.log[0], "history") as say:
    path = Path(snakemake.output[0])
    known = read_json(path) if path.is_file() else []
    run = {"hash": sha256(snakemake.input.state)} | snakemake.params.recipe
    run["metrics"] = read_json(snakemake.input.metrics)
    run["scores"] = [score for path in sorted(snakemake.input.scores) for score in read_json(path)["scores"]]
    earlier = [before for before in known if before["hash"] != run["hash"]]
    write_json(path, [*earlier, run])
    say(f"earlier runs: {len(earlier)}")
