"""Archive a run: what was made, how each file came to be, the source, the config and the locks.

input           what the workflow makes; the archive has everything that this followed from
input.verify    the program that checks an archive, which goes into it
output.archive  NAME-VERSION.zip
output.sum      NAME-VERSION.zip.sha256: its SHA-256, as sha256sum writes and reads it
params.recipe   see tpulm.release.archive.archive_files; root: the folder of the workflow's source
"""

from pathlib import Path

from tpulm.core.files import atomic_write, sha256, write_text
from tpulm.core.job import job

recipe = snakemake.params.recipe
artifacts = sorted({*snakemake.input} - {snakemake.input.verify})

with job(snakemake.log[0], "archive") as say:
    from tpulm.release.archive import archive_files, write_zip

    files, manifest = archive_files(recipe, artifacts, Path(recipe["root"]))
    archive = Path(snakemake.output.archive)
    with atomic_write(archive) as partial:
        write_zip(partial, files, manifest)
    write_text(snakemake.output.sum, f"{sha256(archive)}  {archive.name}\n")
    kept = sum(facts["included"] for facts in manifest["artifacts"].values())
    size = archive.stat().st_size
    say(f"{archive}: {kept} of {len(manifest['artifacts'])} artifacts, {size / 1e6:.1f} MB")
