"""Predictions and generated text of models and checkpoints; finetune.smk has `generate` for finetuned models."""

from tpulm.workflow.inputs import opening

# Prompts for the models of each stage.
PROMPTS = {"mlm": config["prompts"]["fill_mask"]} | dict.fromkeys(("base", "finetune"), config["prompts"]["generate"])
SAMPLED = or_exit(
    CheckpointFiles,
    "prompts.checkpoints",
    config["prompts"]["checkpoints"],
    {chain: run for chain, run in RUN_FOLDERS.items() if PROMPTS[run.stage]},
    located,
)
SAMPLES = [file for chain in SAMPLED.chains for file in SAMPLED.files(chain)]
# Masked models by the path of their predictions below results/, without suffix, which is the wildcard `answers`.
ANSWERS = {f"mlm/{name}/fill_mask": Model(run) for name, run in INFERENCE_MODELS.items()} | {
    f"samples/{path}": model for path, model in SAMPLED.models.items() if model.run.stage == "mlm"
}


rule fill_mask:
    """Predict the masked token of each prompt with a masked language model."""
    input:
        model=lambda w: ANSWERS[w.answers].files,
        code=code_inputs("samples/fill_mask", lambda w: ANSWERS[w.answers].run.backend),
    output:
        "<results>/{answers}.json",
    params:
        recipe=lambda w: {
            **ANSWERS[w.answers].named,
            "prompts": config["prompts"]["fill_mask"],
            "backend": ANSWERS[w.answers].run.backend,
            "cpu_threads": config["cpu_threads"],
        },
    log:
        "<logs>/{answers}.log",
    wildcard_constraints:
        answers=one_of(ANSWERS),
    threads: config["cpu_threads"]
    resources:
        mem_mb=lambda w: mem_mb(ANSWERS[w.answers].run, "fill_mask"),
    conda:
        lambda w: f"../envs/{ANSWERS[w.answers].run.backend}.yaml"
    script:
        "../scripts/samples/fill_mask.py"


rule sample_checkpoint:
    """Generate text from the prompts with a checkpoint of a causal model, with the same seed as `generate`."""
    input:
        **model_inputs(SAMPLED.models),
        code=code_inputs("samples/sample_checkpoint", "jax"),
    output:
        "<results>/samples/{model}.json",
    params:
        recipe=lambda w: opening(SAMPLED.models[w.model])
        | {"prompts": config["prompts"]["generate"], "sampling": sampling_of(config)},
    log:
        "<logs>/samples/{model}.log",
    wildcard_constraints:
        model=one_of(path for path, model in SAMPLED.models.items() if model.run.stage != "mlm"),
    threads: config["cpu_threads"]
    resources:
        **asks(lambda w: SAMPLED.models[w.model].run, "generate"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/samples/sample_checkpoint.py"
