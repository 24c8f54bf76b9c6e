"""The evaluations of a config: which models are scored, on which material, and the files with their scores."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from tpulm.config.outline import Model, Outline, Run
from tpulm.config.tasks import Task, every_task
from tpulm.core.errors import UserError
from tpulm.specs.artifacts import CHECKPOINT_FILES, PRUNED
from tpulm.specs.harness_tasks import HarnessTask, tasks_of
from tpulm.specs.recipes import pick
from tpulm.specs.texts import has_responses

# Keys that scoring a causal model takes from its recipe, in addition to those that open it.
READING_KEYS = ("sequence_length", "batch_size", "microbatches")
FOLDER = "<results>/evaluation"
# The files with scores, and with their values by item.
FILES = ("scores.json", "items.parquet")


def overlap(searched: str, collection: str) -> str:
    """Return the file with the overlap between an evaluation and a training text.

    searched    texts/COLLECTION, tasks/TASK or harness/TASK
    collection  the training text
    """
    return f"{FOLDER}/{searched}/overlap/{collection}.json"


class Evaluation:
    """The scores of models on held-out text and pairs, on a task, or on a task of the harness.

    models  scored models by path: final models, and checkpoints whose weights exist. No rule scores other checkpoints,
            so that nothing is trained again for them
    runs    runs whose checkpoints are scored, by path
    """

    def __init__(
        self,
        key: str,
        which: str,
        ends: Mapping[str, Model],
        runs: Mapping[str, Run],
        exists: Callable[[str], bool],
        above: str = "",
    ):
        """Select the checkpoints to score.

        key, which  key of the config, and its value: best, last or all
        ends, runs  final models that are scored, and all runs, by path
        exists      returns whether an artifact exists
        above       folder of the scores below results/evaluation/, such as harness/NAME/

        Raises UserError for a run with patience: after an early stop, only the best weights exist.
        """
        self.key, self.which, self.ends, self.exists, self.above = key, which, ends, exists, above
        self.runs = {path: runs[path] for path in ends if path in runs}
        for run in self.runs.values() if which != "best" else []:
            if run.recipe["patience"]:
                raise UserError(
                    f"{key} is {which}, but {run.key} has patience, and checkpoints after an early "
                    "stop have no weights of their own; allowed: best."
                )
        chosen = {"best": slice(0), "last": slice(-1, None), "all": slice(None)}[which]
        self.steps = {path: run.segment_ends[chosen] for path, run in self.runs.items()}
        self.gone = {(path, step) for path, steps in self.steps.items() for step in steps if self.let_go(path, step)}
        at_steps = [run.at(step) for path, run in self.runs.items() for step in self.steps[path]]
        existing = {model.path: model for model in at_steps if (model.identity["path"], model.step) not in self.gone}
        self.models = {**ends, **existing}

    def file(self, path: str, step: int) -> str:
        """Return the file with the scores of a checkpoint."""
        return f"{FOLDER}/{self.above}{path}/{step:08d}/scores.json"

    def let_go(self, path: str, step: int) -> bool:
        """Return whether keep_checkpoints deleted the weights of a checkpoint, so that it is not scored."""
        folder = f"{self.runs[path].folder}/checkpoints/{step:08d}"
        return self.exists(f"{folder}/{PRUNED}") and not self.exists(f"{folder}/{CHECKPOINT_FILES['weights']}")

    def of_steps(self, path: str) -> list[str]:
        """Return the files with the scores of a run's checkpoints, in order: those that exist or can be made."""
        files = {step: self.file(path, step) for step in self.steps.get(path, [])}
        return [file for step, file in files.items() if (path, step) not in self.gone or self.exists(file)]

    @property
    def files(self) -> list[str]:
        """All files with scores, and with values by item."""
        files = [f"{FOLDER}/{self.above}{path}/{file}" for path in self.ends for file in FILES]
        return files + [file for path in self.runs for file in self.of_steps(path)]

    def before_pruning(self, path: str, step: int) -> list[str]:
        """Return the files with scores that must exist before a checkpoint's arrays are deleted."""
        file = self.file(path, step)
        wanted = step in self.steps.get(path, []) and (path, step) not in self.gone
        return [file] if wanted or (path in self.runs and self.exists(file)) else []

    @property
    def notes(self) -> list[str]:
        """A message for each run with checkpoints that can no longer be scored."""
        messages = []
        for path, run in self.runs.items():
            gone = [str(step) for step in self.steps[path] if self.file(path, step) not in self.of_steps(path)]
            if gone:
                messages.append(
                    f"{self.key} is {self.which}, but {run.key}.keep_checkpoints has deleted the weights at "
                    f"{'steps' if gone[1:] else 'step'} {', '.join(gone)}, which are not scored; to restore them, "
                    f"delete {run.folder}/checkpoints and train again."
                )
        return messages


class Evaluations:
    """All evaluations of a config: the files with scores, their inputs, and the runs that they train.

    all       evaluations by folder below results/evaluation/: tasks/NAME/, harness/NAME/, and "" for held-out text and
              pairs (of_text)
    tasks     tasks with labels by name; runs_on_task  the runs of each (task, path of model)
    runs_by_plan  by the folder of the plan below results/plan/: one run, or all runs of a model on a task, also those
              of checkpoints whose weights were deleted
    harness   tasks of the harness by name
    """

    def __init__(self, outline: Outline, exists: Callable[[str], bool]):
        """List the evaluations; `exists` returns whether an artifact exists. Raises UserError."""
        self.outline, self.config = outline, outline.config
        evaluation, runs = self.config["evaluation"], outline.runs
        self.text: Mapping[str, Any] = evaluation["text"]
        self.pair_files = [f"{FOLDER}/pairs/sets/{name}.parquet" for name in evaluation["pairs"]["sets"]]
        drawn = self.text["documents"] or self.text["masked_documents"]
        self.text_files = {name: f"{FOLDER}/texts/{name}.parquet" for name in outline.texts} if drawn else {}
        ends = {
            path: model
            for path, model in outline.models.items()
            if (model.stage == "mlm" or path in runs) and (self.pair_files or self.documents_of(model))
        }
        causal = {path: model for path, model in outline.models.items() if model.stage != "mlm"}
        self.tasks: dict[str, Task] = {name: task for name, task in every_task(outline).items() if task.models}
        self.harness: dict[str, HarnessTask] = tasks_of(self.config)
        sections = {"": ("evaluation", evaluation, ends)}
        sections |= {f"tasks/{name}/": (task.key, task.recipe, task.models) for name, task in self.tasks.items()}
        sections |= {f"harness/{name}/": (task.key, task.recipe, causal) for name, task in self.harness.items()}
        self.all = {
            folder: Evaluation(f"{key}.checkpoints", recipe["checkpoints"], models, runs, exists, folder)
            for folder, (key, recipe, models) in sections.items()
        }
        self.of_text = self.all[""]
        self.runs_on_task: dict[tuple[str, str], list[Run]] = {}
        self.runs_by_plan = {path: [run] for path, run in runs.items()}
        for name in self.tasks:
            scores = self.on_task(name)
            for path, model in scores.ends.items():
                plan_runs: dict[str, Run] = {}
                for start in [model, *(runs[path].at(step) for step in scores.steps.get(path, []))]:
                    runs_of_start = self.tasks[name].runs(start, model)
                    plan_runs |= {run.path: run for run in runs_of_start}
                    if start.path in scores.models:
                        self.runs_on_task[name, start.path] = runs_of_start
                self.runs_by_plan[f"tasks/{name}/{path}"] = list(plan_runs.values())

    def on_task(self, name: str) -> Evaluation:
        """Return the evaluation of models on a task with labels."""
        return self.all[f"tasks/{name}/"]

    @cached_property
    def task_runs(self) -> dict[str, Run]:
        """All runs of models on tasks by path."""
        return {run.path: run for runs in self.runs_on_task.values() for run in runs}

    @cached_property
    def all_runs(self) -> dict[str, Run]:
        """All runs by path, those of models on tasks included."""
        return self.outline.runs | self.task_runs

    @cached_property
    def harness_models(self) -> dict[str, Model]:
        """All models that are scored on a task of the harness, by path."""
        evaluations = [self.all[f"harness/{name}/"] for name in self.harness]
        return {path: model for evaluation in evaluations for path, model in evaluation.models.items()}

    @cached_property
    def files(self) -> list[str]:
        """All files of the target `evaluation`."""
        responses = [
            f"{FOLDER}/responses/{run.path}/{file}"
            for run in self.generating.values()
            for file in (*FILES, "responses.json")
        ]
        score_files = [file for scores in self.all.values() for file in scores.files]
        return score_files + responses + [mark for run in self.task_runs.values() for mark in run.prune_marks]

    def of_model(self, path: str) -> list[str]:
        """Return the files with the scores of a run's final model."""
        return [file for file in self.files if file.endswith(f"/{path}/{FILES[0]}")]

    def before_pruning(self, path: str, step: int) -> list[str]:
        """Return the files with scores that must exist before a checkpoint's arrays are deleted."""
        return [file for scores in self.all.values() for file in scores.before_pruning(path, step)]

    def sampling_of(self, collection: str) -> dict:
        """Return the recipe for drawing held-out documents of a text, as many as any model is scored on."""
        text = self.text
        recipe = pick(text, "characters", "seed") | {"documents": max(text["documents"], text["masked_documents"])}
        return recipe | ({"responses": True} if self.scores_responses(collection) else {})

    def scores_responses(self, collection: str) -> bool:
        """Return whether causal models are scored on the responses of a text alone."""
        texts = self.outline.texts
        return collection in texts and has_responses(texts[collection].recipe)

    def documents_of(self, model: Model) -> int:
        """Return how many documents of each held-out split a model is scored on."""
        return self.text["masked_documents" if model.stage == "mlm" else "documents"]

    def collections_of(self, model: Model) -> list[str]:
        """Return the texts that a model is scored on: a base model also on the one for finetuning."""
        if not self.documents_of(model):
            return []
        if model.stage == "finetune":
            return [name for name in ("finetune-text", "corpus") if name in self.outline.texts]
        # A base model is scored on it whether a run names it or not: naming another base must not score both again.
        tuned = model.stage == "base" and "finetune-text" in self.outline.texts
        return ["corpus", *(["finetune-text"] if tuned else [])]

    def scored_with(self, model: Model) -> list[str]:
        """Return the texts that a model is scored on; that of the pairs for a model that is scored on pairs only."""
        return self.collections_of(model) or [self.text_of_pairs]

    def material_of(self, collection: str) -> list[str]:
        """Return the files with the held-out documents of a text; those of the pairs' text include all pairs."""
        texts = [self.text_files[collection]] if self.text_files else []
        return texts + (self.pair_files if collection == self.text_of_pairs else [])

    @property
    def text_of_pairs(self) -> str:
        """The text whose baselines score the pairs: the corpus, or without one the finetuning text."""
        return next(iter(self.outline.texts))

    @cached_property
    def generating(self) -> dict[str, Run]:
        """The finetuning runs whose models generate responses to held-out documents, by name."""
        enabled = self.responses and self.scores_responses("finetune-text")
        return self.outline.runs_of("finetune") if enabled else {}

    @property
    def responses(self) -> int:
        """The largest number of responses that a model generates."""
        return min(self.text["responses"], self.text["documents"])

    def generation(self, run: Run) -> dict:
        """Return the recipe for generating responses to held-out prompts."""
        recipe = {"responses": self.responses, "characters": self.text["characters"]}
        return recipe | run.job_recipe | pick(run.recipe, *READING_KEYS)

    def scored_on(self) -> dict[str, Any]:
        """Return the inputs of the rule that scores the model of its wildcard, as functions of the wildcards."""

        def material(model: Model) -> list[str]:
            return [self.text_files[name] for name in self.collections_of(model)] + self.pair_files

        def by_model(files: Callable[[Model], list[str]]) -> Callable[[Any], list[str]]:
            return lambda wildcards: files(self.of_text.models[wildcards.model])

        return {
            "material": by_model(material),
            "ngrams": by_model(self.ngrams_of),
            "overlaps": by_model(
                lambda model: overlaps_of(model, *(f"texts/{name}" for name in self.scored_with(model)))
            ),
        }

    def ngrams_of(self, model: Model) -> list[str]:
        """Return the files with the n-gram baselines of a model, one for each text, in its vocabulary."""
        return [f"{FOLDER}/ngrams/{name}/{model.vocabulary.name}.parquet" for name in self.scored_with(model)]

    @cached_property
    def vocabularies(self) -> dict[str, list[str]]:
        """The files of each vocabulary of scored models, by name."""
        return dict(model.vocabulary for model in self.of_text.ends.values())

    def scoring(self, model: Model) -> dict:
        """Return the recipe for scoring a model on text and pairs."""
        documents = {"documents": self.documents_of(model)}
        if model.stage != "mlm":
            return documents | model.job_recipe | pick(model.recipe, *READING_KEYS)
        return documents | model.job_recipe | {"length": model.sequence_length}


def overlaps_of(model: Model, *searched: str) -> list[str]:
    """Return the files with the overlaps of evaluations and a model's training texts; searched  see `overlap`."""
    return [overlap(evaluation, text) for text in model.trained_on for evaluation in searched]
