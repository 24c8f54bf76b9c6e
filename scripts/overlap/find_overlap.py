"""Find the items of an evaluation that are in the training documents of a text.

input.documents   Parquet files of the training split, one document per row
input.material, or .test, or .questions   items: Parquet of documents and of pairs (their good sentences); Parquet of a
                  task's test examples; JSON of the items of a task of lm-evaluation-harness
output            JSON: ngram; found, the items in training documents by the name of their set
params.recipe     ngram (words of an n-gram)
"""

from tpulm.core.files import read_json, write_json
from tpulm.core.job import job

inputs, n, wildcards = snakemake.input, snakemake.params.recipe["ngram"], snakemake.wildcards

with job(snakemake.log[0], f"{wildcards.searched}, {wildcards.collection}") as say:
    from tpulm.corpus.documents import read_texts
    from tpulm.corpus.examples import read_split
    from tpulm.evaluation.material import read_items
    from tpulm.evaluation.overlap import find_overlap

    name, sets = wildcards.searched.rpartition("/")[2], {}
    for item in (item for path in inputs.get("material", []) for item in read_items(path)):
        items, texts = sets.setdefault(item.part, ([], []))
        items.append(item.item)
        texts.append(item.passages[0].text)
    for path in inputs.get("test", []):
        test = read_split(path)
        columns = [test[column] for column in ("text", "text_pair") if column in test]
        sets[name] = (test["item"], list(map("\n".join, zip(*columns, strict=True))))
    for path in inputs.get("questions", []):
        items = read_json(path)
        sets[name] = (list(items), list(items.values()))
    overlaps = find_overlap(sets, read_texts(inputs.documents), n)
    write_json(snakemake.output[0], {"ngram": n, "found": overlaps})
    for set_name, shared in overlaps.items():
        say(f"{set_name}: {len(shared)} of {len(sets[set_name][0])} share {n} words with training documents")
