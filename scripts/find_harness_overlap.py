"""Find the items of a task of lm-evaluation-harness in the training documents of a text.

input.documents   Parquet files of the training split, one document per row
input.data        files of the task's examples, in the order of its description; none of a task of the harness
output            JSON: ngram; sets, by the task's name in the config what tpulm.evaluation.overlap.find_overlap says
params.recipe     harness (name, file or task and revision, examples shown, limit); ngram, words of an n-gram
"""

import tempfile

from tpulm.config.harness_tasks import HarnessTask
from tpulm.core.files import write_json
from tpulm.core.job import job

recipe = snakemake.params.recipe
asked, ngram = recipe["harness"], recipe["ngram"]

with job(snakemake.log[0], f"{asked['name']}, {snakemake.wildcards.collection}") as say:
    from tpulm.corpus.reader import read_texts
    from tpulm.evaluation.harness import Silent, items_of, results_of
    from tpulm.evaluation.overlap import find_overlap, told

    task = HarnessTask(asked["name"], asked)
    with tempfile.TemporaryDirectory() as cache:
        paths = dict(zip(task.data, map(str, snakemake.input.get("data", [])), strict=True))
        items = items_of(results_of(Silent(), task.key, asked | {"examples": 0}, paths, cache))
    sets = {asked["name"]: (list(items), list(items.values()))}
    found = find_overlap(sets, read_texts(snakemake.input.documents), ngram)
    write_json(snakemake.output[0], {"ngram": ngram, "sets": found})
    for line in told(found, ngram):
        say(line)
