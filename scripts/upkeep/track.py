"""Send the metrics of every trained run to the trackers of the config, from the first step on.

params.recipe   see tpulm.workflow.trackers
"""

from tpulm.core.errors import UserError
from tpulm.core.job import job

with job(snakemake.log[0], "track") as say:
    from tpulm.workflow.trackers import check_installed, follow

    recipe = snakemake.params.recipe
    if not recipe["trackers"]:
        raise UserError("trackers is an empty list; allowed: tensorboard, wandb or both.")
    check_installed(recipe["trackers"])
    count = follow(recipe, lambda: True, say)
    say(f"{count} of {len(recipe['runs'])} runs have metrics, which were sent to {', '.join(recipe['trackers'])}")
