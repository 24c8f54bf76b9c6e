"""Texts: the documents of the corpus and of the finetuning text, in disjoint splits."""

from tpulm.specs.texts import chat_template_files, has_messages
from tpulm.corpus.files import look_at
from tpulm.corpus.sources import (
    assign_splits_recipe, benchmark_files, build_corpus_recipe, describe_corpus_recipe, divided, memory_of, part_files,
    parts_of, read_part_recipe, split_files,
)  # fmt: skip

PARTS = {collection: or_exit(parts_of, key, text) for collection, (key, text) in TEXTS.items()}
if workflow.is_main_process:
    for collection, (key, text) in TEXTS.items():
        or_exit(look_at, key, text, PARTS[collection])

# The texts whose parts have their own files of each split.
DIVIDED = [name for name, (_, text) in TEXTS.items() if divided(text, PARTS[name])]
# The Parquet files of each split.
DOCUMENTS = {
    (collection, split): split_files(collection, split, text, PARTS[collection])
    for collection, (_, text) in TEXTS.items()
    for split in SPLITS
}
# The same files as inputs of jobs that read only some of the documents.
DOCUMENTS_IN_PLACE = {key: list(map(in_place, files)) for key, files in DOCUMENTS.items()}
# All jobs that read them take these: of jobs that start together, Snakemake fetches a file from a bucket for the first.
LENGTHS_IN_PLACE = {key: [in_place(lengths_file(file)) for file in files] for key, files in DOCUMENTS.items()}
# The benchmarks that are removed from a text.
BENCHMARKS = {
    collection: or_exit(benchmark_files, key, text)
    for collection, (key, text) in TEXTS.items()
    if "decontaminate" in text
}


rule corpus:
    """Target: the documents of every split."""
    input:
        DOCUMENTS.values(),
        expand("<results>/{collection}/corpus.json", collection=TEXTS),
    localrule: True


# The chat templates of the texts, and the files that they are read from.
CHATS = {
    collection: or_exit(chat_template_files, text["chat_template"])
    for collection, (_, text) in TEXTS.items()
    if "chat_template" in text
}


rule fetch_chat_template:
    """Read the chat template of a text: the template of Gemma, of a file, or of a tokenizer."""
    input:
        files=lambda w: list(map(local, CHATS[w.collection])),
    output:
        "<results>/{collection}/chat_template.json",
    params:
        recipe=lambda w: {
            key: value for key, value in TEXTS[w.collection].recipe.items() if key.startswith("chat_template")
        }
        | {"key": f"{TEXTS[w.collection].key}.chat_template"},
        code=code_digest("corpus/fetch_chat_template", "data"),
    log:
        "<logs>/{collection}/chat_template.log",
    wildcard_constraints:
        collection=one_of(CHATS),
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/corpus/fetch_chat_template.py"


rule read_part:
    """Read a part of a text source and clean its documents."""
    input:
        files=lambda w: list(map(PATHS.text, PARTS[w.collection][int(w.part)].files)),
        chat_template=lambda w: (
            [f"<results>/{w.collection}/chat_template.json"]
            if has_messages(*TEXTS[w.collection], PARTS[w.collection][int(w.part)].source)
            else []
        ),
    output:
        part="<results>/{collection}/parts/{part}.parquet",
        record="<results>/{collection}/parts/{part}.json",
    params:
        recipe=lambda w: read_part_recipe(*TEXTS[w.collection], PARTS[w.collection][int(w.part)]),
        code=code_digest("corpus/read_part", "data"),
    log:
        "<logs>/{collection}/parts/{part}.log",
    wildcard_constraints:
        part=r"\d{5}",
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=lambda w: memory_of(PARTS[w.collection][int(w.part)]),
    script:
        "../scripts/corpus/read_part.py"


rule assign_splits:
    """Assign each document to one split, without duplicates between splits."""
    input:
        # Only the keys of the documents are read.
        parts=lambda w: list(map(in_place, part_files(w, PARTS, ".parquet"))),
        records=lambda w: part_files(w, PARTS, ".json"),
    output:
        splits="<results>/{collection}/splits.npy",
        record="<results>/{collection}/splits.json",
    params:
        recipe=lambda w: assign_splits_recipe(*TEXTS[w.collection], PARTS[w.collection]),
        code=code_digest("corpus/assign_splits", "data"),
    log:
        "<logs>/{collection}/splits.log",
    wildcard_constraints:
        collection=one_of(TEXTS),
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=4000,  # does not depend on the size of the input
        disk_mb=lambda w: 16000 if w.collection in DIVIDED or w.collection in BENCHMARKS else 4000,
    script:
        "../scripts/corpus/assign_splits.py"


rule collect_ngrams:
    """Collect the word n-grams of held-out documents and benchmarks."""
    input:
        parts=lambda w: list(map(in_place, part_files(w, PARTS, ".parquet"))),
        splits="<results>/{collection}/splits.npy",
        benchmarks=lambda w: list(map(PATHS.text, BENCHMARKS[w.collection])),
    output:
        "<results>/{collection}/ngrams.npy",
    params:
        recipe=lambda w: pick(TEXTS[w.collection].recipe["decontaminate"], "ngram", "column")
        | {"key": TEXTS[w.collection].key},
        code=code_digest("corpus/collect_ngrams", "data"),
    log:
        "<logs>/{collection}/ngrams.log",
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=4000,  # does not depend on the size of the input
        disk_mb=16000,
    script:
        "../scripts/corpus/collect_ngrams.py"


rule find_contamination:
    """Find the training documents of a part that share a word n-gram with held-out documents or benchmarks."""
    input:
        part="<results>/{collection}/parts/{part}.parquet",
        splits=lambda w: in_place(f"<results>/{w.collection}/splits.npy"),
        record="<results>/{collection}/splits.json",
        ngrams="<results>/{collection}/ngrams.npy",
    output:
        "<results>/{collection}/parts/{part}.contamination.json",
    params:
        recipe=lambda w: pick(TEXTS[w.collection].recipe["decontaminate"], "ngram"),
        code=code_digest("corpus/find_contamination", "data"),
    log:
        "<logs>/{collection}/parts/{part}.contamination.log",
    wildcard_constraints:
        part=r"\d{5}",
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=4000,
    script:
        "../scripts/corpus/find_contamination.py"


rule build_corpus:
    """Write the documents to one Parquet file per split."""
    input:
        parts=lambda w: part_files(w, PARTS, ".parquet"),
        splits=lambda w: in_place(f"<results>/{w.collection}/splits.npy"),
        record="<results>/{collection}/splits.json",
        contamination=lambda w: part_files(w, PARTS, ".contamination.json") if w.collection in BENCHMARKS else [],
    output:
        **{split: f"<results>/{{collection}}/{split}.parquet" for split in SPLITS},
        lengths=expand("<results>/{{collection}}/{split}.lengths.npy", split=SPLITS),
        record="<results>/{collection}/figures.json",
    params:
        recipe=lambda w: build_corpus_recipe(*TEXTS[w.collection], PARTS[w.collection]),
        code=code_digest("corpus/build_corpus", "data"),
    log:
        "<logs>/{collection}/corpus.log",
    wildcard_constraints:
        collection=one_of(name for name in TEXTS if name not in DIVIDED),
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=4000,  # does not depend on the size of the input
    script:
        "../scripts/corpus/build_corpus.py"


use rule build_corpus as split_part with:
    # Write the documents of a part of a very large text to one Parquet file per split.
    input:
        parts=lambda w: [f"<results>/{w.collection}/parts/{w.part}.parquet"],
        splits=lambda w: in_place(f"<results>/{w.collection}/splits.npy"),
        record="<results>/{collection}/splits.json",
        contamination=lambda w: (
            [f"<results>/{w.collection}/parts/{w.part}.contamination.json"] if w.collection in BENCHMARKS else []
        ),
    output:
        **{split: f"<results>/{{collection}}/{split}/{{part}}.parquet" for split in SPLITS},
        lengths=expand("<results>/{{collection}}/{split}/{{part}}.lengths.npy", split=SPLITS),
        record="<results>/{collection}/parts/{part}.figures.json",
    params:
        recipe=lambda w: build_corpus_recipe(*TEXTS[w.collection], [PARTS[w.collection][int(w.part)]]),
        code=code_digest("corpus/build_corpus", "data"),
    log:
        "<logs>/{collection}/parts/{part}.splits.log",
    wildcard_constraints:
        collection=one_of(DIVIDED),
        part=r"\d{5}",


use rule build_corpus as split_source with:
    # Write the documents of a source, which phases mix with others, to one Parquet file per split.
    input:
        parts=lambda w: part_files(w, PARTS, ".parquet"),
        splits=lambda w: in_place(f"<results>/{w.collection}/splits.npy"),
        record="<results>/{collection}/splits.json",
        contamination=lambda w: part_files(w, PARTS, ".contamination.json") if w.collection in BENCHMARKS else [],
    output:
        **{split: f"<results>/{{collection}}/sources/{{source}}/{split}.parquet" for split in SPLITS},
        lengths=expand("<results>/{{collection}}/sources/{{source}}/{split}.lengths.npy", split=SPLITS),
        record="<results>/{collection}/sources/{source}/figures.json",
    params:
        recipe=lambda w: build_corpus_recipe(
            *TEXTS[w.collection], [part for part in PARTS[w.collection] if part.source == w.source]
        ),
        code=code_digest("corpus/build_corpus", "data"),
    log:
        "<logs>/{collection}/sources/{source}.log",
    wildcard_constraints:
        collection=one_of(name for name in TEXTS if name not in DIVIDED),
        source=one_of({records.source for records in RECORDS.values() if records.source}),


rule describe_corpus:
    """Merge the statistics of the documents of a text."""
    input:
        figures=lambda w: (
            part_files(w, PARTS, ".figures.json")
            if w.collection in DIVIDED
            else [f"<results>/{w.collection}/figures.json"]
        ),
        record="<results>/{collection}/splits.json",
        contamination=lambda w: part_files(w, PARTS, ".contamination.json") if w.collection in BENCHMARKS else [],
    output:
        "<results>/{collection}/corpus.json",
    params:
        recipe=lambda w: describe_corpus_recipe(*TEXTS[w.collection]),
        code=code_digest("corpus/describe_corpus", "data"),
    log:
        "<logs>/{collection}/describe.log",
    wildcard_constraints:
        collection=one_of(TEXTS),
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/corpus/describe_corpus.py"
