"""Read the examples of a task, and split them.

input.train, .validation, .test   the user's files, if they are files
input.dataset                     files of a dataset in a folder, if it is one
output.train, .validation, .test  Parquet, see tpulm.corpus.examples
output.task                       JSON: predict; labels in order; splits (number of examples and, for classes, of each
                                  label)
params.recipe.key                 key of this task in the config
params.recipe.source              python-modules, files or hub
params.recipe.predict             class or number
params.recipe.modules             modules of the standard library
params.recipe.text, .text_pair, .label              columns
params.recipe.dataset, .name, .revision, .splits    splits of a dataset on the Hugging Face Hub
params.recipe.held_out            shares of the training examples for splits that the source lacks; seed
"""

import contextlib
from collections import Counter
from itertools import chain

from tpulm.core.files import write_json
from tpulm.core.job import job
from tpulm.corpus.examples import Fields, hold_out, labels_of, module_examples, module_files, write_split
from tpulm.corpus.files import read_files, unchanged
from tpulm.specs.artifacts import SPLITS
from tpulm.specs.classification_heads import CLASS, NUMBER

recipe, where = snakemake.params.recipe, snakemake.params.recipe["key"]
predict = recipe["predict"]

with job(snakemake.log[0], f"task {snakemake.wildcards.task}") as say:
    if recipe["source"] == "python-modules":
        examples_of = {"train": module_examples(where, recipe["modules"])}
        absent = [module for module in recipe["modules"] if not module_files(module)]
        if absent:
            say(f"note: {where}.modules: this Python does not have {', '.join(absent)}; skipped")
    elif recipe["source"] == "files":
        files = {split: list(snakemake.input.get(split) or []) for split in SPLITS}
        with contextlib.ExitStack() as stack:
            for file in chain.from_iterable(files.values()):
                stack.enter_context(unchanged(file))
            fields = Fields(where, recipe)
            batches = {split: read_files(paths, "line", fields) for split, paths in files.items() if paths}
            examples_of = {split: list(chain.from_iterable(rows)) for split, rows in batches.items()}
    else:
        from tpulm.corpus.files import load_hub, read_hub

        fields, examples_of = Fields(where, recipe), {}
        for split, expression in recipe["splits"].items():
            loaded = load_hub(where, recipe | {"splits": {split: expression}}, fields)
            examples_of[split] = list(chain.from_iterable(read_hub(loaded, recipe["dataset"], fields)))
    splits = hold_out(where, examples_of, recipe["held_out"])
    labels = labels_of(where, splits, predict)
    described = {"predict": predict, "labels": labels, "splits": {}}
    for split, examples in splits.items():
        write_split(snakemake.output[split], examples, labels, predict)
        described["splits"][split] = {"examples": len(examples)}
        if predict == CLASS:
            counts = Counter(label for *_, label in examples)
            described["splits"][split]["labels"] = {label: counts[label] for label in labels}
    write_json(snakemake.output.task, described)
    counts = ", ".join(f"{len(examples):,} {split}" for split, examples in splits.items())
    kind = "numbers" if predict == NUMBER else f"{len(labels)} labels"
    say(f"{counts} examples of {recipe['source']}, {kind}")
