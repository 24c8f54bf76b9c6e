"""Checkpoints as models: export for evaluation, and plots of the scores."""

from tpulm.specs.artifacts import EXPORTED, resolved

# The scores of each run that the report plots.
SCORED_STEPS = {path: [file for scores in EVALUATED.all.values() for file in scores.of_steps(path)] for path in RUNS}
if workflow.is_main_process:
    for text in (text for scores in EVALUATED.all.values() for text in scores.notes):
        say(resolved(text))


# The rules that export models, with the wildcard `step`. Separate rules, because the outputs are `temp`.
if MLM:

    use rule export_mlm as export_mlm_at_step with:
        output:
            [temp(f"{EXPORTED}/mlm/{{run}}/{{step}}/model/{file}") for file in MODEL_FILES],
        log:
            "<logs>/evaluation/mlm/{run}/{step}-export.log",


use rule export_base as export_base_at_step with:
    output:
        folder=temp(directory(f"{EXPORTED}/base/{{run}}/{{step}}/preset")),
        fingerprint=temp(f"{EXPORTED}/base/{{run}}/{{step}}/preset.json"),
    log:
        "<logs>/evaluation/base/{run}/{step}-export.log",


rule plot_checkpoints:
    """Plot the scores of a run's checkpoints against the number of training tokens."""
    input:
        scores=lambda w: SCORED_STEPS[w.chain],
    output:
        report(
            "<results>/figures/checkpoints/{chain}.svg",
            caption="../report/checkpoints.rst",
            category="2. Checkpoints",
            labels={"stage": "{chain}", "run": "all", "shows": "scores of checkpoints"},
        ),
    params:
        recipe=lambda w: {"tokens_per_step": RUNS[w.chain].tokens_per_step}
        | ({"tokens": RUNS[w.chain].tokens_at} if "phases" in RUNS[w.chain].recipe else {}),
        code=code_digest("checkpoints/plot_checkpoints", "workflow"),
    log:
        "<logs>/figures/checkpoints-{chain}.log",
    wildcard_constraints:
        chain=one_of(SCORED_STEPS),
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/checkpoints/plot_checkpoints.py"
