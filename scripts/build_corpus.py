"""Read the documents of a text source, clean them and write one Parquet file per split.

input.train, .validation, .test         the user's files of each split, for the source `files`
input.dataset                           the files of a local folder, for the source `hub`
output.train, .validation, .test        Parquet, one column `text`, one document per row
output.record                           JSON: what was read, and the figures of each split
params.recipe.source                    python-docs, python-source, files or hub
params.recipe.key                       key of this text in the config
params.recipe.sample_by, .column        what a document is in a .txt file, or in the files of a table
params.recipe.dataset, .name, .revision, .splits    where on the Hugging Face hub
params.recipe.held_out, .seed           shares of train that become the splits which the source does not name
params.recipe.min_characters, .max_documents        what is left out
"""

import os
import platform

from tpulm.config.artifacts import SPLITS
from tpulm.core.files import sha256, write_json
from tpulm.core.job import job
from tpulm.corpus.splits import write_splits

recipe, where = snakemake.params.recipe, snakemake.params.recipe["key"]
source = recipe["source"]

with job(snakemake.log[0], snakemake.wildcards.collection) as say:
    say(f"reading {source}")
    record = {"source": source}
    files = {name: list(paths) for name, paths in snakemake.input.items() if name != "code"}
    if source in ("python-docs", "python-source"):
        from tpulm.corpus.stdlib import python_docs, python_source

        texts = python_docs() if source == "python-docs" else python_source()
        named, read = ["train"], lambda split: [texts]
        record |= {"implementation": platform.python_implementation(), "python_version": platform.python_version()}
    elif source == "files":
        from tpulm.corpus.sources import read_files

        named, read = list(files), lambda split: read_files(where, files[split], recipe["sample_by"], recipe["column"])
    else:
        from tpulm.corpus.sources import load_hub, read_hub

        loaded = load_hub(where, recipe)
        named, read = list(loaded), lambda split: read_hub(where, loaded[split], recipe["dataset"], recipe["column"])
        record |= {key: recipe.get(key) for key in ("dataset", "name", "revision", "splits")}
    outputs = {split: snakemake.output[split] for split in SPLITS}
    splits = write_splits(where, recipe, named, read, outputs)
    if files:
        record["files"] = {
            name: [{"path": path, "bytes": os.path.getsize(path), "sha256": sha256(path)} for path in paths]
            for name, paths in files.items()
        }
    write_json(snakemake.output.record, record | {"splits": splits})
    for split, figures in splits.items():
        say(
            f"{split}: {figures['documents']:,} documents, {figures['characters']:,} characters; dropped "
            f"{figures['dropped_empty']:,} empty, {figures['dropped_short']:,} short, "
            f"{figures['dropped_duplicates']:,} that are in another split"
        )
