"""What the report shows: curves, tables, samples."""

FIGURES = "results/figures"
STAGE_CHAINS = {(stage, run): chain for stage, run, chain, _ in TRAINED}


rule figures:
    """Everything that the report shows."""
    localrule: True
    input:
        f"{FIGURES}/corpus.html",
        f"{FIGURES}/metrics.html",
        [f"{FIGURES}/shards.svg"] if "tfrecords" in config else [],
        [f"{FIGURES}/fill_mask.html"] if MLM and config["prompts"]["fill_mask"] else [],
        [f"{FIGURES}/timings.html"] if CHAINS else [],
        [f"{FIGURES}/training/{stage}-{run}.svg" for stage, run in STAGE_CHAINS],
        expand(f"{FIGURES}/generations/{{run}}.html", run=LORA if config["prompts"]["generate"] else []),
        expand(f"{FIGURES}/partitioning/{{run}}.html", run=LORA),


rule collect_history:
    """Join the histories of a run's segments."""
    input:
        history=lambda w: segment_files(f"results/{w.chain}", CHAINS[f"results/{w.chain}"], "history.csv"),
        timings=lambda w: segment_files(f"results/{w.chain}", CHAINS[f"results/{w.chain}"], "timings.csv"),
        library=library("collect_history", "report"),
    output:
        history="results/{chain}/history.csv",
        timings="results/{chain}/timings.csv",
    log:
        "logs/{chain}/history.log",
    wildcard_constraints:
        chain=one_of(chain.removeprefix("results/") for chain in CHAINS),
    threads: 1
    conda:
        "../envs/report.yaml"
    script:
        "../scripts/collect_history.py"


rule plot_training:
    """Draw a run's loss and learning rate."""
    input:
        history=lambda w: f"{STAGE_CHAINS[w.stage, w.run]}/history.csv",
        states=lambda w: segment_files(STAGE_CHAINS[w.stage, w.run], CHAINS[STAGE_CHAINS[w.stage, w.run]], "state.json"),
        library=library("plot_training", "report"),
    output:
        report(
            f"{FIGURES}/training/{{stage}}-{{run}}.svg",
            caption="../report/training.rst",
            category="1. Training",
            labels={"stage": "{stage}", "run": "{run}", "shows": "loss and learning rate"},
        ),
    log:
        "logs/figures/training-{stage}-{run}.log",
    wildcard_constraints:
        stage="mlm|base|lora",
    threads: 1
    conda:
        "../envs/report.yaml"
    script:
        "../scripts/plot_training.py"


rule tabulate_metrics:
    """Compare all runs on held-out text."""
    input:
        mlm=expand("results/mlm/{run}/metrics.json", run=MLM),
        base=expand("results/base-training/{name}/metrics.json", name=TRAINED_BASES),
        lora=expand("results/lora/{run}/metrics.json", run=LORA),
        library=library("tabulate_metrics", "report"),
    output:
        report(
            f"{FIGURES}/metrics.html",
            caption="../report/metrics.rst",
            category="2. Held-out figures",
            labels={"stage": "all", "run": "all", "shows": "losses, accuracies, parameters"},
        ),
    log:
        "logs/figures/metrics.log",
    threads: 1
    conda:
        "../envs/report.yaml"
    script:
        "../scripts/tabulate_metrics.py"


rule tabulate_predictions:
    """Show what the masked language models put in the place of the mask."""
    input:
        predictions=expand("results/mlm/{run}/fill_mask.json", run=MLM),
        library=library("tabulate_predictions", "report"),
    output:
        report(
            f"{FIGURES}/fill_mask.html",
            caption="../report/fill_mask.rst",
            category="3. Samples",
            labels={"stage": "mlm", "run": "all", "shows": "fill-mask"},
        ),
    log:
        "logs/figures/fill_mask.log",
    threads: 1
    conda:
        "../envs/report.yaml"
    script:
        "../scripts/tabulate_predictions.py"


rule tabulate_generations:
    """Show a tuned model's samples beside those of its base."""
    input:
        "results/lora/{run}/generations.json",
        library=library("tabulate_generations", "report"),
    output:
        report(
            f"{FIGURES}/generations/{{run}}.html",
            caption="../report/generations.rst",
            category="3. Samples",
            labels={"stage": "lora", "run": "{run}", "shows": "generations before and after"},
        ),
    log:
        "logs/figures/generations-{run}.log",
    threads: 1
    conda:
        "../envs/report.yaml"
    script:
        "../scripts/tabulate_generations.py"


rule tabulate_partitioning:
    """Show how a tuned model's variables lie on the devices."""
    input:
        "results/lora/{run}/partitioning.json",
        library=library("tabulate_partitioning", "report"),
    output:
        report(
            f"{FIGURES}/partitioning/{{run}}.html",
            caption="../report/partitioning.rst",
            category="4. Partitioning",
            labels={"stage": "lora", "run": "{run}", "shows": "variables on the mesh"},
        ),
    log:
        "logs/figures/partitioning-{run}.log",
    threads: 1
    conda:
        "../envs/report.yaml"
    script:
        "../scripts/tabulate_partitioning.py"


rule tabulate_corpus:
    """Say what text was read, and how the tokenizer cuts it."""
    input:
        corpora=expand("results/{collection}/corpus.json", collection=COLLECTIONS),
        tokenizer=["results/tokenizer/metrics.json"] if "tokenizer" in config else [],
        library=library("tabulate_corpus", "report"),
    output:
        report(
            f"{FIGURES}/corpus.html",
            caption="../report/corpus.rst",
            category="5. Data",
            labels={"stage": "corpus", "run": "all", "shows": "text and tokenizer"},
        ),
    log:
        "logs/figures/corpus.log",
    threads: 1
    conda:
        "../envs/report.yaml"
    script:
        "../scripts/tabulate_corpus.py"


rule plot_shards:
    """Draw how evenly the records are spread over the shards."""
    input:
        manifest="results/tfrecords/manifest.json",
        library=library("plot_shards", "report"),
    output:
        report(
            f"{FIGURES}/shards.svg",
            caption="../report/shards.rst",
            category="5. Data",
            labels={"stage": "tfrecords", "run": "all", "shows": "shard balance"},
        ),
    log:
        "logs/figures/shards.log",
    threads: 1
    conda:
        "../envs/report.yaml"
    script:
        "../scripts/plot_shards.py"


rule tabulate_timings:
    """Say how fast each run trained."""
    input:
        timings=[f"{chain}/timings.csv" for chain in CHAINS],
        library=library("tabulate_timings", "report"),
    output:
        report(
            f"{FIGURES}/timings.html",
            caption="../report/timings.rst",
            category="6. Speed",
            labels={"stage": "all", "run": "all", "shows": "seconds per step"},
        ),
    log:
        "logs/figures/timings.log",
    threads: 1
    conda:
        "../envs/report.yaml"
    script:
        "../scripts/tabulate_timings.py"
