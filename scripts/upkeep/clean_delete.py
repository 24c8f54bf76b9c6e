"""Delete the files below results/ that no run of the config needs.

params.recipe   arguments of tpulm.release.untracked; targets; results (folder or URL)
"""

from pathlib import Path

from tpulm.core.job import job

with job(snakemake.log[0], "clean") as say:
    from tpulm.release.untracked import delete, leftovers, report

    unneeded = leftovers(snakemake.params.recipe)
    report(unneeded, say)
    delete(unneeded, Path(snakemake.params.recipe["results"]))
    say("deleted")
