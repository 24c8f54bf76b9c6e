"""Read the items of a task of lm-evaluation-harness, which are later searched in training text.

input.data        files of the task's examples in the order of its description; none for a task of the harness
output            JSON: text of each item by its name
params.recipe     harness (name, file or task and revision, limit)
"""

import tempfile

from tpulm.core.files import write_json
from tpulm.core.job import job
from tpulm.specs.harness_tasks import HarnessTask

harness = snakemake.params.recipe["harness"]

with job(snakemake.log[0], harness["name"]) as say:
    from tpulm.evaluation.harness import Silent, items_of, results_of

    task = HarnessTask(harness["name"], harness)
    with tempfile.TemporaryDirectory() as cache:
        paths = dict(zip(task.data, map(str, snakemake.input.get("data", [])), strict=True))
        items = items_of(results_of(Silent(), task.key, harness | {"examples": 0}, paths, cache))
    write_json(snakemake.output[0], items)
    say(f"{len(items)} items")
