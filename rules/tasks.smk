"""Tasks with labels: masked models finetuned with several learning rates and seeds, and scores on held-out examples."""

from tpulm.workflow.budget import planned_of
from tpulm.config.task_chains import FOLDER as TASKS_FOLDER
from tpulm.config.tasks import labelled_tasks
from tpulm.corpus.sources import task_files

TASKS = {task.name: task for task in labelled_tasks(config)}
# The checkpoints of runs that are finetuned on each task.
TASK_STEPS = {
    name: or_exit(
        CheckpointFiles,
        f"{task.key}.checkpoints",
        task.recipe["checkpoints"],
        {run.path: run for run in task.models if run.path in RUN_FOLDERS},
        located,
        f"tasks/{name}/",
    )
    for name, task in TASKS.items()
}
# The chains of checkpoints by task and model, as in SCORED.
TASK_CHAINS = {(name, run.path): task.chains(run) for name, task in TASKS.items() for run in task.models}
TASK_MODELS = list(TASK_CHAINS)
TASK_CHAINS |= {
    (name, path): TASKS[name].chains(model.run, model.at)
    for name, steps in TASK_STEPS.items()
    for path, model in steps.models.items()
}
# Every chain by its folder below results/, which is the wildcard `chain`. Chains are pruned and verified like runs.
TUNED = {chain.path: chain for chains in TASK_CHAINS.values() for chain in chains}
CHAINS |= TUNED
# Runs and models on tasks that have plans, by folder below results/plan/, which is the wildcard `planned`.
PLANS = planned_of(config)
TASK_SOURCES = {name: or_exit(task_files, task.key, task.reading) for name, task in TASKS.items()}
# Files that `compare` and the report read.
TASK_SCORES = [
    f"{TASKS_FOLDER}/{task}/{model}/{file}" for task, model in TASK_MODELS for file in ("scores.json", "items.parquet")
]
TASK_SCORES += [file for steps in TASK_STEPS.values() for path in steps.chains for file in steps.files(path)]
SCORES += TASK_SCORES + [mark for chain in TUNED.values() for mark in chain.pruned]


if workflow.is_main_process:
    for left_out in filter(None, (task.left_out for task in TASKS.values())):
        say(left_out)


rule tasks:
    """Target: the scores of every model on every task of evaluation.tasks."""
    localrule: True
    input:
        TASK_SCORES,
        [chain.pruned for chain in TUNED.values()],


rule read_task:
    """Read the examples of a task and split them."""
    input:
        train=lambda w: list(map(PLACE.text, TASK_SOURCES[w.task].get("train", []))),
        validation=lambda w: list(map(PLACE.text, TASK_SOURCES[w.task].get("validation", []))),
        test=lambda w: list(map(PLACE.text, TASK_SOURCES[w.task].get("test", []))),
        dataset=lambda w: list(map(PLACE.text, TASK_SOURCES[w.task].get("dataset", []))),
        code=code_inputs("tasks/read_task", "data"),
    output:
        **{split: f"{TASKS_FOLDER}/{{task}}/{split}.parquet" for split in SPLITS},
        task=f"{TASKS_FOLDER}/{{task}}/task.json",
    params:
        recipe=lambda w: TASKS[w.task].reading,
    log:
        "<logs>/evaluation/tasks/{task}/read.log",
    wildcard_constraints:
        task=one_of(TASKS),
    threads: 1
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
        code=code_inputs("tasks/fit_task_baselines", "data"),
    output:
        f"{TASKS_FOLDER}/{{task}}/baselines.parquet",
    params:
        recipe=lambda w: TASKS[w.task].baselines,
    log:
        "<logs>/evaluation/tasks/{task}/baselines.log",
    wildcard_constraints:
        task=one_of(TASKS),
    threads: 1
    resources:
        mem_mb=8000,
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/tasks/fit_task_baselines.py"


rule train_task:
    """Train one segment of a model on a task, from the previous checkpoint to the next."""
    input:
        train=lambda w: f"{TASKS_FOLDER}/{TUNED[w.chain].task}/train.parquet",
        validation=lambda w: f"{TASKS_FOLDER}/{TUNED[w.chain].task}/validation.parquet",
        task=lambda w: f"{TASKS_FOLDER}/{TUNED[w.chain].task}/task.json",
        model=lambda w: TUNED[w.chain].init_at(int(w.step)),
        # Only the first segment starts from these weights.
        start=lambda w: [] if previous_checkpoint(TUNED[w.chain], int(w.step)) else TUNED[w.chain].initial_weights,
        previous=lambda w: previous_checkpoint(TUNED[w.chain], int(w.step)),
        code=code_inputs("tasks/train_task", "jax"),
    output:
        **segment_outputs("<results>/{chain}"),
    params:
        recipe=lambda w: TUNED[w.chain].segment(int(w.step)),
    log:
        "<logs>/{chain}/{step}.log",
    wildcard_constraints:
        chain=one_of(TUNED),
    threads: config["cpu_threads"]
    resources:
        **asks_to_train(lambda w: TUNED[w.chain]),
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
        model=lambda w: TASK_CHAINS[w.task, w.model][0].init_files,
        best=lambda w: [chain.best for chain in TASK_CHAINS[w.task, w.model]],
        code=code_inputs("tasks/predict_task", "jax"),
    output:
        f"{TASKS_FOLDER}/{{task}}/{{model}}/predictions.parquet",
    params:
        recipe=lambda w: TASK_CHAINS[w.task, w.model][0].predicting
        | {"chains": [chain.named for chain in TASK_CHAINS[w.task, w.model]]},
    log:
        "<logs>/evaluation/tasks/{task}/{model}/predict.log",
    wildcard_constraints:
        task=one_of(TASKS),
        model=one_of({model for _, model in TASK_CHAINS}),
    threads: config["cpu_threads"]
    resources:
        **asks(lambda w: TASK_CHAINS[w.task, w.model][0], "predict_task"),
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
        overlaps=lambda w: EVALUATED.overlaps_of(TASK_CHAINS[w.task, w.model][0].model_run, f"tasks/{w.task}"),
        code=code_inputs("tasks/score_task", "data"),
    output:
        scores=f"{TASKS_FOLDER}/{{task}}/{{model}}/scores.json",
        by_item=f"{TASKS_FOLDER}/{{task}}/{{model}}/items.parquet",
        chains=f"{TASKS_FOLDER}/{{task}}/{{model}}/chains.csv",
    params:
        recipe=lambda w: TASKS[w.task].scoring | TASK_CHAINS[w.task, w.model][0].model.named,
    log:
        "<logs>/evaluation/tasks/{task}/{model}/score.log",
    wildcard_constraints:
        task=one_of(TASKS),
        model=one_of({model for _, model in TASK_CHAINS}),
    threads: 1
    resources:
        mem_mb=8000,
    conda:
        "../envs/data.yaml"
    script:
        "../scripts/tasks/score_task.py"
