"""Keeping house: let old checkpoints go, read everything back, find what no run needs any more."""

SNAKEMAKE_ARGUMENTS = {
    "configfiles": CONFIG_FILES,
    "config": workflow.config_settings.config,
    "results": located("results"),
}


rule thin_checkpoint:
    """Delete the arrays of a checkpoint that keep_checkpoints lets go; its history and evaluation stay."""
    localrule: True
    input:
        # Only once the next checkpoint is whole: until then a killed segment begins at this one.
        following=lambda w: in_place([next_state(f"results/{w.chain}", int(w.step))])[0],
        library=library("thin_checkpoint", "data"),
    output:
        "results/{chain}/checkpoints/{step}/thinned.json",
    log:
        "logs/{chain}/{step}-thinned.log",
    wildcard_constraints:
        chain=one_of(chain.removeprefix("results/") for chain in CHAINS),
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/thin_checkpoint.py"


rule verify:
    """Read every artifact back, as it lies on the disk."""
    localrule: True
    input:
        # No artifact is an input: Snakemake would build again what is to be reported.
        library=library("verify", "data"),
    params:
        recipe={
            "results": located("results"),
            "collections": COLLECTIONS,
            "tokenizer": "tokenizer" in config,
            "shards": SHARD_NAMES if "tfrecords" in config else {},
            "chains": {chain: segment_ends(recipe) for chain, recipe in CHAINS.items()},
            "mlm": list(MLM),
            "base": list(BASE),
            "lora": {run: recipe["method"] for run, recipe in LORA.items()},
        },
    log:
        "logs/verify.log",
    threads: 1
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/verify.py"


rule clean:
    """List what lies under results/ and no run of the config needs."""
    localrule: True
    input:
        library=library("clean", "controller"),
    params:
        recipe=SNAKEMAKE_ARGUMENTS,
    log:
        "logs/clean.log",
    threads: 1
    conda:
        "../envs/controller.yaml"
    script:
        "../scripts/clean.py"


rule clean_delete:
    """Delete what `clean` lists."""
    localrule: True
    input:
        library=library("clean_delete", "controller"),
    params:
        recipe=SNAKEMAKE_ARGUMENTS,
    log:
        "logs/clean_delete.log",
    threads: 1
    conda:
        "../envs/controller.yaml"
    script:
        "../scripts/clean_delete.py"
