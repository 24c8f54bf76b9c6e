"""What the scores say: which differences between models are real."""

from tpulm.config.comparisons import Comparisons, comparisons
from tpulm.config.runs import Run

# Base models that were fetched are scored by the harness only.
FETCHED_AND_SCORED = [Run("base", name, config) for name in FETCHED_BASES if HARNESS]
COMPARED = Comparisons(or_exit(comparisons, config, [*EVALUATED.models.values(), *FETCHED_AND_SCORED]), SCORES)


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
