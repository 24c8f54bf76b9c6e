"""The tokenizer, trained on the corpus or an existing one, and its evaluation on held-out text beside other ones."""

TOKENIZER = {name: f"<results>/tokenizer/{file}" for name, file in TOKENIZER_FILES.items()}
# Files of a tokenizer folder. Model weights in the same folder are not read.
TOKENIZER_SOURCES = [
    "added_tokens.json", "chat_template.jinja", "config.json", "merges.txt", "sentencepiece.bpe.model",
    "special_tokens_map.json", "spiece.model", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
    "vocab.json", "vocab.txt",
]  # fmt: skip
# Tokenizers that the config only compares with its own, and all that are fetched, by their folder below results/, which
# is the wildcard `tokenizer`: what the config says of each, and where.
COMPARED_TOKENIZERS = {
    f"tokenizer/compared/{name}": (recipe, f"tokenizer.compare_with.{name}.pretrained")
    for name, recipe in config["tokenizer"]["compare_with"].items()
}
FETCHED_TOKENIZERS = COMPARED_TOKENIZERS | (
    {"tokenizer": (config["tokenizer"], "tokenizer.pretrained")} if "pretrained" in config["tokenizer"] else {}
)
TOKENIZER_FIGURES = [
    f"<results>/{folder}/{file}"
    for folder in ("tokenizer", *COMPARED_TOKENIZERS)
    for file in ("metrics.json", "pieces.json")
]


rule tokenizer:
    """Target: the tokenizer and its metrics."""
    localrule: True
    input:
        TOKENIZER.values(),
        TOKENIZER_FIGURES,


rule fetch_tokenizer:
    """Fetch an existing tokenizer from a local folder or from the Hugging Face Hub."""
    input:
        files=lambda w: local_files(
            Path(FETCHED_TOKENIZERS[w.tokenizer][0]["pretrained"]) / name for name in TOKENIZER_SOURCES
        ),
    output:
        **{name: f"<results>/{{tokenizer}}/{file}" for name, file in TOKENIZER_FILES.items()},
    params:
        recipe=lambda w: {key: FETCHED_TOKENIZERS[w.tokenizer][0].get(key) for key in ("pretrained", "revision")},
        where=lambda w: FETCHED_TOKENIZERS[w.tokenizer][1],
        trains=lambda w: w.tokenizer not in COMPARED_TOKENIZERS,
        code=code_digest("tokenizer/fetch_tokenizer", "data"),
    log:
        "<logs>/{tokenizer}/fetch.log",
    wildcard_constraints:
        tokenizer=one_of(FETCHED_TOKENIZERS),
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/tokenizer/fetch_tokenizer.py"


if "pretrained" not in config["tokenizer"]:

    rule train_tokenizer:
        """Train a tokenizer on the training split."""
        input:
            corpus=DOCUMENTS_IN_PLACE["corpus", "train"],
            lengths=LENGTHS_IN_PLACE["corpus", "train"],
        output:
            **TOKENIZER,
            training="<results>/tokenizer/training.json",
        params:
            recipe={key: value for key, value in config["tokenizer"].items() if key not in ("train_on", "compare_with")},
            train_on=config["tokenizer"]["train_on"],
            code=code_digest("tokenizer/train_tokenizer", "data"),
        log:
            "<logs>/train_tokenizer.log",
        threads: tokenizer_threads(TEXTS["corpus"].recipe, PARTS["corpus"])
        resources:
            mem_mb=4000,  # does not depend on the size of the corpus
            disk_mb=4000,
        conda:
            "../envs/data.yaml"
        script:
            "../scripts/tokenizer/train_tokenizer.py"


rule evaluate_tokenizer:
    """Evaluate a tokenizer on the validation split."""
    input:
        corpus=DOCUMENTS_IN_PLACE["corpus", "validation"],
        lengths=LENGTHS_IN_PLACE["corpus", "validation"],
        tokenizer="<results>/{tokenizer}/tokenizer.json",
        special_tokens_map="<results>/{tokenizer}/special_tokens_map.json",
        training=lambda w: [] if w.tokenizer in FETCHED_TOKENIZERS else ["<results>/tokenizer/training.json"],
        # How many documents are of which source.
        record=["<results>/corpus/corpus.json"] if "sources" in config["corpus"] else [],
    output:
        metrics="<results>/{tokenizer}/metrics.json",
        pieces="<results>/{tokenizer}/pieces.json",
    params:
        code=code_digest("tokenizer/evaluate_tokenizer", "data"),
    log:
        "<logs>/{tokenizer}/evaluate.log",
    wildcard_constraints:
        tokenizer=one_of({"tokenizer"} | set(COMPARED_TOKENIZERS)),
    resources:
        mem_mb=4000,  # does not depend on the size of the corpus
        disk_mb=4000,
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/tokenizer/evaluate_tokenizer.py"
