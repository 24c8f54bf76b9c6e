"""Delete the arrays of a checkpoint that keep_checkpoints does not keep; its history and evaluation stay.

input.following   state.json of the next checkpoint, which is complete; a URL, if results are in a bucket
input.measured    scores of this checkpoint, which are made before; none if it is not scored
output            JSON: step; deleted (names of files)
"""

from pathlib import Path

from tpulm.core import bucket
from tpulm.core.files import write_json
from tpulm.core.job import job
from tpulm.specs.artifacts import ARRAY_FILES

step = snakemake.wildcards.step

with job(snakemake.log[0], snakemake.wildcards.chain):
    folder, following = Path(snakemake.output[0]).parent, snakemake.input.following
    if bucket.remote(following):
        place = f"{following.rsplit('/', 2)[0]}/{step}"
        names = sorted(ARRAY_FILES & set(bucket.sizes(place)))
        bucket.delete(f"{place}/{name}" for name in names)
    else:
        names = sorted(name for name in ARRAY_FILES if (folder / name).is_file())
        for name in names:
            (folder / name).unlink()
    write_json(snakemake.output[0], {"step": int(step), "deleted": names})
