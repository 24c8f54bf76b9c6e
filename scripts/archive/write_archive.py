"""Archive a run: artifacts, provenance, source, config and locks.

input           artifacts of the workflow; the archive also has everything that they were made from
input.verify    program that checks an archive, which goes into it
output.archive  NAME-VERSION.zip
output.sum      NAME-VERSION.zip.sha256: its SHA-256 in the format of sha256sum
params.recipe   see tpulm.release.archive.archive_files; root: folder of the workflow's source
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
    included = sum(facts["included"] for facts in manifest["artifacts"].values())
    size = archive.stat().st_size
    say(f"{archive}: {included} of {len(manifest['artifacts'])} artifacts, {size / 1e6:.1f} MB")
