"""The archive of a run, and the history of runs in results/history/."""

from tpulm.config.publications import archive_of, history_entry
from tpulm.workflow.publishing import archived, kept_runs, only_here

ARCHIVE = archive_of(config)
HISTORY = [f"<results>/history/{chain}.json" for chain in RUNS]


rule archive:
    """Target: write results/archive/NAME-VERSION.zip: results, provenance, code, config."""
    localrule: True
    input:
        ARCHIVE,


rule write_archive:
    """Archive the results, the provenance of each file, the source code, the config and the locks."""
    localrule: True
    input:
        TARGETS,
        rules.cards.input,
        here=lambda w: or_exit(only_here, PATHS.bucket, IS_MAIN),
        verify=PATHS.source(ROOT / "scripts/tpulm/release/verify.py"),
    output:
        archive=ARCHIVE,
        sum=f"{ARCHIVE}.sha256",
    params:
        recipe=lambda w: archived(config, CONFIG_FILES, OVERRIDES, located(ARCHIVE), ROOT),
        code=code_digest("archive/write_archive", "archive"),
    log:
        "<logs>/archive/archive.log",
    conda:
        "../envs/archive.yaml"
    script:
        "../scripts/archive/write_archive.py"


rule keep_run:
    """Add a finished run to the history: its recipe, the checksum of its weights, and its scores."""
    input:
        metrics=lambda w: f"{RUNS[w.chain].folder}/metrics.json",
        state=lambda w: RUNS[w.chain].state,
        scores=lambda w: EVALUATED.of_model(w.chain),
    output:
        "<results>/history/{chain}.json",
    params:
        recipe=lambda w: history_entry(RUNS[w.chain]),
        code=code_digest("archive/keep_run", "workflow"),
    log:
        "<logs>/history/{chain}.log",
    wildcard_constraints:
        chain=one_of(RUNS),
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/archive/keep_run.py"
