"""What the scores say: one table of all models, and which differences between them are real."""

from tpulm.config.comparisons import Comparisons, comparisons
from tpulm.config.runs import Run

# Base models that were fetched are scored by the harness only.
FETCHED_AND_SCORED = [Run("base", name, config) for name in FETCHED_BASES if HARNESS]
COMPARED = Comparisons(or_exit(comparisons, config, [*EVALUATED.models.values(), *FETCHED_AND_SCORED]), SCORES)


rule tabulate_scores:
    """Tabulate how good every model is: score, baseline, chance, interval."""
    input:
        scores=lambda w: COMPARED.all_scores,
        code=code_inputs("tabulate_scores", "workflow"),
    output:
        report(
            "results/figures/how_good.html",
            caption="../report/how_good.rst",
            category="2. Held-out figures",
            labels={"stage": "all", "run": "all", "shows": "how good"},
        ),
    params:
        recipe={"bases": {f"finetune/{name}": f"base-training/{run.recipe['base']}" for name, run in FINETUNE.items()}},
    log:
        "logs/figures/how_good.log",
    threads: 1
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/tabulate_scores.py"


rule compare_models:
    """Test which differences between models are real, over items and over seeds."""
    input:
        scores=lambda w: COMPARED.inputs("scores.json"),
        by_item=lambda w: COMPARED.inputs("items.parquet"),
        code=code_inputs("compare_models", "data"),
    output:
        csv="results/compare/models.csv",
        table="results/compare/models.md",
    params:
        recipe=lambda w: {"models": COMPARED.models, "pairs": COMPARED.pairs},
    log:
        "logs/compare/models.log",
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/compare_models.py"
