"""Find the test examples of a task in the training documents of a text.

input.documents      Parquet files of the training split, one document per row
input.test           Parquet, see tpulm.corpus.task_files
output               JSON: ngram; sets, by column (text, text_pair) what tpulm.evaluation.overlap.find_overlap says
params.recipe.ngram  words of an n-gram
"""

from tpulm.core.files import write_json
from tpulm.core.job import job

wildcards, ngram = snakemake.wildcards, snakemake.params.recipe["ngram"]

with job(snakemake.log[0], f"task {wildcards.task}, {wildcards.collection}") as say:
    from tpulm.corpus.reader import read_texts
    from tpulm.corpus.task_files import read_split
    from tpulm.evaluation.overlap import find_overlap, told

    test = read_split(snakemake.input.test)
    sets = {column: (test["item"], test[column]) for column in ("text", "text_pair") if column in test}
    found = find_overlap(sets, read_texts(snakemake.input.documents), ngram)
    write_json(snakemake.output[0], {"ngram": ngram, "sets": found})
    for line in told(found, ngram):
        say(line)
