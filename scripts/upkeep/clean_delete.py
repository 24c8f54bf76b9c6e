"""Delete the files under results/ that no run of the config needs.

params.recipe   arguments of tpulm.release.untracked; targets; results, the folder or URL of the results
"""

from pathlib import Path

from tpulm.core.job import job

with job(snakemake.log[0], "clean") as say:
    from tpulm.release.untracked import delete, leftovers, report

    found = leftovers(snakemake.params.recipe)
    report(found, say)
    delete(found, Path(snakemake.params.recipe["results"]))
    say("deleted")
