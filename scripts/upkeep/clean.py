"""List the files under results/ that no run of the config needs.

params.recipe   arguments of tpulm.release.untracked; targets; results, the folder or URL of the results; typed, the
                options of this command as a user types them
"""

import shlex

from tpulm.core.job import job

with job(snakemake.log[0], "clean") as say:
    from tpulm.release.untracked import leftovers, report

    found = leftovers(snakemake.params.recipe)
    report(found, say)
    if found:
        command = shlex.join(["snakemake", "clean_delete", *snakemake.params.recipe["typed"]])
        say(f"nothing was deleted; to delete these files: {command}")
