"""Delete what lies under results/ and no run of the config needs.

params.recipe   configfiles and config, as given to this Snakemake; results, where they are
"""

from lib.job import job

with job(snakemake.log[0], "clean") as say:
    from lib.leftovers import delete, leftovers, report

    found = leftovers(snakemake.params.recipe)
    report(found, say)
    delete(found)
    say("deleted")
