"""Pass the metrics of every run that has been trained on to the trackers of the config, from the first step on.

params.recipe   what tpulm.tracking.follow takes; asked, the trackers of the config, installed or not
"""

from tpulm.core.errors import UserError
from tpulm.core.job import job

with job(snakemake.log[0], "track") as say:
    from tpulm.tracking.follow import follow

    recipe = snakemake.params.recipe
    if not recipe["asked"]:
        raise UserError("trackers is an empty list; allowed here: tensorboard, wandb, mlflow and trackio, one or more.")
    for name in recipe["asked"]:
        if name not in recipe["trackers"]:
            raise UserError(f"trackers names {name}, which is not installed here; to install it: pip install {name}")
    count = follow(recipe, lambda: True, say)
    say(f"{count} of {len(recipe['runs'])} runs have metrics, passed on to {', '.join(recipe['trackers'])}")
