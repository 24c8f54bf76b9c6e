"""The report: its page, training curves for the report of Snakemake, and comparisons of runs and models."""

from tpulm.compat.snakemake import snakefiles
from tpulm.config.report import comparisons, folders_compared

FIGURES = "<results>/figures"
# Input files of the page: those of the texts, tokenizer, records and runs of this config.
TOLD = [f"<results>/{collection}/corpus.json" for collection in TEXTS]
TOLD += TOKENIZER_FIGURES if "tokenizer" in config else []
TOLD += [records.manifest for records in RECORDS.values()]
TOLD += [f"{run.folder}/{file}" for run in RUNS.values() for file in ("history.csv", "timings.csv", "metrics.json")]
TOLD += [state for run in RUNS.values() for state in run.in_every_checkpoint("state.json")]
TOLD += [f"<results>/{model.path}/metrics.json" for name, model in MASKED.items() if model.records and name not in MLM]
TOLD += [f"<results>/mlm/{name}/fill_mask.json" for name in MASKED if config["prompts"]["fill_mask"]]
TOLD += [f"<results>/finetune/{name}/partitioning.json" for name in FINETUNE]
TOLD += [f"<results>/finetune/{name}/generations.json" for name in FINETUNE if config["prompts"]["generate"]]
TOLD += [f"<results>/base/{name}/generations.json" for name in SAMPLED_BASES]
TOLD += [f"<results>/evaluation/responses/{run.path}/responses.json" for run in EVALUATED.generating.values()]
TOLD += ["<results>/compare/runs.csv"] if max(map(len, (MLM, TRAINED_BASES, FINETUNE))) > 1 else []
REPEATED = [run for run in RUNS.values() if "published" in run.recipe]
BESIDE_PUBLISHED = ["<results>/compare/published.json"] if REPEATED else []
TOLD += BESIDE_PUBLISHED
PAGE_FILES = sorted((ROOT / "report" / "page").iterdir())
# Existing base models are evaluated only with the harness.
FETCHED_AND_SCORED = [BASES[name] for name in FETCHED_BASES if HARNESS]
COMPARED = or_exit(comparisons, config, [*EVALUATED.of_text.ends.values(), *FETCHED_AND_SCORED])
COMPARED_FOLDERS = folders_compared(COMPARED, EVALUATED)


rule report:
    """Target: write the page of the report, and the curves of all runs for the report of Snakemake."""
    localrule: True
    input:
        "<results>/report.html",
        [f"{FIGURES}/training/{run.stage}-{run.name}.svg" for run in RUNS.values()],
        [f"{FIGURES}/checkpoints/{chain}.svg" for chain, files in SCORED_STEPS.items() if files],


rule write_report:
    """Write the page of the report, a single HTML file, and the verdicts in it."""

    # It reads the entries of all jobs in results/jobs/, of which this machine keeps copies; a pod would download all.
    localrule: bool(PATHS.bucket)
    input:
        results=TOLD,
        # The page shows existing plans and does not make new ones.
        plans=lambda w: [name for name in PLAN_FILES if PATHS.exists(name)],
        scores=lambda w: [file for file in EVALUATED.files if file.endswith("scores.json")],
        history=lambda w: HISTORY,
        templates=[PATHS.source(path) for path in PAGE_FILES],
    output:
        page=report(
            "<results>/report.html",
            caption="../report/page.rst",
            category="0. The page",
            labels={"stage": "all", "run": "all", "shows": "everything, on one page"},
        ),
        jobs="<results>/jobs.json",
        verdicts="<results>/verdicts.json",
    params:
        recipe=lambda w: page_recipe(
            OUTLINE,
            {name: path.stem for name, path in snakefiles(workflow).items()},
            CONFIG_FILES,
            PATHS.prefixed,
        ),
        code=code_digest("report/write_report", "workflow"),
    log:
        "<logs>/report.log",
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/report/write_report.py"


rule collect_history:
    """Concatenate the histories of a run's segments."""
    input:
        history=lambda w: ALL_RUNS[w.chain].in_every_checkpoint("history.csv"),
        timings=lambda w: ALL_RUNS[w.chain].in_every_checkpoint("timings.csv"),
    output:
        history="<results>/{chain}/history.csv",
        timings="<results>/{chain}/timings.csv",
    params:
        code=code_digest("report/collect_history", "workflow"),
    log:
        "<logs>/{chain}/history.log",
    wildcard_constraints:
        chain=one_of(ALL_RUNS),
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/report/collect_history.py"


rule plot_training:
    """Plot the loss and the learning rate of a run."""
    input:
        history=lambda w: f"<results>/{w.stage}/{w.run}/history.csv",
        states=lambda w: RUNS[f"{w.stage}/{w.run}"].in_every_checkpoint("state.json"),
    output:
        report(
            f"{FIGURES}/training/{{stage}}-{{run}}.svg",
            caption="../report/training.rst",
            category="1. Training",
            labels={"stage": "{stage}", "run": "{run}", "shows": "loss and learning rate"},
        ),
    params:
        code=code_digest("report/plot_training", "workflow"),
    log:
        "<logs>/figures/training-{stage}-{run}.log",
    wildcard_constraints:
        stage=one_of(STAGES),
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/report/plot_training.py"


rule compare:
    """Target: print a table of all runs, with mean and spread over seeds, and tests of differences between models."""
    localrule: True
    input:
        table="<results>/compare/runs.md",
        models="<results>/compare/models.md",
        published=BESIDE_PUBLISHED,
        # Also those of runs that are no longer in the config.
        history=lambda w: sorted({*HISTORY, *kept_runs(located("<results>/history"))}),
    params:
        recipe={"current": list(RUNS)},
        code=code_digest("report/compare", "workflow"),
    log:
        "<logs>/compare/table.log",
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/report/compare.py"


rule compare_runs:
    """Compare the held-out metrics of all runs, with mean and spread over seeds."""
    input:
        metrics=[f"{run.folder}/metrics.json" for group in repetitions(RUNS.values()) for run in group],
    output:
        csv="<results>/compare/runs.csv",
        table="<results>/compare/runs.md",
    params:
        recipe={"groups": groups_of(RUNS.values())},
        code=code_digest("report/compare_runs", "workflow"),
    log:
        "<logs>/compare/runs.log",
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/report/compare_runs.py"


rule compare_published:
    """Set the figures of runs beside the published ones that they repeat."""
    input:
        metrics=[f"{run.folder}/metrics.json" for run in REPEATED],
        history=[f"{run.folder}/history.csv" for run in REPEATED],
        timings=[f"{run.folder}/timings.csv" for run in REPEATED],
        answers=[f"{run.folder}/fill_mask.json" for run in REPEATED if "answers" in run.recipe["published"]],
    output:
        "<results>/compare/published.json",
    params:
        recipe=[{"path": run.path, "published": run.recipe["published"]} for run in REPEATED],
        code=code_digest("report/compare_published", "workflow"),
    log:
        "<logs>/compare/published.log",
    conda:
        "../envs/workflow.yaml"
    script:
        "../scripts/report/compare_published.py"


rule compare_models:
    """Test which differences between models are significant, over items and over seeds."""
    input:
        scores=[f"{folder}/scores.json" for _, folder in COMPARED_FOLDERS],
        by_item=[f"{folder}/items.parquet" for _, folder in COMPARED_FOLDERS],
    output:
        csv="<results>/compare/models.csv",
        table="<results>/compare/models.md",
    params:
        recipe={"models": [model for model, _ in COMPARED_FOLDERS], "pairs": COMPARED},
        code=code_digest("report/compare_models", "data"),
    log:
        "<logs>/compare/models.log",
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/report/compare_models.py"
