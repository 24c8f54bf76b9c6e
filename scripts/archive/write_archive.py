"""Archive a run: what was made, how each file came to be, the source, the config and the locks.

input           what the workflow makes; the archive has everything that this followed from
output          NAME-VERSION.zip
params.recipe   see tpulm.release.archive.contents; root: the folder of the workflow's source
"""

from pathlib import Path

from tpulm.core.files import atomic_write
from tpulm.core.job import job

recipe = snakemake.params.recipe
artifacts = sorted({*snakemake.input} - {*snakemake.input.code})

with job(snakemake.log[0], "archive") as say:
    from tpulm.release.archive import contents, write_zip

    files, manifest = contents(recipe, artifacts, Path(recipe["root"]))
    with atomic_write(snakemake.output[0]) as partial:
        write_zip(partial, files, manifest)
    kept = sum(facts["included"] for facts in manifest["artifacts"].values())
    size = Path(snakemake.output[0]).stat().st_size
    say(f"{snakemake.output[0]}: {kept} of {len(manifest['artifacts'])} artifacts, {size / 1e6:.1f} MB")
