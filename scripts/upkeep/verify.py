"""Compare every file on the disk or in the bucket with its SHA-256 in the ledger; name what is damaged and its repair.

params.recipe   results: where they are. From a bucket, all of it is copied to this machine first, and deleted again.
                options: of the command that is to repair
"""

import contextlib
import tempfile
from pathlib import Path

from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.core.job import job

recipe = snakemake.params.recipe

with job(snakemake.log[0], "verify") as say, contextlib.ExitStack() as place:
    from tpulm.core.ledger import folder_of, jobs_of, makers, name_here, repair_of
    from tpulm.release.integrity import check_artifacts, is_ours, unrecorded

    results = Path(recipe["results"])
    if bucket.remote(recipe["results"]):
        folder = place.enter_context(tempfile.TemporaryDirectory())
        say(f"copying {recipe['results']}")
        results = Path(name_here(f"{recipe['results']}/"))
        bucket.copy(recipe["results"], Path(folder) / results)
        place.enter_context(contextlib.chdir(folder))
    jobs = jobs_of(Path(), folder_of(f"{results}/"))
    made = {path: job for path, job in makers(jobs).items() if job["outputs"][path] and is_ours(path, results)}
    others = unrecorded(results, made)
    if others and not made:
        raise UserError(f"{results}/jobs has no records of the jobs that made the results, so nothing can be compared.")
    damages: dict[str, str] = {}
    for name, found in check_artifacts(jobs, made, results):
        say(f"{name}: {'damaged' if found else 'ok'}")
        for sentence in found.values():
            say(f"  {sentence}")
        damages |= found
    if others:
        say(f"not checked, as there is no record of them: {len(others):,} files, such as {others[0]}")
    if command := repair_of(damages, jobs, recipe["options"]):
        say("to make them again:")
        say(command)
    if damages:
        raise UserError(f"{len(damages)} error(s) in {len(made):,} files; the first: {next(iter(damages.values()))}")
    say(f"all {len(made):,} files are ok")
