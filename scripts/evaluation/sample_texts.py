"""Draw the held-out documents of a text that models are scored on.

input.documents   Parquet files of the held-out splits, one document per row
input.lengths     NumPy arrays: characters of each document
output            Parquet, see tpulm.evaluation.material; documents of each split in the order of the draw
params.recipe     documents (of each split), characters (of the beginning of a document), seed, files (their number in
                  each split), responses (true to score only these)
"""

from tpulm.core.job import job

recipe, collection = snakemake.params.recipe, snakemake.wildcards.collection

with job(snakemake.log[0], f"evaluation {collection}") as say:
    from tpulm.evaluation.material import draw, write_items

    paths = iter(snakemake.input.documents)
    files = {split: [next(paths) for _ in range(number)] for split, number in recipe["files"].items()}
    say(f"{write_items(snakemake.output[0], draw(collection, files, recipe)):,} documents")
