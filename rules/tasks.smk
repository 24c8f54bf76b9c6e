"""Tasks with labels: masked models finetuned with several learning rates and seeds, and scores on held-out examples."""

from tpulm.config.tasks import FOLDER as TASKS_FOLDER
from tpulm.corpus.sources import task_files

TASKS, TASK_RUNS = EVALUATED.tasks, EVALUATED.task_runs
# The runs by task and model.
RUNS_ON_TASK = EVALUATED.runs_on_task
# The folder with the examples of a run, by its path.
EXAMPLES = {path: TASKS[run.task].folder for path, run in TASK_RUNS.items()}
TASK_SOURCES = {name: or_exit(task_files, task.key, task.reading) for name, task in TASKS.items()}


if workflow.is_main_process:
    for left_out in filter(None, (task.left_out for task in TASKS.values())):
        say(left_out)


rule tasks:
    """Target: the scores of every model on every task of evaluation.tasks."""
    localrule: True
    input:
        [EVALUATED.on_task(name).files for name in TASKS],
        [run.prune_marks for run in TASK_RUNS.values()],


rule read_task:
    """Read the examples of a task and split them."""
    input:
        unpack(lambda w: {name: list(map(PATHS.text, files)) for name, files in TASK_SOURCES[w.task].items()}),
    output:
        **{split: f"{TASKS_FOLDER}/{{task}}/{split}.parquet" for split in SPLITS},
        task=f"{TASKS_FOLDER}/{{task}}/task.json",
    params:
        recipe=lambda w: TASKS[w.task].reading,
        code=code_digest("tasks/read_task", "data"),
    log:
        "<logs>/evaluation/tasks/{task}/read.log",
    wildcard_constraints:
        task=one_of(TASKS),
    resources:
        mem_mb=8000,
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/tasks/read_task.py"


rule fit_task_baselines:
    """Fit the baselines of a task and predict its labels with them."""
    input:
        train=f"{TASKS_FOLDER}/{{task}}/train.parquet",
        test=f"{TASKS_FOLDER}/{{task}}/test.parquet",
    output:
        f"{TASKS_FOLDER}/{{task}}/baselines.parquet",
    params:
        recipe=lambda w: TASKS[w.task].baselines,
        code=code_digest("tasks/fit_task_baselines", "data"),
    log:
        "<logs>/evaluation/tasks/{task}/baselines.log",
    wildcard_constraints:
        task=one_of(TASKS),
    resources:
        mem_mb=8000,
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/tasks/fit_task_baselines.py"


rule train_task:
    """Train one segment of a model on a task, from the previous checkpoint to the next."""
    input:
        train=lambda w: f"{EXAMPLES[w.chain]}/train.parquet",
        validation=lambda w: f"{EXAMPLES[w.chain]}/validation.parquet",
        task=lambda w: f"{EXAMPLES[w.chain]}/task.json",
        model=lambda w: TASK_RUNS[w.chain].init_at(int(w.step)),
        start=lambda w: TASK_RUNS[w.chain].start_at(int(w.step)),
        previous=lambda w: previous_checkpoint(TASK_RUNS[w.chain], int(w.step)),
    output:
        **segment_outputs("<results>/{chain}"),
    params:
        recipe=lambda w: TASK_RUNS[w.chain].segment(int(w.step)),
        code=code_digest("tasks/train_task", "jax"),
    log:
        "<logs>/{chain}/{step}.log",
    wildcard_constraints:
        chain=one_of(TASK_RUNS),
    threads: config["cpu_threads"]
    resources:
        **training_resources(lambda w: TASK_RUNS[w.chain]),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/tasks/train_task.py"


rule predict_task:
    """Predict the labels of held-out examples with the best weights of every chain of a model."""
    input:
        validation=f"{TASKS_FOLDER}/{{task}}/validation.parquet",
        test=f"{TASKS_FOLDER}/{{task}}/test.parquet",
        task=f"{TASKS_FOLDER}/{{task}}/task.json",
        model=lambda w: RUNS_ON_TASK[w.task, w.model][0].init_config,
        best=lambda w: [run.weights for run in RUNS_ON_TASK[w.task, w.model]],
    output:
        f"{TASKS_FOLDER}/{{task}}/{{model}}/predictions.parquet",
    params:
        recipe=lambda w: TASKS[w.task].predicting
        | {"cpu_threads": config["cpu_threads"], "chains": [run.variant for run in RUNS_ON_TASK[w.task, w.model]]},
        code=code_digest("tasks/predict_task", "jax"),
    log:
        "<logs>/evaluation/tasks/{task}/{model}/predict.log",
    wildcard_constraints:
        task=one_of(TASKS),
        model=one_of({model for _, model in RUNS_ON_TASK}),
    threads: config["cpu_threads"]
    resources:
        **job_resources(lambda w: RUNS_ON_TASK[w.task, w.model][0], "predict_task"),
    conda:
        "../envs/jax.yaml"
    script:
        "../scripts/tasks/predict_task.py"


rule score_task:
    """Score a model and the baselines on a task, with the mean over seeds."""
    input:
        predictions=f"{TASKS_FOLDER}/{{task}}/{{model}}/predictions.parquet",
        baselines=f"{TASKS_FOLDER}/{{task}}/baselines.parquet",
        task=f"{TASKS_FOLDER}/{{task}}/task.json",
        overlaps=lambda w: overlaps_of(EVALUATED.on_task(w.task).models[w.model], f"tasks/{w.task}"),
    output:
        scores=f"{TASKS_FOLDER}/{{task}}/{{model}}/scores.json",
        by_item=f"{TASKS_FOLDER}/{{task}}/{{model}}/items.parquet",
        chains=f"{TASKS_FOLDER}/{{task}}/{{model}}/chains.csv",
    params:
        recipe=lambda w: TASKS[w.task].scoring | EVALUATED.on_task(w.task).models[w.model].identity,
        code=code_digest("tasks/score_task", "data"),
    log:
        "<logs>/evaluation/tasks/{task}/{model}/score.log",
    wildcard_constraints:
        task=one_of(TASKS),
        model=one_of({model for _, model in RUNS_ON_TASK}),
    resources:
        mem_mb=8000,
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/tasks/score_task.py"
