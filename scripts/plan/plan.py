"""Print the plan of every run and task on every TPU slice of the config, and totals of the remaining training.

input.plans     results/plan/{planned}/{topology}.json
params.recipe   topologies; prices (of an hour on each); compiler (whether it is installed); runs, and chains of tasks,
                with the recipes of their plans; arguments (config files and values of the running Snakemake)
"""

from tpulm.core.files import read_json
from tpulm.core.job import job
from tpulm.release.untracked import summary
from tpulm.report.tables import HEAD, notes_of, rows_of, show, wrapped
from tpulm.workflow.budget import pending, totals, unfinished

recipe = snakemake.params.recipe

with job(snakemake.log[0], "plan") as say:
    if not recipe["topologies"]:
        say("plan.topologies is empty; add TPU slices, such as v5e-8, to plan them.")
    elif not recipe["compiler"]:
        say(
            "nothing is planned: the TPU compiler, libtpu, is not installed in this environment; "
            "`make setup ENVIRONMENT=tpu` installs it on Linux x86-64."
        )
    else:
        plans = [read_json(path) for path in snakemake.input.plans]
        todo = pending(
            recipe["runs"], unfinished(recipe["runs"], summary(recipe["arguments"], recipe["arguments"]["targets"][:1]))
        )
        table = wrapped([HEAD, *([show(cell) for cell in row] for row in rows_of(plans))], 120)
        for line in [*table, *notes_of(plans), *totals(todo, recipe["topologies"], recipe["prices"])]:
            say(line)
