"""Compare every file on the disk or in the bucket with its SHA-256, and name what is damaged and what repairs it.

params.recipe   results: where they are. From a bucket, all of it is copied to this machine first, and deleted again.
                options: of the command that is to repair
                chains: steps of the checkpoints of each run, by its folder below results/
"""

import contextlib
import tempfile
from pathlib import Path

from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.core.job import job

recipe = snakemake.params.recipe

with job(snakemake.log[0], "verify") as say, contextlib.ExitStack() as place:
    from tpulm.core.job_record import name_here
    from tpulm.core.past_jobs import jobs_of, repair_of
    from tpulm.release.artifact_checks import known_sums, unrecorded, verify

    jobs, results = jobs_of(Path(), pods=True), Path(recipe["results"])
    if bucket.remote(recipe["results"]):
        folder = place.enter_context(tempfile.TemporaryDirectory())
        say(f"copying {recipe['results']}")
        results = Path(name_here(f"{recipe['results']}/"))
        bucket.copy(recipe["results"], Path(folder) / results)
        place.enter_context(contextlib.chdir(folder))
    known = known_sums(jobs, results)
    damages: dict[str, str] = {}
    for name, found in verify(jobs, results, known, recipe["chains"]):
        say(f"{name}: {'corrupt' if found else 'ok'}")
        for sentence in found.values():
            say(f"  {sentence}")
        damages |= found
    if others := unrecorded(results, known):
        say(f"not checked, as no SHA-256 was recorded: {len(others):,} files, such as {others[0]}")
    if command := repair_of(damages, jobs, recipe["options"]):
        say("to make them again with the same bytes:")
        say(command)
    if damages:
        raise UserError(f"{len(damages)} error(s) in {len(known):,} files; the first: {next(iter(damages.values()))}")
    say(f"all {len(known):,} files are ok")
