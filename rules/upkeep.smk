"""Maintenance: prune old checkpoints, verify all artifacts, and find files that no run needs."""

import json

from tpulm.compat.snakemake import rule_name

# `publish` is a target only if the config has the key.
PLACES = ["publish"] if "publish" in config else []
# The options of this command that say what is made, and where.
OPTIONS = ["--configfile", *map(os.path.abspath, GIVEN)] if GIVEN else []
OPTIONS += (
    ["--config", *(f"{key}={json.dumps(value, default=str)}" for key, value in OVERRIDES.items())] if OVERRIDES else []
)
OPTIONS += ["--default-storage-provider", "gcs", "--default-storage-prefix", PATHS.bucket] if PATHS.bucket else []
# The same options for commands in messages, which a user types in the folder where this command was typed.
TYPED = (["-d", str(workflow.overwrite_workdir)] if workflow.overwrite_workdir else []) + OPTIONS
# Arguments of another Snakemake process that lists the outputs of this workflow.
SNAKEMAKE_ARGUMENTS = {
    "snakefile": os.path.relpath(workflow.main_snakefile),
    "profile": os.path.relpath(ROOT / "profiles" / "default"),
    "options": OPTIONS,
    "results": located("<results>"),
    "targets": [
        rule_name(workflow, name)
        for name in ("all", "plan", "tfrecords", "compare", "transformers", "gguf", "cards", *PLACES)
    ],
}


rule prune_checkpoint:
    """Delete the arrays of a checkpoint that keep_checkpoints does not keep, but not its history and metrics."""
    localrule: True
    input:
        # The next checkpoint must be complete: until then, an interrupted segment restarts from this one.
        following=lambda w: in_place(ALL_RUNS[w.chain].next_state(int(w.step))),
        measured=lambda w: EVALUATED.before_pruning(w.chain, int(w.step)),
    output:
        "<results>/{chain}/checkpoints/{step}/pruned.json",
    params:
        code=code_digest("upkeep/prune_checkpoint", "data"),
    log:
        "<logs>/{chain}/{step}-pruned.log",
    wildcard_constraints:
        chain=one_of(ALL_RUNS),
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/upkeep/prune_checkpoint.py"


rule verify:
    """Target: compare every file on the disk or in the bucket with its SHA-256."""
    localrule: True
    params:
        # Artifacts are not inputs, because Snakemake would rebuild damaged ones instead of reporting them.
        recipe={"results": located("<results>"), "options": TYPED},
        code=code_digest("upkeep/verify", "data"),
    log:
        "<logs>/verify.log",
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/upkeep/verify.py"


rule clean:
    """Target: list the files below results/ that no run of the config needs."""
    localrule: True
    params:
        recipe=SNAKEMAKE_ARGUMENTS | {"typed": TYPED},
        code=code_digest("upkeep/clean", "workflow"),
    log:
        "<logs>/clean.log",
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/upkeep/clean.py"


rule clean_delete:
    """Target: delete the files that `clean` lists."""
    localrule: True
    params:
        recipe=SNAKEMAKE_ARGUMENTS,
        code=code_digest("upkeep/clean_delete", "workflow"),
    log:
        "<logs>/clean_delete.log",
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/upkeep/clean_delete.py"


rule track:
    """Target: send the metrics of finished runs to the trackers of the config."""
    localrule: True
    params:
        recipe=specification(OUTLINE, PATHS, replay=True),
        code=code_digest("upkeep/track", "workflow"),
    log:
        "<logs>/track.log",
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/upkeep/track.py"
