"""Read a part of a text source: clean its documents, filter them, and write them with keys.

input.files                             the user's files, or those of a local dataset folder
input.chat_template                     JSON: template of conversations; absent for other sources
output.part                             Parquet: text, words (their number), key (equal for equal documents), responses
output.record                           JSON: source; number of documents, and of dropped ones by reason
params.recipe.source                    python-docs, python-source, files or hub
params.recipe.key                       key of this text in the config
params.recipe.piece                     part of a large file or dataset: its number, and the number of parts
params.recipe.sample_by                 unit of a document in a .txt file
params.recipe.column, or .template and .response, or .messages    form of a document in a table
params.recipe.responses                 true to write the spans of responses
params.recipe.dataset, .name, .revision, .splits    split of a dataset on the Hugging Face Hub
params.recipe.seed, .min_characters     seed of the keys; shorter documents are dropped
params.recipe.near_duplicates           threshold and ngram; absent if near-duplicates stay
params.recipe.filters                   quality filters and their limits; absent without filters
"""

import contextlib
import platform

from tpulm.core.files import read_json, write_json
from tpulm.core.job import job
from tpulm.corpus.files import unchanged
from tpulm.corpus.parts import describe_files, write_part
from tpulm.corpus.rows import Form

recipe, where = snakemake.params.recipe, snakemake.params.recipe["key"]
source, files = recipe["source"], list(snakemake.input.files)

with job(snakemake.log[0], snakemake.wildcards.collection) as say:
    read, piece = {"source": source}, tuple(recipe.get("piece", (0, 1)))
    chat = None
    if snakemake.input.chat_template:
        from tpulm.corpus.rows import ChatTemplate

        chat = ChatTemplate(read_json(snakemake.input.chat_template[0]))
    if source in ("python-docs", "python-source"):
        from tpulm.corpus.stdlib import python_docs, python_source

        batches = [python_docs() if source == "python-docs" else python_source()]
        read |= {"implementation": platform.python_implementation(), "python_version": platform.python_version()}
    elif source == "files":
        from tpulm.corpus.files import read_files

        batches = read_files(files, recipe["sample_by"], Form(where, recipe, chat), piece)
    else:
        from tpulm.corpus.files import load_hub, read_hub

        form = Form(where, recipe, chat)
        batches = read_hub(load_hub(where, recipe, form), recipe["dataset"], form)
        read |= {key: recipe.get(key) for key in ("dataset", "name", "revision", "splits")}
    with contextlib.ExitStack() as stack:
        for file in files:
            stack.enter_context(unchanged(file))
        written = write_part(snakemake.output.part, batches, recipe)
        described = describe_files(files, piece[0] == 0)
    write_json(snakemake.output.record, {"source": read, "files": described} | written)
    say(f"read {written['documents']:,} documents of {source}")
