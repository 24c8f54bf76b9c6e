"""The chains of checkpoints of masked models on tasks: one model on one task with one learning rate and one seed.

A chain starts from the model's weights, or from random ones.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tpulm.config.exported_models import Model
from tpulm.config.runs import Run
from tpulm.specs.artifacts import MODEL_FILES, PAD_ID, TASKS
from tpulm.specs.label_heads import PRETRAINED, exported_model, masked_model
from tpulm.specs.recipes import pick
from tpulm.specs.schedule import segment_schedule

FOLDER = f"<results>/{TASKS}"
# Keys of a task that decide what a training step computes; and those of a segment's recipe that are the task's.
STEP_KEYS = ("predict", "sequence_length", "batch_size", "optimizer", "precision", "mesh")
SEGMENT_KEYS = (*STEP_KEYS, "host_device_count")
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
    """A masked model, by stage and name, that is finetuned on a task; see the module.

    weights  PRETRAINED or RANDOM, see `tpulm.specs.label_heads`
    at       the step of the checkpoint whose weights it starts from; None for the model that the run ends with
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

    @property
    def model(self) -> Model:
        """The model that it starts from."""
        return Model(self.model_run, self.at)

    @cached_property
    def recipe(self) -> dict:
        """What the config says of the task, with the rate and seed of this chain; the model as a run has it."""
        own = self.model_run.recipe
        model = {"model": own["model"]} if "model" in own else {}
        task = self.config["evaluation"]["tasks"][self.task]
        return FIXED | task | model | {"learning_rate": self.rate, "seed": self.seed}

    @property
    def key(self) -> str:
        """How the config names the task."""
        return f"evaluation.tasks.{self.task}"

    @property
    def path(self) -> str:
        """The path of its checkpoints below results/."""
        return f"{TASKS}/{self.task}/{self.model.path}/{self.weights}-rate-{self.rate:g}-seed-{self.seed}"

    @property
    def backend(self) -> str:
        """JAX, whatever has trained the model."""
        return "jax"

    @property
    def origin(self) -> dict | None:
        """Where the model comes from, see `Run.origin`."""
        return self.model_run.origin

    @property
    def init_files(self) -> list[str]:
        """The files of its model without the weights."""
        return [file for file in self.model.files if not file.endswith(".safetensors")]

    def init_at(self, last: int) -> list[str]:
        """Return the files that the segment up to step `last` reads: the weights only where the chain starts there."""
        starts = self.weights == PRETRAINED and last == self.recipe["checkpoint_every"]
        return self.model.files if starts else self.init_files

    @property
    def needs_manifest(self) -> bool:
        """Whether only the TFRecords' manifest says how large the vocabulary of its model is."""
        return self.origin is None and "pretrained" in self.config["tokenizer"]

    @property
    def described(self) -> list[str]:
        """The config.json of a model from elsewhere, which says what a plan needs to know; none of others."""
        return [f"<results>/{self.model_run.fetched}/{MODEL_FILES[0]}"] if self.origin else []

    def plan(self) -> dict:
        """Return what a plan takes of it, as of all chains of its model on its task, see `Run.plan`.

        `described` says the rest of a model from elsewhere, and task.json how many labels there are.
        """
        kept = {"where": self.key, **pick(self.recipe, "steps", *STEP_KEYS)}
        if self.described:
            return kept
        model, size = self.model_run.recipe["model"], self.config["tokenizer"].get("vocab_size")
        config = exported_model(model, self.model_run.backend)
        found = masked_model(config | {"model_type": model["architecture"], "vocab_size": size, "pad_token_id": PAD_ID})
        return kept | {key: value for key, value in found.items() if key != "vocabulary" or not self.needs_manifest}

    @property
    def initial_weights(self) -> list[str]:
        """The weights that it starts from instead of the model's: of a chain of another task; none without `init`."""
        if "init" not in self.recipe or self.weights != PRETRAINED:
            return []
        init = self.recipe["init"]
        other = self.config["evaluation"]["tasks"][init]
        first = replace(self, task=init, rate=float(other["learning_rates"][0]), seed=other["seeds"][0])
        return [first.best]

    @property
    def named(self) -> dict:
        """What tells it from the other chains of its model."""
        return {"weights": self.weights, "rate": self.rate, "seed": self.seed}

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
        }
