"""Delete the arrays of a checkpoint that is to be kept no longer; what it measured stays.

input.following   state.json of the next checkpoint, which is whole
output            JSON: step, which files were deleted
"""

from pathlib import Path

from lib.files import write_json
from lib.job import job

step = snakemake.wildcards.step

with job(snakemake.log[0], snakemake.wildcards.chain):
    folder = Path(snakemake.output[0]).parent
    arrays = sorted(folder.glob("*.safetensors"))
    for file in arrays:
        file.unlink()
    write_json(snakemake.output[0], {"step": int(step), "deleted": [file.name for file in arrays]})
