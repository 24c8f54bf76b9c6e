"""Compare every file on the disk or in the bucket with its SHA-256 in the ledger; print damages and the repair command.

params.recipe   results (folder or URL; a bucket is copied to this machine first, and the copy is deleted); options (of
                the repair command)
"""

import contextlib
import tempfile
from pathlib import Path

from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.core.job import job

recipe = snakemake.params.recipe

with job(snakemake.log[0], "verify") as say, contextlib.ExitStack() as stack:
    from tpulm.core.ledger import folder_of, jobs_of, makers, name_here, repair_of
    from tpulm.release.integrity import check_artifacts, is_ours, unrecorded

    results = Path(recipe["results"])
    if bucket.remote(recipe["results"]):
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        say(f"copying {recipe['results']}")
        results = Path(name_here(f"{recipe['results']}/"))
        bucket.copy(recipe["results"], Path(folder) / results)
        stack.enter_context(contextlib.chdir(folder))
    jobs = jobs_of(Path(), folder_of(f"{results}/"))
    made_by = {path: job for path, job in makers(jobs).items() if job["outputs"][path] and is_ours(path, results)}
    without_record = unrecorded(results, made_by)
    if without_record and not made_by:
        raise UserError(f"{results}/jobs has no entries of the jobs that made the results, so nothing can be compared.")
    damages: dict[str, str] = {}
    for name, folder_damages in check_artifacts(jobs, made_by, results):
        say(f"{name}: {'damaged' if folder_damages else 'ok'}")
        for sentence in folder_damages.values():
            say(f"  {sentence}")
        damages |= folder_damages
    if without_record:
        say(f"not checked, as there is no record of them: {len(without_record):,} files, such as {without_record[0]}")
    if command := repair_of(damages, jobs, recipe["options"]):
        say("to make them again:")
        say(command)
    if damages:
        raise UserError(f"{len(damages)} error(s) in {len(made_by):,} files; the first: {next(iter(damages.values()))}")
    say(f"all {len(made_by):,} files are ok")
