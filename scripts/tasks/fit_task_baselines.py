"""Predict the labels of a task's test examples without a language model.

input.train, .test     Parquet, see tpulm.corpus.examples
output                 Parquet: baseline, item; label and prediction, float64
params.recipe.names    majority, bag_of_words
params.recipe.predict  class or number
"""

import pyarrow as pa
import pyarrow.parquet as pq
from tpulm.core.files import atomic_write
from tpulm.core.job import job
from tpulm.corpus.examples import read_split
from tpulm.evaluation.task_scores import BASELINES

recipe = snakemake.params.recipe
SCHEMA = pa.schema({"baseline": pa.string(), "item": pa.string(), "label": pa.float64(), "prediction": pa.float64()})

with job(snakemake.log[0], f"task {snakemake.wildcards.task}") as say:
    train, test = (read_split(snakemake.input[split]) for split in ("train", "test"))
    tables = []
    for name in recipe["names"]:
        columns = {"baseline": [name] * len(test["item"]), "item": test["item"], "label": test["label"]}
        columns["prediction"] = BASELINES[name](train, test, recipe["predict"])
        tables.append(pa.table(columns, schema=SCHEMA))
    with atomic_write(snakemake.output[0]) as partial:
        table = pa.concat_tables(tables) if tables else SCHEMA.empty_table()
        pq.write_table(table.combine_chunks(), partial, compression="zstd", write_statistics=False)
    say(f"baselines of {len(test['item']):,} test examples: {', '.join(recipe['names']) or 'none'}")
