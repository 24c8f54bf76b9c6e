"""List the files under results/ that no run of the config needs.

params.recipe   arguments of tpulm.release.untracked; targets; results, the folder or URL of the results
"""

from tpulm.core.job import job

with job(snakemake.log[0], "clean") as say:
    from tpulm.release.untracked import leftovers, report

    report(leftovers(snakemake.params.recipe), say)
    say("nothing was deleted; to delete these files, with the options of this command: snakemake clean_delete")
