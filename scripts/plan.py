"""Say what every run would take on every TPU slice of the config, and what is still to be trained.

input.plans     results/plan/{stage}/{run}/{topology}.json
params.recipe   topologies; whether the compiler is there; pending: for each run with steps to train, how many
"""

from lib.job import job
from lib.plan_table import as_text, notes_of, rows_of
from lib.spending import totals

recipe = snakemake.params.recipe

with job(snakemake.log[0], "plan") as say:
    if not recipe["topologies"]:
        say("no TPU slice is named; name some, such as v5e-8, under plan.topologies in the config.")
    elif not recipe["compiler"]:
        say(
            "libtpu, which holds the TPU compiler, is not on this machine (it is for Linux on x86-64): nothing planned."
        )
    else:
        paths = list(snakemake.input.plans)
        for line in [*as_text(rows_of(paths)), *notes_of(paths), *totals(recipe["pending"], recipe["topologies"])]:
            say(line)
