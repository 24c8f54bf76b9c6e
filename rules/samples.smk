"""Samples of masked models and of base models for prompts; finetune.smk has `generate` for finetuned models."""


rule fill_mask:
    """Predict the masked token of each prompt with a masked language model."""
    input:
        model=lambda w: MASKED[w.run].files,
    output:
        "<results>/mlm/{run}/fill_mask.json",
    params:
        recipe=lambda w: {
            "path": f"mlm/{w.run}",
            "prompts": config["prompts"]["fill_mask"],
            "backend": MASKED[w.run].backend,
            "cpu_threads": config["cpu_threads"],
        },
        code=code_digest("samples/fill_mask", lambda w: MASKED[w.run].backend),
    log:
        "<logs>/mlm/{run}/fill_mask.log",
    wildcard_constraints:
        run=one_of(MASKED),
    threads: config["cpu_threads"]
    resources:
        mem_mb=lambda w: mem_mb(MASKED[w.run], "fill_mask"),
    conda:
        lambda w: f"../envs/{MASKED[w.run].backend}.yaml"
    script:
        "../scripts/samples/fill_mask.py"


rule continue_prompts:
    """Continue each prompt with a base model that was trained here."""
    input:
        base=ancient("<results>/base/{run}/preset"),
        fingerprint="<results>/base/{run}/preset.json",
    output:
        "<results>/base/{run}/generations.json",
    params:
        recipe=lambda w: TRAINED_BASES[w.run].opening
        | {"prompts": config["prompts"]["generate"], "sampling": sampling_of(config)},
        code=code_digest("samples/continue_prompts", "jax"),
    log:
        "<logs>/base/{run}/continue_prompts.log",
    wildcard_constraints:
        run=one_of(SAMPLED_BASES),
    threads: config["cpu_threads"]
    resources:
        **job_resources(by_name(TRAINED_BASES), "continue_prompts"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/samples/continue_prompts.py"
