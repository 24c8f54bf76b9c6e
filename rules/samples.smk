"""Predictions of masked models for prompts; finetune.smk has `generate` for finetuned models."""


rule fill_mask:
    """Predict the masked token of each prompt with a masked language model."""
    input:
        model=lambda w: Model(INFERENCE_MODELS[w.run]).files,
        code=code_inputs("samples/fill_mask", lambda w: INFERENCE_MODELS[w.run].backend),
    output:
        "<results>/mlm/{run}/fill_mask.json",
    params:
        recipe=lambda w: {
            "path": f"mlm/{w.run}",
            "prompts": config["prompts"]["fill_mask"],
            "backend": INFERENCE_MODELS[w.run].backend,
            "cpu_threads": config["cpu_threads"],
        },
    log:
        "<logs>/mlm/{run}/fill_mask.log",
    wildcard_constraints:
        run=one_of(INFERENCE_MODELS),
    threads: config["cpu_threads"]
    resources:
        mem_mb=lambda w: mem_mb(INFERENCE_MODELS[w.run], "fill_mask"),
    conda:
        lambda w: f"../envs/{INFERENCE_MODELS[w.run].backend}.yaml"
    script:
        "../scripts/samples/fill_mask.py"
