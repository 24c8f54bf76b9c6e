"""Read every artifact back, as it lies on the disk, and name what is damaged.

params.recipe   what the config says there should be: collections, tokenizer, shards, chains, mlm, base, lora
"""

from lib.errors import UserError
from lib.job import job

with job(snakemake.log[0], "verify") as say:
    from lib.verification import verify

    damages, built, absent = [], 0, []
    for name, found in verify(snakemake.params.recipe):
        if found is None:
            absent.append(name)
            continue
        built += 1
        damages += found
        say(f"{name}: {'whole' if not found else 'DAMAGED'}")
        for damage in found:
            say(f"  {damage}")
    if absent:
        say(f"not built yet: {', '.join(absent)}")
    if damages:
        raise UserError(f"{len(damages)} damage(s) in {built} artifacts; the first: {damages[0]}")
    say(f"{built} artifacts are whole")
