"""Make pairs of sentences of the test split of the corpus, the second of each broken.

input.documents   Parquet files of the split, one document per row
output            JSON Lines: pairID, phenomenon (what was broken), sentence_good, sentence_bad
params.recipe     made, how many of each kind; seed
"""

from tpulm.core.job import job

recipe = snakemake.params.recipe

with job(snakemake.log[0], "evaluation pairs") as say:
    from tpulm.evaluation.documents import draw
    from tpulm.evaluation.minimal_pairs import DOCUMENTS, make_pairs, write_pairs

    _, texts = draw(snakemake.input.documents, DOCUMENTS, recipe["seed"])
    pairs = make_pairs(texts, recipe["made"], recipe["seed"])
    write_pairs(snakemake.output[0], pairs)
    more = "" if pairs else ": pairs need words separated by spaces; evaluation.pairs.sets reads pairs from files"
    say(f"{len(pairs)} pairs of {len({pair.phenomenon for pair in pairs})} phenomena{more}")
