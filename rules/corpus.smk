"""Text: the documents of the corpus and of the finetuning text, in disjoint splits."""

from tpulm.corpus.sources import source_files

SOURCES = {collection: or_exit(source_files, key, text) for collection, (key, text) in TEXTS.items()}

# The files of the user's text.
SOURCE_PATHS = [Path(file) for splits in SOURCES.values() for files in splits.values() for file in files]


rule corpus:
    """The documents of every split."""
    input:
        expand("results/{collection}/{split}.parquet", collection=TEXTS, split=SPLITS),
        expand("results/{collection}/corpus.json", collection=TEXTS),
    localrule: True


rule build_corpus:
    """Read the documents of a text source, clean them and write one Parquet file per split."""
    input:
        unpack(lambda w: {split: list(map(local, files)) for split, files in SOURCES[w.collection].items()}),
        code=code_inputs("build_corpus", "data"),
    output:
        train="results/{collection}/train.parquet",
        validation="results/{collection}/validation.parquet",
        test="results/{collection}/test.parquet",
        record="results/{collection}/corpus.json",
    log:
        "logs/{collection}.log",
    conda:
        "../envs/data.yaml"
    threads: 1
    params:
        recipe=lambda w: TEXTS[w.collection][1] | {"key": TEXTS[w.collection][0]},
    script:
        "../scripts/build_corpus.py"
