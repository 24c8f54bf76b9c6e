"""The tokenizer: trained on the corpus, or one that exists; and how it cuts text that it has not seen."""

TOKENIZER = dict(
    tokenizer="results/tokenizer/tokenizer.json",
    config="results/tokenizer/tokenizer_config.json",
    special_tokens_map="results/tokenizer/special_tokens_map.json",
)
# What a tokenizer folder may hold; a model's weights beside them are not read.
TOKENIZER_SOURCES = [
    "added_tokens.json", "chat_template.jinja", "config.json", "merges.txt", "sentencepiece.bpe.model",
    "special_tokens_map.json", "spiece.model", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
    "vocab.json", "vocab.txt",
]  # fmt: skip


rule tokenizer:
    """The tokenizer and its figures."""
    localrule: True
    input:
        TOKENIZER.values(),
        "results/tokenizer/metrics.json",


if "pretrained" in config["tokenizer"]:

    rule fetch_tokenizer:
        """Take a tokenizer that exists, from a local folder or from the Hugging Face hub."""
        input:
            files=[
                local(str(file))
                for file in (Path(config["tokenizer"]["pretrained"]) / name for name in TOKENIZER_SOURCES)
                if file.is_file()
            ],
            library=library("fetch_tokenizer", "data"),
        output:
            **TOKENIZER,
        params:
            recipe=config["tokenizer"],
        log:
            "logs/fetch_tokenizer.log",
        threads: 1
        conda:
            "../envs/data.yaml"
        script:
            "../scripts/fetch_tokenizer.py"

else:

    rule train_tokenizer:
        """Train the Unigram tokenizer on the training split."""
        input:
            corpus="results/corpus/train.parquet",
            library=library("train_tokenizer", "data"),
        output:
            **TOKENIZER,
        params:
            recipe=pick(config["tokenizer"], "vocab_size"),
        log:
            "logs/train_tokenizer.log",
        threads: 2
        conda:
            "../envs/data.yaml"
        script:
            "../scripts/train_tokenizer.py"


rule evaluate_tokenizer:
    """Measure the tokenizer on the validation split."""
    input:
        corpus="results/corpus/validation.parquet",
        tokenizer=TOKENIZER["tokenizer"],
        special_tokens_map=TOKENIZER["special_tokens_map"],
        library=library("evaluate_tokenizer", "data"),
    output:
        "results/tokenizer/metrics.json",
    log:
        "logs/evaluate_tokenizer.log",
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/evaluate_tokenizer.py"
