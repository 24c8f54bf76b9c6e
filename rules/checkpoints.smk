"""Scores of checkpoints, and what they say when asked: made as of finished models, from the weights at a step."""

from tpulm.config.evaluation_names import EXPORTED
from tpulm.config.runs import LOSS
from tpulm.config.selection import selecting
from tpulm.workflow.checkpoint_files import asked_at, exported_at
from tpulm.workflow.harness import opening_of_base

AT_STEPS = or_exit(
    CheckpointFiles,
    "evaluation.checkpoints",
    config["evaluation"]["checkpoints"],
    {chain: run for chain, run in RUN_FOLDERS.items() if chain in EVALUATED.models},
    located,
)
# What is asked of each stage's models.
PROMPTS = {"mlm": config["prompts"]["fill_mask"]} | dict.fromkeys(("base", "finetune"), config["prompts"]["generate"])
SAMPLED = or_exit(
    CheckpointFiles,
    "prompts.checkpoints",
    config["prompts"]["checkpoints"],
    {chain: run for chain, run in RUN_FOLDERS.items() if PROMPTS[run.stage]},
    located,
)
SAMPLES = [file for chain in SAMPLED.chains for file in SAMPLED.files(chain)]
SCORES += [file for chain in AT_STEPS.chains for file in AT_STEPS.files(chain)]
# Everything that a checkpoint's weights are read for, and thinning waits for.
OF_STEPS = [AT_STEPS, SAMPLED, *TASK_STEPS.values(), *HARNESS_STEPS.values()]
# What the report draws of each run.
SCORED_STEPS = {
    chain: [file for kind in OF_STEPS if kind is not SAMPLED and chain in kind.chains for file in kind.files(chain)]
    for chain in RUN_FOLDERS
}
if workflow.is_main_process:
    for text in filter(None, [kind.note(chain) for kind in OF_STEPS for chain in kind.chains]):
        say(text)


if MLM:

    use rule export_mlm as export_mlm_at_step with:
        input:
            manifest=lambda w: RECORD_SETS["tfrecords"].manifest,
            tokenizer=lambda w: list(TOKENIZER.values()),
            init=lambda w: MLM[w.run].init_files[:1],
            best=lambda w: MLM[w.run].checkpoint(int(w.step))["weights"],
            code=code_inputs("export_mlm", "data"),
        output:
            [temp(f"{EXPORTED}/mlm/{{run}}/{{step}}/{file}") for file in MODEL_FILES],
        log:
            "logs/evaluation/mlm/{run}/{step}-export.log",
        wildcard_constraints:
            run=one_of(MLM),
            step=exported_at(OF_STEPS, "mlm"),

    use rule score_mlm_tensorflow as score_mlm_tensorflow_at_step with:
        input:
            **scored_on("mlm"),
            model=expand(f"{EXPORTED}/mlm/{{{{run}}}}/{{{{step}}}}/{{file}}", file=MODEL_FILES),
            code=code_inputs("score_mlm_tensorflow", "tensorflow"),
        output:
            scores="results/evaluation/mlm/{run}/{step}/scores.json",
            by_item="results/evaluation/mlm/{run}/{step}/items.parquet",
        params:
            recipe=lambda w: EVALUATED.scoring(ASKED[w.run]) | {"step": int(w.step)},
        log:
            "logs/evaluation/mlm/{run}/{step}.log",
        wildcard_constraints:
            run=one_of(name for name in BACKENDS["tensorflow"] if name in MLM),
            step=AT_STEPS.constraint("mlm"),

    use rule score_mlm_jax as score_mlm_jax_at_step with:
        input:
            **scored_on("mlm"),
            model=expand(f"{EXPORTED}/mlm/{{{{run}}}}/{{{{step}}}}/{{file}}", file=MODEL_FILES),
            code=code_inputs("score_mlm_jax", "jax"),
        output:
            scores="results/evaluation/mlm/{run}/{step}/scores.json",
            by_item="results/evaluation/mlm/{run}/{step}/items.parquet",
        params:
            recipe=lambda w: EVALUATED.scoring(ASKED[w.run]) | {"step": int(w.step)},
        log:
            "logs/evaluation/mlm/{run}/{step}.log",
        wildcard_constraints:
            run=one_of(name for name in BACKENDS["jax"] if name in MLM),
            step=AT_STEPS.constraint("mlm"),

    use rule fill_mask_tensorflow as fill_mask_tensorflow_at_step with:
        input:
            model=expand(f"{EXPORTED}/mlm/{{{{run}}}}/{{{{step}}}}/{{file}}", file=MODEL_FILES),
            code=code_inputs("fill_mask_tensorflow", "tensorflow"),
        output:
            "results/samples/mlm/{run}/{step}.json",
        log:
            "logs/samples/mlm/{run}/{step}.log",
        wildcard_constraints:
            run=one_of(name for name in BACKENDS["tensorflow"] if name in MLM),
            step=SAMPLED.constraint("mlm"),

    use rule fill_mask_jax as fill_mask_jax_at_step with:
        input:
            model=expand(f"{EXPORTED}/mlm/{{{{run}}}}/{{{{step}}}}/{{file}}", file=MODEL_FILES),
            code=code_inputs("fill_mask_jax", "jax"),
        output:
            "results/samples/mlm/{run}/{step}.json",
        log:
            "logs/samples/mlm/{run}/{step}.log",
        wildcard_constraints:
            run=one_of(name for name in BACKENDS["jax"] if name in MLM),
            step=SAMPLED.constraint("mlm"),


use rule export_base as export_base_at_step with:
    input:
        best=lambda w: TRAINED_BASES[w.name].checkpoint(int(w.step))["weights"],
        vocabulary="results/base-training/{name}/vocabulary.spm",
        code=code_inputs("export_base", "jax"),
    output:
        folder=temp(directory(f"{EXPORTED}/base-training/{{name}}/{{step}}/preset")),
        fingerprint=temp(f"{EXPORTED}/base-training/{{name}}/{{step}}/fingerprint.json"),
    log:
        "logs/evaluation/base-training/{name}/{step}-export.log",
    wildcard_constraints:
        name=one_of(TRAINED_BASES),
        step=exported_at(OF_STEPS, "base-training"),


use rule score_base as score_base_at_step with:
    input:
        **scored_on("base"),
        base=f"{EXPORTED}/base-training/{{name}}/{{step}}/preset",
        fingerprint=f"{EXPORTED}/base-training/{{name}}/{{step}}/fingerprint.json",
        code=code_inputs("score_base", "jax"),
    output:
        scores="results/evaluation/base-training/{name}/{step}/scores.json",
        by_item="results/evaluation/base-training/{name}/{step}/items.parquet",
    params:
        recipe=lambda w: EVALUATED.scoring(TRAINED_BASES[w.name]) | {"step": int(w.step)},
    log:
        "logs/evaluation/base-training/{name}/{step}.log",
    wildcard_constraints:
        name=one_of(TRAINED_BASES),
        step=AT_STEPS.constraint("base-training"),


use rule score_finetune as score_finetune_at_step with:
    input:
        **scored_on("finetune"),
        base=base_of,
        fingerprint=fingerprint_of,
        best=lambda w: FINETUNE[w.run].checkpoint(int(w.step))["weights"],
        code=code_inputs("score_finetune", "jax"),
    output:
        scores="results/evaluation/finetune/{run}/{step}/scores.json",
        by_item="results/evaluation/finetune/{run}/{step}/items.parquet",
    params:
        recipe=lambda w: EVALUATED.scoring(FINETUNE[w.run]) | {"step": int(w.step)},
    log:
        "logs/evaluation/finetune/{run}/{step}.log",
    wildcard_constraints:
        run=one_of(FINETUNE),
        step=AT_STEPS.constraint("finetune"),


use rule run_harness as run_harness_at_step with:
    input:
        base=base_of,
        fingerprint=fingerprint_of,
        best=lambda w: FINETUNE[w.run].checkpoint(int(w.step))["weights"],
        task=lambda w: local_files(HARNESS_FILES[w.task]),
        data=lambda w: HARNESS_DATA[w.task],
        overlaps=lambda w: expand(HARNESS_OVERLAP, task=w.task, collection=EVALUATED.trained_on(FINETUNE[w.run])),
        code=code_inputs("run_harness", "harness"),
    output:
        scores="results/evaluation/harness/{task}/finetune/{run}/{step}/scores.json",
        by_item="results/evaluation/harness/{task}/finetune/{run}/{step}/items.parquet",
    params:
        recipe=lambda w: FINETUNE[w.run].opening() | HARNESS[w.task].asked | {"step": int(w.step)},
    log:
        "logs/evaluation/harness/{task}/finetune/{run}/{step}.log",
    wildcard_constraints:
        task=one_of(HARNESS),
        run=one_of(FINETUNE),
        step=asked_at(HARNESS_STEPS.values(), "finetune"),


use rule run_harness_of_base as run_harness_of_base_at_step with:
    input:
        base=f"{EXPORTED}/base-training/{{name}}/{{step}}/preset",
        fingerprint=f"{EXPORTED}/base-training/{{name}}/{{step}}/fingerprint.json",
        best=[],
        task=lambda w: local_files(HARNESS_FILES[w.task]),
        data=lambda w: HARNESS_DATA[w.task],
        overlaps=lambda w: expand(HARNESS_OVERLAP, task=w.task, collection=EVALUATED.trained_on(TRAINED_BASES[w.name])),
        code=code_inputs("run_harness", "harness"),
    output:
        scores="results/evaluation/harness/{task}/base-training/{name}/{step}/scores.json",
        by_item="results/evaluation/harness/{task}/base-training/{name}/{step}/items.parquet",
    params:
        recipe=lambda w: opening_of_base(config, BASES_BY_HARNESS[w.name])
        | HARNESS[w.task].asked
        | {"step": int(w.step)},
    log:
        "logs/evaluation/harness/{task}/base-training/{name}/{step}.log",
    wildcard_constraints:
        task=one_of(HARNESS),
        name=one_of(TRAINED_BASES if HARNESS else []),
        step=asked_at(HARNESS_STEPS.values(), "base-training"),


# To be finetuned on tasks.
use rule export_merged as export_merged_at_step with:
    input:
        base=base_of,
        fingerprint=fingerprint_of,
        best=lambda w: FINETUNE[w.run].checkpoint(int(w.step))["weights"],
        code=code_inputs("export_merged", "jax"),
    output:
        temp(directory(f"{EXPORTED}/finetune/{{run}}/{{step}}/model")),
    log:
        "logs/evaluation/finetune/{run}/{step}-export.log",
    wildcard_constraints:
        run=one_of(LORA_RUNS),
        step=exported_at(OF_STEPS, "finetune"),


use rule export_full as export_full_at_step with:
    input:
        base=base_of,
        fingerprint=fingerprint_of,
        best=lambda w: FINETUNE[w.run].checkpoint(int(w.step))["weights"],
        code=code_inputs("export_full", "jax"),
    output:
        temp(directory(f"{EXPORTED}/finetune/{{run}}/{{step}}/model")),
    log:
        "logs/evaluation/finetune/{run}/{step}-export.log",
    wildcard_constraints:
        run=one_of(FULL_RUNS),
        step=exported_at(OF_STEPS, "finetune"),


rule sample_checkpoint:
    """Generate from the prompts with the weights of a checkpoint, with the random numbers of `generate`."""
    input:
        base=base_of,
        fingerprint=fingerprint_of,
        best=lambda w: FINETUNE[w.run].checkpoint(int(w.step))["weights"],
        code=code_inputs("sample_checkpoint", "jax"),
    output:
        "results/samples/finetune/{run}/{step}.json",
    params:
        recipe=lambda w: FINETUNE[w.run].opening()
        | {"prompts": config["prompts"]["generate"], "sampling": sampling_of(config)},
    log:
        "logs/samples/finetune/{run}/{step}.log",
    wildcard_constraints:
        run=one_of(FINETUNE),
        step=SAMPLED.constraint("finetune"),
    threads: config["cpu_threads"]
    resources:
        **asks("finetune", "generate"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/sample_checkpoint.py"


use rule sample_checkpoint as sample_checkpoint_of_base with:
    input:
        base=f"{EXPORTED}/base-training/{{name}}/{{step}}/preset",
        fingerprint=f"{EXPORTED}/base-training/{{name}}/{{step}}/fingerprint.json",
        best=[],
        code=code_inputs("sample_checkpoint", "jax"),
    output:
        "results/samples/base-training/{name}/{step}.json",
    params:
        recipe=lambda w: opening_of_base(config, TRAINED_BASES[w.name])
        | {"prompts": config["prompts"]["generate"], "sampling": sampling_of(config)},
    log:
        "logs/samples/base-training/{name}/{step}.log",
    wildcard_constraints:
        name=one_of(TRAINED_BASES),
        step=SAMPLED.constraint("base-training"),
    resources:
        **asks("base", "evaluate_base"),


rule select_checkpoint:
    """Select the checkpoint of a run that scores best."""
    input:
        scores=lambda w: AT_STEPS.files(w.chain),
        states=lambda w: RUN_FOLDERS[w.chain].in_every_checkpoint("state.json"),
        weights=lambda w: RUN_FOLDERS[w.chain].in_every_checkpoint("weights.safetensors"),
        code=code_inputs("select_checkpoint", "data"),
    output:
        weights="results/{chain}/selected.safetensors",
        state="results/{chain}/selected.json",
    params:
        recipe=lambda w: selecting(RUN_FOLDERS[w.chain]),
    log:
        "logs/{chain}/select.log",
    wildcard_constraints:
        chain=one_of(RUN_FOLDERS if config["evaluation"]["select_by"] != LOSS else []),
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/select_checkpoint.py"


rule plot_checkpoints:
    """Plot the scores of a run's checkpoints against the tokens that it has seen."""
    input:
        scores=lambda w: SCORED_STEPS[w.chain],
        code=code_inputs("plot_checkpoints", "workflow"),
    output:
        report(
            "results/figures/checkpoints/{chain}.svg",
            caption="../report/checkpoints.rst",
            category="2. Checkpoints",
            labels={"stage": "{chain}", "run": "all", "shows": "scores of checkpoints"},
        ),
    params:
        recipe=lambda w: {"tokens_per_step": RUN_FOLDERS[w.chain].tokens_per_step},
    log:
        "logs/figures/checkpoints-{chain}.log",
    wildcard_constraints:
        chain=one_of(SCORED_STEPS),
    threads: 1
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/plot_checkpoints.py"
