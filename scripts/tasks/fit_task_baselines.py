"""Predict the labels of a task's test examples without a language model.

input.train, .test     Parquet, see tpulm.corpus.examples
output                 Parquet: baseline; item, for a word its example's and its number; label and prediction, float64
params.recipe.names    majority, bag_of_words
params.recipe.predict  class, number or token-classes
"""

from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq
from tpulm.core.files import atomic_write
from tpulm.core.job import job
from tpulm.corpus.examples import read_split
from tpulm.evaluation.task_scores import BASELINES
from tpulm.specs.label_heads import TOKEN_CLASSES

recipe = snakemake.params.recipe
SCHEMA = pa.schema({"baseline": pa.string(), "item": pa.string(), "label": pa.float64(), "prediction": pa.float64()})

with job(snakemake.log[0], f"task {snakemake.wildcards.task}") as say:
    train, test = (read_split(snakemake.input[split]) for split in ("train", "test"))
    items, labels = test["item"], test["label"]
    words = recipe["predict"] == TOKEN_CLASSES
    if words:
        items = [f"{item}:{number:03d}" for item, row in zip(items, labels, strict=True) for number in range(len(row))]
        labels = list(chain.from_iterable(labels))
    tables = []
    for name in recipe["names"]:
        found = BASELINES[name](train, test, recipe["predict"])
        columns = {"baseline": [name] * len(items), "item": items, "label": labels}
        tables.append(
            pa.table(columns | {"prediction": list(chain.from_iterable(found)) if words else found}, schema=SCHEMA)
        )
    with atomic_write(snakemake.output[0]) as partial:
        table = pa.concat_tables(tables) if tables else SCHEMA.empty_table()
        pq.write_table(table.combine_chunks(), partial, compression="zstd", write_statistics=False)
    say(f"baselines of {len(test['item']):,} test examples: {', '.join(recipe['names']) or 'none'}")
