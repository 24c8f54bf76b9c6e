"""Predictions of masked models for prompts; finetune.smk has `generate` for finetuned models."""


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
