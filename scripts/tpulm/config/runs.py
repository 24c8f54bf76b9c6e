"""Training runs: what the config says about each, and everything that follows from it before a job starts.

Trainers, plans, resources, the budget, notes and the report take what they need to know of a run from here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tpulm.config.record_sets import RecordSet, corpus_records, masked_records, tuning_records
from tpulm.specs.artifacts import CHECKPOINT_FILES, MODEL_FILES, PAD_ID, PRUNED, SEGMENT_FILES, SNAPSHOTS
from tpulm.specs.label_heads import exported_model, without_either
from tpulm.specs.masked_sizes import config_recipe, opens
from tpulm.specs.recipes import JAX_KEYS, LORA_KEYS, STAGE_KEYS, STAGES, STEP_KEYS, pick
from tpulm.specs.schedule import segment_schedule

# What of a finished finetuning run opens its model again.
OPENING_KEYS = ("seed", "precision", "mesh", "layout", "host_device_count")
# Records that are measured at once, of a model that was not trained here.
MEASURED_AT_ONCE = 8


def checkpoint_period(keep: str, segments: int) -> int:
    """Return N where every Nth checkpoint of a run, and the last, keeps its weights.

    keep      keep_checkpoints of the run: all, last or every N
    segments  how many checkpoints the run has
    """
    return {"all": 1, "last": segments}.get(keep) or int(keep.removeprefix("every "))


@dataclass(frozen=True)
class Run:
    """A model that is trained here: an entry under mlm.runs, base (with `model`) or finetune.runs.

    Also a masked model that is only asked and measured; of its properties, those from `checkpoint` on mean nothing.
    """

    stage: str
    name: str
    config: Mapping  # all of it, completed

    @cached_property
    def recipe(self) -> dict:
        """What the config says of this run."""
        section = self.config[self.stage]
        return section[self.name] if self.stage == "base" else section["runs"][self.name]

    @property
    def key(self) -> str:
        """How the config names the run, such as mlm.runs.tiny."""
        return f"base.{self.name}" if self.stage == "base" else f"{self.stage}.runs.{self.name}"

    @property
    def path(self) -> str:
        """Its path below results/, such as mlm/tiny."""
        return f"{self.stage}/{self.name}"

    @property
    def folder(self) -> str:
        """Where its artifacts are."""
        return f"<results>/{self.path}"

    @property
    def backend(self) -> str:
        """The framework that trains it: tensorflow or jax."""
        return self.recipe.get("backend", "jax")

    @property
    def origin(self) -> dict | None:
        """What it takes of a masked model from elsewhere, all of it or the start: pretrained, revision; or None."""
        source = self.recipe.get("init", self.recipe)
        return {key: source.get(key) for key in ("pretrained", "revision")} if "pretrained" in source else None

    @property
    def fetched(self) -> str:
        """The folder below results/ of the model that it takes from elsewhere."""
        return f"{self.stage}/{self.name}/{'init' if 'init' in self.recipe else 'model'}"

    @property
    def init_files(self) -> list[str]:
        """The files of the masked model whose weights it starts from; none for a run from scratch."""
        if self.stage != "mlm" or "init" not in self.recipe:
            return []
        return [f"<results>/{self.fetched}/{file}" for file in MODEL_FILES]

    def init_at(self, last: int) -> list[str]:
        """Return those of `init_files` that the segment up to step `last` reads: after the first, the sizes only."""
        return self.init_files if last == self.recipe["checkpoint_every"] else self.init_files[:1]

    @property
    def described(self) -> list[str]:
        """The config.json of the masked model that it starts from, which says what a plan needs to know; or none."""
        return self.init_files[:1] if self.backend == "jax" else []

    @property
    def initial_weights(self) -> list[str]:
        """The weights of another finetuning run that this one starts from: its best ones; none without `init`."""
        if self.stage != "finetune" or "init" not in self.recipe:
            return []
        return [Run(self.stage, self.recipe["init"], self.config).best]

    @property
    def evaluation_params(self) -> dict:
        """What the evaluation of a masked model takes of the recipe."""
        keys = ("batch_size", "microbatches", "mesh", "layout", "host_device_count") if self.backend == "jax" else ()
        recipe = {"batch_size": MEASURED_AT_ONCE} | self.recipe
        kept = pick(recipe, *keys, *self.determinism_keys)
        return kept | {"backend": self.backend, "cpu_threads": self.config["cpu_threads"]}

    @cached_property
    def segment_ends(self) -> list[int]:
        """The last step of each segment."""
        every = self.recipe["checkpoint_every"]
        return list(range(every, self.recipe["steps"] + 1, every))

    def checkpoint(self, step: int | None = None) -> dict[str, str]:
        """Return the files of the checkpoint at `step`, by default the last one of the run, by their names."""
        step = self.recipe["steps"] if step is None else step
        return {name: f"{self.folder}/checkpoints/{step:08d}/{file}" for name, file in CHECKPOINT_FILES.items()}

    @property
    def best(self) -> str:
        """The weights of its model: those of the checkpoint with the lowest loss on the validation split."""
        return self.checkpoint()["best"]

    @property
    def state(self) -> str:
        """The file that says how it was trained, and which step its model is of."""
        return self.checkpoint()["state"]

    def snapshots(self, step: int) -> str:
        """Return the folder of the snapshots of the segment that ends at `step`."""
        return f"{self.folder}/{SNAPSHOTS}/{step:08d}"

    def in_every_checkpoint(self, file: str) -> list[str]:
        """Return this file of every checkpoint, in order."""
        return [f"{self.folder}/checkpoints/{last:08d}/{file}" for last in self.segment_ends]

    def next_state(self, step: int) -> str:
        """Return the state.json of the checkpoint after `step`."""
        return self.checkpoint(step + self.recipe["checkpoint_every"])["state"]

    @property
    def tokens_per_step(self) -> int:
        """Tokens that it reads in a step."""
        section = self.config["tfrecords"] if self.stage == "mlm" else self.recipe
        return self.recipe["batch_size"] * section["sequence_length"]

    @property
    def pruned(self) -> list[str]:
        """The marks of the checkpoints that keep_checkpoints lets go: never the last one, which exports read."""
        period = checkpoint_period(self.recipe["keep_checkpoints"], len(self.segment_ends))
        marks = self.in_every_checkpoint(PRUNED)[:-1]
        return [mark for number, mark in enumerate(marks, start=1) if number % period]

    @property
    def method_keys(self) -> tuple[str, ...]:
        """The keys that say how a base model is tuned: the method, and those of LoRA."""
        if self.stage != "finetune":
            return ()
        return ("method", *LORA_KEYS) if self.recipe["method"] == "lora" else ("method",)

    @property
    def determinism_keys(self) -> tuple[str, ...]:
        """The key that says that the bytes of a run are not promised; none where they are, as without the key."""
        return ("determinism",) if self.recipe["determinism"] == "steps" else ()

    @property
    def z_loss_keys(self) -> tuple[str, ...]:
        """The key of the z-loss; none where there is no z-loss, as without the key."""
        return ("z_loss",) if self.recipe.get("z_loss") else ()

    @property
    def backend_keys(self) -> tuple[str, ...]:
        """The keys that say how the backend computes a step; on TensorFlow, microbatches where there are several."""
        if self.backend == "jax":
            return JAX_KEYS
        return ("microbatches",) if self.recipe["microbatches"] > 1 else ()

    @property
    def step_keys(self) -> tuple[str, ...]:
        """The keys of the recipe that decide what a training step computes."""
        own = [key for key in STAGE_KEYS[self.stage] if key != "model" or not self.init_files]
        return (*STEP_KEYS, *own, *self.method_keys, *self.z_loss_keys, *self.backend_keys, *self.determinism_keys)

    def segment(self, last: int) -> dict:
        """Return the recipe of the segment that ends at step `last`, with its part of the schedule.

        The total number of steps is not in it, so that a longer run keeps the segments it had; nor is patience where
        it cannot have run out: the first evaluation is always the best so far.
        """
        recipe = self.recipe
        first = last - recipe["checkpoint_every"]
        curve = recipe["schedule"] | {"learning_rate": recipe["learning_rate"]}
        patience = recipe["patience"]
        evaluations = first // recipe["checkpoint_every"]
        return {
            "first": first,
            "last": last,
            "schedule": segment_schedule(curve, recipe["steps"], first, last),
            **pick(recipe, "host_device_count", *self.step_keys),
            **self.records.loss,
            "cpu_threads": self.config["cpu_threads"],
            **({"evaluate_every": recipe["evaluate_every"]} if recipe["evaluate_every"] else {}),
            **({"patience": patience} if patience and evaluations > patience else {}),
        }

    def plan(self) -> dict:
        """Return what a plan takes of the run: what decides its step, and how many of them there are.

        Of a run on TensorFlow, the step on JAX of the same model; without steps where there is none, see
        `model_on_jax`.
        """
        where: dict = {"where": self.key}
        if self.backend == "tensorflow":
            where |= {"backend": "tensorflow"}
            if not self.model_on_jax:
                return where
            where |= pick(self.recipe, "mesh", "microbatches")
        kept = where | pick(self.recipe, "steps", *self.step_keys) | self.records.loss
        if self.backend == "tensorflow":
            kept |= {"model": self.model_on_jax}
        if self.stage == "base":
            return kept | pick(self.recipe, "vocab_size")
        if self.stage == "finetune":
            base, keys = self.base, ("model", "vocab_size", "preset", "revision")
            return kept | {"base": {key: base[key] for key in keys if key in base}}
        kept |= pick(self.config["tfrecords"], "sequence_length", "packing")
        if self.needs_manifest:
            return kept
        return kept | {"vocabulary": {"size": self.config["tokenizer"]["vocab_size"], "pad": PAD_ID}}

    @property
    def model_on_jax(self) -> dict | None:
        """The sizes of a masked model on TensorFlow as one on JAX.

        None where JAX does not train such a model, and where the run starts from another one, which says the sizes.
        """
        if "model" not in self.recipe:
            return None
        model = exported_model(self.recipe["model"], self.backend)
        config = {**model, "model_type": model["architecture"]}
        return without_either(config_recipe(config)) if opens(config) else None

    @property
    def needs_manifest(self) -> bool:
        """Whether only the TFRecords' manifest says how large the vocabulary is."""
        on_jax = self.backend == "jax" or self.model_on_jax
        return self.stage == "mlm" and bool(on_jax) and "pretrained" in self.config["tokenizer"]

    @property
    def base(self) -> dict:
        """The base model that a finetuning run starts from: an entry under base."""
        return self.config["base"][self.recipe["base"]]

    @property
    def records(self) -> RecordSet:
        """The records that it is trained on."""
        if self.stage == "mlm":
            return masked_records(self.config)
        if self.stage == "base":
            return corpus_records(self.config, self.name, self.recipe["sequence_length"])
        return tuning_records(self.config, self.recipe)

    @property
    def corpus_records(self) -> RecordSet:
        """The records of the corpus by which a finetuning run is measured, too: what has it forgotten?"""
        return corpus_records(self.config, self.recipe["base"], self.recipe["sequence_length"])

    @property
    def record_sets(self) -> list[RecordSet]:
        """All records that it reads."""
        return [self.records, self.corpus_records] if self.stage == "finetune" else [self.records]

    def loading_params(self, *keys: str) -> dict:
        """Return what it takes to open a finished finetuning run, and these keys of its recipe."""
        kept = pick(self.recipe, *self.method_keys, *OPENING_KEYS, *self.determinism_keys, *keys)
        return kept | {"cpu_threads": self.config["cpu_threads"]}

    @property
    def hub_base(self) -> dict:
        """Name and revision on the Hugging Face hub of the base model; the name is None for one from elsewhere."""
        preset = self.base.get("preset", "")
        name = preset.removeprefix("hf://") if preset.startswith("hf://") else None
        return {"hub_name": name, "hub_revision": self.base.get("revision")}


def runs_of(config: Mapping) -> list[Run]:
    """Return every run that a completed config trains, in the order of the stages."""
    names = {
        "mlm": [name for name, recipe in config["mlm"]["runs"].items() if "pretrained" not in recipe],
        "base": [name for name, recipe in config["base"].items() if "model" in recipe],
        "finetune": config["finetune"]["runs"],
    }
    return [Run(stage, name, config) for stage in STAGES for name in names[stage]]


def record_sets_of(config: Mapping, runs: Iterable[Run]) -> dict[str, RecordSet]:
    """Return every set of records that a completed config names, by its folder below results/."""
    found = [masked_records(config)] if "tfrecords" in config else []
    found += [records for run in runs for records in run.record_sets]
    return {records.folder: records for records in found}


def by_stage(runs: Iterable[Run]) -> dict[str, dict[str, Run]]:
    """Return runs by stage and name."""
    found: dict[str, dict[str, Run]] = {stage: {} for stage in STAGES}
    for run in runs:
        found[run.stage][run.name] = run
    return found


def segment_outputs(folder: str) -> dict[str, str]:
    """Return the outputs of the rule that trains a segment, by name, for a run's folder or a pattern of it."""
    files = CHECKPOINT_FILES | SEGMENT_FILES
    return {name: f"{folder}/checkpoints/{{step}}/{file}" for name, file in files.items()}
