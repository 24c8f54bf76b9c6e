"""Read every artifact back from the disk or the bucket, and name what is damaged.

params.recipe   what the config says there should be: collections, tokenizer, records, chains, mlm, base, finetune;
                results: where they are. From a bucket, all of it is copied to this machine first, and deleted again.
"""

import contextlib
import tempfile
from pathlib import Path

from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.core.job import job

recipe = snakemake.params.recipe

with job(snakemake.log[0], "verify") as say, contextlib.ExitStack() as place:
    from tpulm.release.artifact_checks import verify

    results = Path(recipe["results"])
    if bucket.remote(recipe["results"]):
        folder = place.enter_context(tempfile.TemporaryDirectory())
        say(f"copying {recipe['results']}")
        results = Path("results")
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
    if damages:
        raise UserError(f"{len(damages)} error(s) in {built} artifacts; the first: {damages[0]}")
    say(f"all {built} artifacts are ok")
