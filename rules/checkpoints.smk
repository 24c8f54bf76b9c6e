"""Checkpoints as models: export for evaluation, selection of the best one, and plots of the scores."""

from tpulm.specs.artifacts import EXPORTED
from tpulm.config.runs import LOSS
from tpulm.config.evaluations import selecting

# What reads the weights of checkpoints. Pruning waits for it.
OF_STEPS = [AT_STEPS, SAMPLED, *TASK_STEPS.values(), *HARNESS_STEPS.values()]
# The scores of each run that the report plots.
SCORED_STEPS = {
    chain: [file for kind in OF_STEPS if kind is not SAMPLED and chain in kind.chains for file in kind.files(chain)]
    for chain in RUN_FOLDERS
}
if workflow.is_main_process:
    for text in filter(None, [kind.note(chain) for kind in OF_STEPS for chain in kind.chains]):
        say(text)


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


rule select_checkpoint:
    """Select the checkpoint of a run with the best score."""
    input:
        scores=lambda w: AT_STEPS.files(w.chain),
        states=lambda w: RUN_FOLDERS[w.chain].in_every_checkpoint("state.json"),
        weights=lambda w: RUN_FOLDERS[w.chain].in_every_checkpoint("weights.safetensors"),
        code=code_inputs("checkpoints/select_checkpoint", "data"),
    output:
        weights="<results>/{chain}/selected.safetensors",
        state="<results>/{chain}/selected.json",
    params:
        recipe=lambda w: selecting(RUN_FOLDERS[w.chain]),
    log:
        "<logs>/{chain}/select.log",
    wildcard_constraints:
        chain=one_of(RUN_FOLDERS if config["evaluation"]["select_by"] != LOSS else []),
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/checkpoints/select_checkpoint.py"


rule plot_checkpoints:
    """Plot the scores of a run's checkpoints against the number of training tokens."""
    input:
        scores=lambda w: SCORED_STEPS[w.chain],
        code=code_inputs("checkpoints/plot_checkpoints", "workflow"),
    output:
        report(
            "<results>/figures/checkpoints/{chain}.svg",
            caption="../report/checkpoints.rst",
            category="2. Checkpoints",
            labels={"stage": "{chain}", "run": "all", "shows": "scores of checkpoints"},
        ),
    params:
        recipe=lambda w: {"tokens_per_step": RUN_FOLDERS[w.chain].tokens_per_step},
    log:
        "<logs>/figures/checkpoints-{chain}.log",
    wildcard_constraints:
        chain=one_of(SCORED_STEPS),
    threads: 1
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/checkpoints/plot_checkpoints.py"
