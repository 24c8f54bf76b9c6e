"""Delete the arrays of a checkpoint that is to be kept no longer; what it measured stays.

input.following   state.json of the next checkpoint, which is whole; its URL where results go to a bucket
output            JSON: step, which files were deleted
"""

from pathlib import Path

from lib import bucket
from lib.files import write_json
from lib.job import job

step = snakemake.wildcards.step

with job(snakemake.log[0], snakemake.wildcards.chain):
    folder, following = Path(snakemake.output[0]).parent, snakemake.input.following
    if bucket.remote(following):
        place = f"{following.rsplit('/', 2)[0]}/{step}"
        names = sorted(name for name in bucket.sizes(place) if name.endswith(".safetensors"))
        bucket.delete(f"{place}/{name}" for name in names)
    else:
        names = sorted(file.name for file in folder.glob("*.safetensors"))
        for name in names:
            (folder / name).unlink()
    write_json(snakemake.output[0], {"step": int(step), "deleted": names})
