"""Evaluation of every model on held-out text (bits per byte) and on sentence pairs, with n-gram models as baselines."""

from tpulm.specs.artifacts import HELD_OUT
from tpulm.config.evaluations import overlap
from tpulm.corpus.sources import pair_sources

PAIRS = config["evaluation"]["pairs"]["sets"]
# The files that sets of pairs are read from.
PAIR_SOURCES = {name: or_exit(pair_sources, name, recipe) for name, recipe in PAIRS.items()}
# Every model that is evaluated on text and pairs, by its path below results/, which is the wildcard `model`: mlm/tiny
# for the exported model of a run, or mlm/tiny/00000750 for a checkpoint.
SCORED = EVALUATED.of_text.models


rule evaluation:
    """Target: the scores of every model."""
    localrule: True
    input:
        EVALUATED.files,


rule sample_texts:
    """Sample the held-out documents that models are evaluated on."""
    input:
        documents=lambda w: [file for split in HELD_OUT for file in DOCUMENTS_IN_PLACE[w.collection, split]],
        lengths=lambda w: [file for split in HELD_OUT for file in LENGTHS_IN_PLACE[w.collection, split]],
    output:
        "<results>/evaluation/texts/{collection}.parquet",
    params:
        recipe=lambda w: EVALUATED.sampling_of(w.collection)
        | {"files": {split: len(DOCUMENTS[w.collection, split]) for split in HELD_OUT}},
        code=code_digest("evaluation/sample_texts", "data"),
    log:
        "<logs>/evaluation/texts-{collection}.log",
    resources:
        mem_mb=4000,
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/evaluation/sample_texts.py"


rule fetch_pairs:
    """Read a set of sentence pairs from files or from the Hugging Face Hub."""
    input:
        files=lambda w: list(map(PATHS.text, PAIR_SOURCES[w.pairs])),
    output:
        "<results>/evaluation/pairs/sets/{pairs}.parquet",
    params:
        recipe=lambda w: PAIRS[w.pairs],
        code=code_digest("evaluation/fetch_pairs", "data"),
    log:
        "<logs>/evaluation/pairs-{pairs}.log",
    wildcard_constraints:
        pairs=one_of(PAIRS),
    resources:
        mem_mb=4000,
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/evaluation/fetch_pairs.py"


rule score_ngrams:
    """Train and evaluate a unigram and a 5-gram model on the training split, with the vocabulary of a model."""
    input:
        documents=lambda w: DOCUMENTS_IN_PLACE[w.collection, "train"],
        lengths=lambda w: LENGTHS_IN_PLACE[w.collection, "train"],
        material=lambda w: EVALUATED.material_of(w.collection),
        vocabulary=lambda w: EVALUATED.vocabularies[w.vocabulary],
    output:
        "<results>/evaluation/ngrams/{collection}/{vocabulary}.parquet",
    params:
        code=code_digest("evaluation/score_ngrams", "jax"),
    log:
        "<logs>/evaluation/ngrams-{collection}-{vocabulary}.log",
    wildcard_constraints:
        vocabulary=one_of(EVALUATED.vocabularies),
    resources:
        mem_mb=8000,
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/evaluation/score_ngrams.py"


rule score_mlm:
    """Evaluate a masked language model on text and sentence pairs, by pseudo-log-likelihood."""
    input:
        **EVALUATED.scored_on(),
        model=lambda w: SCORED[w.model].files,
    output:
        scores="<results>/evaluation/{model}/scores.json",
        by_item="<results>/evaluation/{model}/items.parquet",
    params:
        recipe=lambda w: EVALUATED.scoring(SCORED[w.model]),
        code=code_digest("evaluation/score_mlm", lambda w: SCORED[w.model].backend),
    log:
        "<logs>/evaluation/{model}.log",
    wildcard_constraints:
        model=one_of(path for path, model in SCORED.items() if model.stage == "mlm"),
    threads: config["cpu_threads"]
    resources:
        **job_resources(lambda w: SCORED[w.model], "score_mlm"),
    conda:
        lambda w: f"../envs/{SCORED[w.model].backend}.yaml"
    script:
        "../scripts/evaluation/score_mlm.py"


rule score_causal:
    """Evaluate a base model trained here, or a finetuned model and its base model, on text and sentence pairs."""
    input:
        **EVALUATED.scored_on(),
        **opening_inputs(lambda w: SCORED[w.model]),
        tokenizer=lambda w: SCORED[w.model].vocabulary.files,
    output:
        scores="<results>/evaluation/{model}/scores.json",
        by_item="<results>/evaluation/{model}/items.parquet",
    params:
        recipe=lambda w: EVALUATED.scoring(SCORED[w.model]),
        code=code_digest("evaluation/score_causal", "jax"),
    log:
        "<logs>/evaluation/{model}.log",
    wildcard_constraints:
        model=one_of(path for path, model in SCORED.items() if model.stage != "mlm"),
    threads: config["cpu_threads"]
    resources:
        **job_resources(lambda w: SCORED[w.model], "score_causal"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/evaluation/score_causal.py"
