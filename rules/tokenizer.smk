"""The tokenizer, trained on the corpus or an existing one, and its evaluation on held-out text."""

TOKENIZER = {name: f"<results>/tokenizer/{file}" for name, file in TOKENIZER_FILES.items()}
# Files of a tokenizer folder. Model weights in the same folder are not read.
TOKENIZER_SOURCES = [
    "added_tokens.json", "chat_template.jinja", "config.json", "merges.txt", "sentencepiece.bpe.model",
    "special_tokens_map.json", "spiece.model", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
    "vocab.json", "vocab.txt",
]  # fmt: skip


rule tokenizer:
    """Target: the tokenizer and its metrics."""
    localrule: True
    input:
        TOKENIZER.values(),
        "<results>/tokenizer/metrics.json",


if "pretrained" in config["tokenizer"]:

    rule fetch_tokenizer:
        """Fetch an existing tokenizer from a local folder or from the Hugging Face Hub."""
        input:
            files=local_files(Path(config["tokenizer"]["pretrained"]) / name for name in TOKENIZER_SOURCES),
            code=code_inputs("tokenizer/fetch_tokenizer", "data"),
        output:
            **TOKENIZER,
        params:
            recipe={key: config["tokenizer"].get(key) for key in ("pretrained", "revision")},
        log:
            "<logs>/fetch_tokenizer.log",
        threads: 1
        conda:
            "../envs/data.yaml"
        script:
            "../scripts/tokenizer/fetch_tokenizer.py"

else:

    rule train_tokenizer:
        """Train a tokenizer on the training split."""
        input:
            corpus=DOCUMENTS_IN_PLACE["corpus", "train"],
            lengths=list(map(lengths_file, DOCUMENTS["corpus", "train"])),
            code=code_inputs("tokenizer/train_tokenizer", "data"),
        output:
            **TOKENIZER,
            training="<results>/tokenizer/training.json",
        params:
            recipe={key: value for key, value in config["tokenizer"].items() if key != "train_on"},
            train_on=config["tokenizer"]["train_on"],
        log:
            "<logs>/train_tokenizer.log",
        threads: tokenizer_threads(TEXTS["corpus"][1], PARTS["corpus"])
        resources:
            mem_mb=4000,  # does not depend on the size of the corpus
            disk_mb=4000,
        conda:
            "../envs/data.yaml"
        script:
            "../scripts/tokenizer/train_tokenizer.py"


rule evaluate_tokenizer:
    """Evaluate the tokenizer on the validation split."""
    input:
        corpus=DOCUMENTS_IN_PLACE["corpus", "validation"],
        lengths=list(map(lengths_file, DOCUMENTS["corpus", "validation"])),
        tokenizer=TOKENIZER["tokenizer"],
        special_tokens_map=TOKENIZER["special_tokens_map"],
        training=[] if "pretrained" in config["tokenizer"] else ["<results>/tokenizer/training.json"],
        code=code_inputs("tokenizer/evaluate_tokenizer", "data"),
    output:
        metrics="<results>/tokenizer/metrics.json",
        pieces="<results>/tokenizer/pieces.json",
    log:
        "<logs>/evaluate_tokenizer.log",
    threads: 1
    resources:
        mem_mb=4000,  # does not depend on the size of the corpus
        disk_mb=4000,
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/tokenizer/evaluate_tokenizer.py"
