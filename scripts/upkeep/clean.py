"""List the files below results/ that no run of the config needs.

params.recipe   arguments of tpulm.release.untracked; targets; results (folder or URL); typed (options of this command,
                as the user typed them)
"""

import shlex

from tpulm.core.job import job

with job(snakemake.log[0], "clean") as say:
    from tpulm.release.untracked import leftovers, report

    unneeded = leftovers(snakemake.params.recipe)
    report(unneeded, say)
    if unneeded:
        command = shlex.join(["snakemake", "clean_delete", *snakemake.params.recipe["typed"]])
        say(f"nothing was deleted; to delete these files: {command}")
