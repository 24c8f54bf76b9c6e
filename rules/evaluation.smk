"""How good every model is: bits per byte of held-out text and pairs of sentences, beside simpler models."""

from tpulm.config.evaluation_names import HELD_OUT
from tpulm.config.evaluations import Evaluations
from tpulm.corpus.pair_sources import pair_sources

EVALUATED = Evaluations(config, ASKED, MEASURED, TRAINED_BASES, FINETUNE, list(TEXTS))
PAIRS = EVALUATED.pairs
PAIR_FILES, TEXT_FILES = EVALUATED.pair_files, EVALUATED.text_files
# The files that sets of pairs are read from.
PAIR_SOURCES = {name: or_exit(pair_sources, name, recipe) for name, recipe in PAIRS["sets"].items()}
# What `evaluation` makes, and `all` with it; other files of rules/ add to it.
SCORES = [
    f"results/evaluation/{model}/{file}" for model in EVALUATED.models for file in ("scores.json", "items.parquet")
]
# The inputs that say what a model of a stage is scored on, and beside what.
scored_on = EVALUATED.scored_on


rule evaluation:
    """Target: the scores of every model."""
    localrule: True
    input:
        lambda w: SCORES,


rule sample_texts:
    """Draw the held-out documents that models are scored on."""
    input:
        documents=lambda w: [file for split in HELD_OUT for file in DOCUMENTS_IN_PLACE[w.collection, split]],
        lengths=lambda w: [lengths_file(file) for split in HELD_OUT for file in DOCUMENTS[w.collection, split]],
        code=code_inputs("sample_texts", "data"),
    output:
        "results/evaluation/texts/{collection}.parquet",
    params:
        recipe=lambda w: EVALUATED.sampling
        | {"files": {split: len(DOCUMENTS[w.collection, split]) for split in HELD_OUT}},
    log:
        "logs/evaluation/texts-{collection}.log",
    threads: 1
    resources:
        mem_mb=4000,
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/sample_texts.py"


rule make_pairs:
    """Make pairs of sentences of the test split, the second of each broken."""
    input:
        documents=DOCUMENTS_IN_PLACE["corpus", "test"],
        lengths=list(map(lengths_file, DOCUMENTS["corpus", "test"])),
        code=code_inputs("make_pairs", "data"),
    output:
        "results/evaluation/pairs/made.jsonl",
    params:
        recipe=pick(PAIRS, "made", "seed"),
    log:
        "logs/evaluation/pairs-made.log",
    threads: 1
    resources:
        mem_mb=4000,
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/make_pairs.py"


rule fetch_pairs:
    """Read a set of pairs of sentences from files or from the Hugging Face Hub."""
    input:
        files=lambda w: list(map(PLACE.text, PAIR_SOURCES[w.pairs])),
        code=code_inputs("fetch_pairs", "data"),
    output:
        "results/evaluation/pairs/sets/{pairs}.jsonl",
    params:
        recipe=lambda w: PAIRS["sets"][w.pairs],
    log:
        "logs/evaluation/pairs-{pairs}.log",
    wildcard_constraints:
        pairs=one_of(PAIRS["sets"]),
    threads: 1
    resources:
        mem_mb=4000,
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/fetch_pairs.py"


rule find_overlap:
    """Find what models are scored on in the training documents of a text."""
    input:
        documents=lambda w: DOCUMENTS_IN_PLACE[w.collection, "train"],
        texts=lambda w: [TEXT_FILES[w.scored]] if TEXT_FILES else [],
        pairs=lambda w: EVALUATED.pair_files_of(w.scored),
        code=code_inputs("find_overlap", "data"),
    output:
        "results/evaluation/overlap/{collection}/{scored}.json",
    params:
        recipe=lambda w: {"pairs": EVALUATED.pairs_of(w.scored), **config["evaluation"]["overlap"]},
    log:
        "logs/evaluation/overlap-{collection}-{scored}.log",
    wildcard_constraints:
        scored=one_of(TEXTS),
    threads: 1
    resources:
        mem_mb=4000,
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/find_overlap.py"


rule score_ngrams:
    """Score a unigram and a 5-gram model of a text's training documents, in the vocabulary of a model."""
    input:
        documents=lambda w: DOCUMENTS_IN_PLACE[w.collection, "train"],
        lengths=lambda w: list(map(lengths_file, DOCUMENTS[w.collection, "train"])),
        texts=lambda w: [TEXT_FILES[w.collection]] if TEXT_FILES else [],
        pairs=lambda w: EVALUATED.pair_files_of(w.collection),
        # A preset folder is `ancient`: its fingerprint tells of a change.
        vocabulary=lambda w: [
            ancient(file) if file in EVALUATED.presets else file for file in EVALUATED.vocabularies[w.vocabulary]
        ],
        code=code_inputs("score_ngrams", "jax"),
    output:
        "results/evaluation/ngrams/{collection}/{vocabulary}.parquet",
    params:
        recipe=lambda w: {"pairs": EVALUATED.pairs_of(w.collection)},
    log:
        "logs/evaluation/ngrams-{collection}-{vocabulary}.log",
    wildcard_constraints:
        vocabulary=one_of(EVALUATED.vocabularies),
    threads: 1
    resources:
        mem_mb=8000,
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/score_ngrams.py"


if ASKED:

    rule score_mlm_tensorflow:
        """Score a masked language model that was trained with TensorFlow, by pseudo-log-likelihood."""
        input:
            **scored_on("mlm"),
            model=expand("results/mlm/{{run}}/model/{file}", file=MODEL_FILES),
            code=code_inputs("score_mlm_tensorflow", "tensorflow"),
        output:
            scores="results/evaluation/mlm/{run}/scores.json",
            by_item="results/evaluation/mlm/{run}/items.parquet",
        params:
            recipe=lambda w: EVALUATED.scoring(ASKED[w.run]),
        log:
            "logs/evaluation/mlm-{run}.log",
        wildcard_constraints:
            run=one_of(BACKENDS["tensorflow"]),
        threads: config["cpu_threads"]
        resources:
            **asks("mlm", "score_mlm_tensorflow"),
        conda:
            "../envs/tensorflow.yaml"
        script:
            "../scripts/score_mlm_tensorflow.py"

    rule score_mlm_jax:
        """Score a masked language model that was trained on JAX, by pseudo-log-likelihood."""
        input:
            **scored_on("mlm"),
            model=expand("results/mlm/{{run}}/model/{file}", file=MODEL_FILES),
            code=code_inputs("score_mlm_jax", "jax"),
        output:
            scores="results/evaluation/mlm/{run}/scores.json",
            by_item="results/evaluation/mlm/{run}/items.parquet",
        params:
            recipe=lambda w: EVALUATED.scoring(ASKED[w.run]),
        log:
            "logs/evaluation/mlm-{run}.log",
        wildcard_constraints:
            run=one_of(BACKENDS["jax"]),
        threads: config["cpu_threads"]
        resources:
            **asks("mlm", "score_mlm_jax"),
        conda:
            "../envs/jax.yaml"
        script:
            "../scripts/score_mlm_jax.py"


rule score_base:
    """Score a base model that was trained here."""
    input:
        **scored_on("base"),
        base=ancient("results/base/{name}"),
        fingerprint="results/base/{name}.json",
        code=code_inputs("score_base", "jax"),
    output:
        scores="results/evaluation/base-training/{name}/scores.json",
        by_item="results/evaluation/base-training/{name}/items.parquet",
    params:
        recipe=lambda w: EVALUATED.scoring(TRAINED_BASES[w.name]),
    log:
        "logs/evaluation/base-{name}.log",
    wildcard_constraints:
        name=one_of(TRAINED_BASES),
    threads: config["cpu_threads"]
    resources:
        **asks("base", "score_base"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/score_base.py"


rule score_finetune:
    """Score a finetuned model, beside its base model."""
    input:
        **scored_on("finetune"),
        base=base_of,
        fingerprint=fingerprint_of,
        best=lambda w: FINETUNE[w.run].best,
        code=code_inputs("score_finetune", "jax"),
    output:
        scores="results/evaluation/finetune/{run}/scores.json",
        by_item="results/evaluation/finetune/{run}/items.parquet",
    params:
        recipe=lambda w: EVALUATED.scoring(FINETUNE[w.run]),
    log:
        "logs/evaluation/finetune-{run}.log",
    wildcard_constraints:
        run=one_of(FINETUNE),
    threads: config["cpu_threads"]
    resources:
        **asks("finetune", "score_finetune"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/score_finetune.py"
