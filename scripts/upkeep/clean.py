"""List the files under results/ that no run of the config needs.

params.recipe   arguments of tpulm.release.untracked; targets; results, the folder or URL of the results
"""

from tpulm.core.experiments import directory_option
from tpulm.core.job import job

with job(snakemake.log[0], "clean") as say:
    from tpulm.release.untracked import leftovers, report

    found = leftovers(snakemake.params.recipe)
    report(found, say)
    if found:
        say(f"nothing was deleted; to delete these files: snakemake {directory_option()}clean_delete")
