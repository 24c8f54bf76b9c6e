"""Find what models are evaluated on in the training documents of a text.

input.documents   Parquet files of the training split, one document per row
input.texts       what is looked for, one of these or several: Parquet of held-out documents
input.pairs       JSON Lines of pairs of sentences, of which the good ones
input.test        Parquet of the test examples of a task
input.questions   JSON of the items of a task of lm-evaluation-harness
output            JSON: ngram; sets, by name what tpulm.evaluation.text_scores.find_overlap says of it
params.recipe     ngram, words of an n-gram
"""

from pathlib import Path

from tpulm.core.files import read_json, write_json
from tpulm.core.job import job

inputs, recipe, wildcards = snakemake.input, snakemake.params.recipe, snakemake.wildcards

with job(snakemake.log[0], f"{wildcards.searched}, {wildcards.collection}") as say:
    from tpulm.corpus.documents import read_texts
    from tpulm.corpus.examples import read_split
    from tpulm.evaluation.documents import read_sample, text_of
    from tpulm.evaluation.text_scores import find_overlap, read_sets, told

    name, sets = wildcards.searched.rpartition("/")[2], {}
    for path in inputs.get("texts", []):
        sets |= {one.name: (one.items, list(map(text_of, one.texts))) for one in read_sample(path, name)}
    pairs = inputs.get("pairs", [])
    for one in read_sets(pairs, [Path(path).stem for path in pairs]):
        sets[one.name] = ([pair.item for pair in one.pairs], [pair.good for pair in one.pairs])
    for path in inputs.get("test", []):
        test = read_split(path)
        sets |= {column: (test["item"], test[column]) for column in ("text", "text_pair") if column in test}
    for path in inputs.get("questions", []):
        items = read_json(path)
        sets[name] = (list(items), list(items.values()))
    found = find_overlap(sets, read_texts(inputs.documents), recipe["ngram"])
    write_json(snakemake.output[0], {"ngram": recipe["ngram"], "sets": found})
    for line in told(found, recipe["ngram"]):
        say(line)
