"""Tasks that models are finetuned on: what the config says of each, and the chains of checkpoints that follow from it.

A chain is one model on one task with one learning rate and one seed, from the model's weights or from random ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tpulm.config.artifacts import MODEL_FILES
from tpulm.config.evaluation_names import EXPORTED
from tpulm.config.runs import Run, pick
from tpulm.config.schedule import segment_schedule
from tpulm.config.task_candidates import candidates, masked_candidates, obstacle

FOLDER = "results/evaluation/tasks"
CLASS, NUMBER, TOKEN_CLASSES = "class", "number", "token-classes"
# The metrics that fit what is predicted; the first one is the default.
METRICS = {
    CLASS: ("accuracy", "f1", "matthews"),
    NUMBER: ("pearson", "spearman"),
    TOKEN_CLASSES: ("accuracy", "f1"),
}
# Whose weights a chain starts from: the model's, or random ones, as a baseline.
PRETRAINED, RANDOM = "pretrained", "random"
# Keys of a segment's recipe that are the task's.
SEGMENT_KEYS = ("predict", "sequence_length", "batch_size", "optimizer", "precision", "mesh", "host_device_count")
# Keys of every run that a task does not have: what trains is small.
FIXED: dict[str, Any] = {
    "microbatches": 1,
    "steps_per_execution": 1,
    "remat": False,
    "layout": {},
    "determinism": "bytes",
    "evaluate_every": None,
    "patience": None,
    "profile": {},
}


@dataclass(frozen=True)
class TaskChain(Run):
    """A model of stage and name that is finetuned on a task; see the module.

    at  the step of the checkpoint whose weights it starts from; None for the model that the run ends with
    """

    task: str = ""
    weights: str = PRETRAINED
    rate: float = 0.0
    seed: int = 0
    at: int | None = None

    @property
    def model_run(self) -> Run:
        """The run, or the pretrained model, whose model it is."""
        return Run(self.stage, self.name, self.config)

    @cached_property
    def recipe(self) -> dict:
        """What the config says of the task, with the rate and seed of this chain; the model as a run has it."""
        own = self.model_run.base if self.stage == "finetune" else self.model_run.recipe
        model = {key: own[key] for key in ("model", "vocab_size", "preset") if key in own}
        task = self.config["evaluation"]["tasks"][self.task]
        return FIXED | task | model | {"learning_rate": self.rate, "seed": self.seed}

    @property
    def key(self) -> str:
        """How the config names the task."""
        return f"evaluation.tasks.{self.task}"

    @property
    def folder(self) -> str:
        """Where its checkpoints are."""
        place = scores_folder(self.task, self.model_run, self.at)
        return f"{place}/{self.weights}-rate-{self.rate:g}-seed-{self.seed}"

    @property
    def exported(self) -> str:
        """Where the weights of the checkpoint that it starts from are as a model."""
        return f"{EXPORTED}/{path_of(self.model_run, self.at)}"

    @property
    def backend(self) -> str:
        """JAX, whatever has trained the model."""
        return "jax"

    @property
    def origin(self) -> dict | None:
        """Where the model comes from, see `Run.origin`."""
        return self.model_run.origin

    @property
    def base(self) -> dict:
        """The base model that its model was tuned from: an entry under base."""
        return self.model_run.base

    @property
    def preset(self) -> list[str]:
        """The folder of a causal model; none of a masked one."""
        if self.at is not None:
            return {"mlm": [], "base": [f"{self.exported}/preset"], "finetune": [f"{self.exported}/model"]}[self.stage]
        folders = {"mlm": [], "base": [f"results/base/{self.name}"], "finetune": [f"{self.model_run.folder}/model"]}
        return folders[self.stage]

    @property
    def fingerprints(self) -> list[str]:
        """The files that tell whether `preset` has changed, which Snakemake compares by its date only."""
        if self.stage == "base" and self.at is not None:
            return [f"{self.exported}/fingerprint.json"]
        if self.stage != "finetune":
            return [f"{folder}.json" for folder in self.preset]
        run = self.model_run
        weights = run.best if self.at is None else run.checkpoint(self.at)["weights"]
        return [f"results/base/{run.recipe['base']}.json", weights]

    @property
    def init_files(self) -> list[str]:
        """The files of a masked model: without its weights, where the chain starts from random ones."""
        if self.preset:
            return []
        files = [file for file in MODEL_FILES if self.weights == PRETRAINED or not file.endswith(".safetensors")]
        folder = f"{self.model_run.folder}/model" if self.at is None else self.exported
        return [f"{folder}/{file}" for file in files]

    def init_at(self, last: int) -> list[str]:
        """Return those of `init_files` that the segment up to step `last` reads: the weights only at first."""
        first = last == self.recipe["checkpoint_every"]
        return [file for file in self.init_files if first or not file.endswith(".safetensors")]

    @property
    def start(self) -> list[str]:
        """The weights that it starts from instead of the model's: of a chain of another task; none without `init`."""
        if "init" not in self.recipe or self.weights != PRETRAINED:
            return []
        return [Task(self.recipe["init"], self.config).chains(self.model_run, self.at)[0].checkpoint()["best"]]

    @property
    def named(self) -> dict:
        """What tells it from the other chains of its model."""
        return {"weights": self.weights, "rate": self.rate, "seed": self.seed}

    @property
    def scored(self) -> dict:
        """What the job that makes the scores of its model takes: the model; the step, where it is a checkpoint."""
        return {"model": path_of(self.model_run), **({} if self.at is None else {"step": self.at})}

    @property
    def predicting(self) -> dict:
        """What the job that predicts with the chains of a model takes of the recipe."""
        return {"key": self.key, "cpu_threads": self.config["cpu_threads"], **pick(self.recipe, *SEGMENT_KEYS)}

    def segment(self, last: int) -> dict:
        """Return the recipe of the segment that ends at step `last`, see `Run.segment`."""
        recipe, first = self.recipe, last - self.recipe["checkpoint_every"]
        curve = recipe["schedule"] | {"learning_rate": recipe["learning_rate"]}
        return {
            "key": self.key,
            "first": first,
            "last": last,
            "schedule": segment_schedule(curve, recipe["steps"], first, last),
            "seed": self.seed,
            "cpu_threads": self.config["cpu_threads"],
            **pick(recipe, *SEGMENT_KEYS),
            # Of a masked model, the files that a segment reads say it.
            **({"weights": self.weights} if self.preset else {}),
        }


@dataclass(frozen=True)
class Task:
    """A task of the config."""

    name: str
    config: Mapping  # all of it, completed

    @property
    def recipe(self) -> dict:
        """What the config says of it."""
        return self.config["evaluation"]["tasks"][self.name]

    @property
    def key(self) -> str:
        """How the config names it."""
        return f"evaluation.tasks.{self.name}"

    @property
    def folder(self) -> str:
        """Where its examples are."""
        return f"{FOLDER}/{self.name}"

    @property
    def metrics(self) -> list[str]:
        """What is measured; the first one selects."""
        return self.recipe.get("metrics", list(METRICS[self.recipe["predict"]][:1]))

    @property
    def reading(self) -> dict:
        """What the job that reads the examples takes of the recipe."""
        recipe = self.recipe
        keys = {
            "python-modules": ("modules",),
            "files": ("files", "text", "text_pair", "label"),
            "hub": ("dataset", "name", "revision", "splits", "text", "text_pair", "label"),
        }
        kept = {key: recipe[key] for key in keys[recipe["source"]] if key in recipe}
        named = self.named_splits
        held_out = {split: share for split, share in recipe["held_out"].items() if split not in named}
        if set(held_out) == {"seed"}:
            held_out = {}
        return {"key": self.key, **pick(recipe, "source", "predict"), "held_out": held_out, **kept}

    @property
    def named_splits(self) -> list[str]:
        """The splits that the source has."""
        recipe = self.recipe
        if recipe["source"] == "hub":
            return list(recipe["splits"])
        files = recipe.get("files")
        return list(files) if isinstance(files, dict) else ["train"]

    @property
    def baselines(self) -> dict:
        """What the job that makes the baselines without a model takes of the recipe."""
        names = [name for name in self.recipe["baselines"] if name != "random_weights"]
        return {"names": names, "predict": self.recipe["predict"]}

    @property
    def scoring(self) -> dict:
        """What the job that makes the scores takes of the recipe."""
        splits = self.recipe.get("splits") or self.recipe.get("files")
        same = isinstance(splits, dict) and "test" in splits and splits.get("validation") == splits["test"]
        return {
            "metrics": self.metrics,
            "title": self.recipe.get("title", self.name),
            "predict": self.recipe["predict"],
            "selected_on_test": same,
        }

    def chains(self, model: Run, at: int | None = None) -> list[TaskChain]:
        """Return the chains of a model: of its weights, then of random ones where they are a baseline.

        at  the step of the checkpoint whose weights those are; random ones are the same for all
        """
        starts = [(PRETRAINED, at)] + ([(RANDOM, None)] if "random_weights" in self.recipe["baselines"] else [])
        return [
            TaskChain(model.stage, model.name, self.config, self.name, start, float(rate), seed, step)
            for start, step in starts
            for rate in self.recipe["learning_rates"]
            for seed in self.recipe["seeds"]
        ]

    @property
    def models(self) -> list[Run]:
        """The models that are finetuned on it."""
        if "models" in self.recipe:
            known = candidates(self.config)
            return [known[path] for path in self.recipe["models"]]
        return [run for run in masked_candidates(self.config).values() if obstacle(run) is None]

    @property
    def left_out(self) -> str | None:
        """A sentence that says which models JAX cannot open, where the config names none; None where it can all."""
        if "models" in self.recipe:
            return None
        found = [run.key for run in masked_candidates(self.config).values() if obstacle(run) is not None]
        return f"{self.key} leaves out {', '.join(found)}, which JAX cannot open." if found else None


def path_of(model: Run, at: int | None = None) -> str:
    """Return the path of a model below results/, such as mlm/tiny; of a checkpoint, with its step."""
    path = model.folder.removeprefix("results/")
    return path if at is None else f"{path}/{at:08d}"


def scores_folder(task: str, model: Run, at: int | None = None) -> str:
    """Return where the scores of a model on a task are, or of its checkpoint at a step."""
    return f"{FOLDER}/{task}/{path_of(model, at)}"


def labelled_tasks(config: Mapping) -> list[Task]:
    """Return the tasks of a completed config that some model is finetuned on."""
    tasks = [Task(name, config) for name in config["evaluation"]["tasks"]]
    return [task for task in tasks if task.models]


def chains_of(config: Mapping) -> list[TaskChain]:
    """Return all chains of all tasks."""
    return [chain for task in labelled_tasks(config) for model in task.models for chain in task.chains(model)]
