"""Find what models are scored on in the training documents of a text.

input.documents   Parquet files of the training split, one document per row
input.texts       Parquet file of the documents that models are scored on
input.pairs       JSON Lines files of pairs of sentences, of which the good ones are looked for
output            JSON: ngram; sets, by name what tpulm.evaluation.overlap.find_overlap says of it
params.recipe     ngram, words of an n-gram; pairs, the names of those
"""

from tpulm.core.files import write_json
from tpulm.core.job import job

recipe, scored = snakemake.params.recipe, snakemake.wildcards.scored

with job(snakemake.log[0], f"evaluation {snakemake.wildcards.collection}") as say:
    from tpulm.corpus.reader import read_texts
    from tpulm.evaluation.documents import read_sample
    from tpulm.evaluation.overlap import find_overlap, told
    from tpulm.evaluation.scored import read_sets

    texts = [one for path in snakemake.input.texts for one in read_sample(path, scored)]
    sets = {one.name: (one.items, one.texts) for one in texts}
    for one in read_sets(snakemake.input.pairs, recipe["pairs"]):
        sets[one.name] = ([pair.item for pair in one.pairs], [pair.good for pair in one.pairs])
    found = find_overlap(sets, read_texts(snakemake.input.documents), recipe["ngram"])
    write_json(snakemake.output[0], {"ngram": recipe["ngram"], "sets": found})
    for line in told(found, recipe["ngram"]):
        say(line)
