"""The text: documents of the corpus, and of the text to tune on, in splits that share none."""

from lib.text_sources import source_files

try:
    SOURCES = {collection: source_files(collection, config[collection]) for collection in COLLECTIONS}
except UserError as error:
    sys.exit(f"error: {error}")


rule corpus:
    """The documents of every split."""
    input:
        expand("results/{collection}/{split}.parquet", collection=COLLECTIONS, split=SPLITS),
        expand("results/{collection}/corpus.json", collection=COLLECTIONS),
    localrule: True


rule build_corpus:
    """Read the documents of a text source, clean them and write one Parquet file per split."""
    input:
        unpack(lambda w: {split: list(map(local, files)) for split, files in SOURCES[w.collection].items()}),
        library=library("build_corpus", "data"),
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
        recipe=lambda w: config[w.collection],
    script:
        "../scripts/build_corpus.py"
