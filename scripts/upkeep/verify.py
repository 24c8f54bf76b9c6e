"""Read every artifact back from the disk or the bucket, and name what is damaged, with the commands that repair it.

params.recipe   what the config says there should be: collections, tokenizer, records, chains, mlm, base, finetune;
                results: where they are. From a bucket, all of it is copied to this machine first, and deleted again.
                options: of the command that is to repair
"""

import contextlib
import shlex
import tempfile
from pathlib import Path

from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.core.job import job

recipe = snakemake.params.recipe

with job(snakemake.log[0], "verify") as say, contextlib.ExitStack() as place:
    from tpulm.core.job_record import name_here
    from tpulm.core.past_jobs import jobs_of, maker_of, makers, target_of
    from tpulm.release.artifact_checks import check_records, verify

    jobs, results = jobs_of(Path()), Path(recipe["results"])
    if bucket.remote(recipe["results"]):
        folder = place.enter_context(tempfile.TemporaryDirectory())
        say(f"copying {recipe['results']}")
        results = Path(name_here(f"{recipe['results']}/"))
        bucket.copy(recipe["results"], Path(folder) / results)
        place.enter_context(contextlib.chdir(folder))
    damages, built, absent = [], 0, []
    for name, found in verify(recipe, results):
        if found is None:
            absent.append(name)
            continue
        built += 1
        damages += found
        say(f"{name}: {'ok' if not found else 'corrupt'}")
        for damage in found:
            say(f"  {damage}")
    if absent:
        say(f"not built yet: {', '.join(absent)}")
    records = dict(check_records(jobs, results))
    recorded = {path: sentence for path, sentence in records.items() if not any(path in damage for damage in damages)}
    for sentence in recorded.values():
        say(f"  {sentence}")
    damages += recorded.values()
    made = makers(jobs)
    paths = {damage.split()[0].rstrip(".:") for damage in damages} | set(recorded)
    again = {job["id"]: target_of(path, job) for path in sorted(paths) if (job := maker_of(path, made))}
    if again:
        say("to make them again with the same bytes:")
        say(shlex.join(["snakemake", "--force", *again.values(), *recipe["options"]]))
    if damages:
        raise UserError(f"{len(damages)} error(s) in {built} artifacts; the first: {damages[0]}")
    say(f"all {built} artifacts are ok")
