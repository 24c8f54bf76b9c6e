"""Archive a run: artifacts, provenance, source, config and locks.

input           artifacts of the workflow; the archive also has everything that they were made from
input.verify    program that checks an archive, which goes into it
output.archive  NAME-VERSION.zip
output.sum      NAME-VERSION.zip.sha256: its SHA-256 in the format of sha256sum
params.recipe   see tpulm.release.archive.archive_files; root: folder of the workflow's source
"""

from collections import Counter
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
    left_out = Counter(Path(path).name for path, facts in manifest["artifacts"].items() if not facts["included"])
    count, size = len(manifest["artifacts"]), archive.stat().st_size
    say(f"{archive}: {count - left_out.total()} of {count} artifacts, {size / 1e6:.1f} MB")
    if left_out:
        names = ", ".join(f"{name} ({number})" for name, number in left_out.items())
        limit = f"archive.largest_file_mb, {recipe['largest_file_mb']:g}"
        say(f"left out, because deleted or larger than {limit}: {names}")
