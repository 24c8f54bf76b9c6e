"""The outline of a config: which models it trains and opens, on which texts and records, and the files of each.

Rules, plans, resources, the budget, publications and the report read it. No script that makes an artifact imports it,
so that no edit of it makes a result stale.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

from tpulm.config.record_sets import (
    RecordSet,
    by_folder,
    corpus_records,
    masked_records,
    phase_records,
    tuning_records,
)
from tpulm.specs.artifacts import CHECKPOINT_FILES, EXPORTED, MODEL_FILES, PAD_ID, PRUNED, SEGMENT_FILES, SNAPSHOTS
from tpulm.specs.masked_sizes import config_recipe, exported_model, opens
from tpulm.specs.phases import WHOLE_TEXT, Phase, entries_until, phase_at, phases_of, tokens_until
from tpulm.specs.recipes import JAX_KEYS, LORA_KEYS, STAGES, STEP_KEYS, given_keys, pick
from tpulm.specs.schedule import segment_schedule

# Keys of a recipe that open a finished causal model.
OPENING_KEYS = ("seed", "precision", "mesh", "layout", "host_device_count")
# Keys that limit a generated text, of which a config has at most one, and the default of the first.
LIMITS, MAX_NEW_TOKENS = ("max_new_tokens", "max_length"), 128
# Batch size at which a masked model that was not trained here is measured, and tokens that it reads without records.
MEASURED_AT_ONCE, LENGTH = 8, 128


class Vocabulary(NamedTuple):
    """A vocabulary: its name and files, tokenizer.json and, for masked models, special_tokens_map.json."""

    name: str
    files: list[str]


class Text(NamedTuple):
    """A text: its key in the config, and its section."""

    key: str
    recipe: Mapping


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model: the final model of a run, a checkpoint of it, or an external model.

    stage, name   section of the config, and name in it
    key           key of the config, such as mlm.runs.tiny
    path          below results/, such as mlm/tiny; of a checkpoint mlm/tiny/00000750
    recipe        its entry in the config
    opening       keys of the config that a job needs to open it
    export_folder  folder of a masked model in the format of Hugging Face, or preset folder of a causal one
    backend       framework that opens it: tensorflow or jax
    vocab_size    vocabulary size of a masked model; None if only its folder has it
    origin        pretrained and revision of an external masked model, or of the one that it starts from
    base          entry under base of a causal model, or of the one that it is finetuned from
    records       records that it is trained on; for an external model, measured on; None without records
    trained_on    texts of this config that it and its base model were trained on
    weights       file with the variables that were trained here; "" for none
    step          of a checkpoint; None for a final model
    """

    stage: str
    name: str
    key: str
    path: str
    recipe: Mapping
    opening: Mapping
    export_folder: str
    vocabulary: Vocabulary
    backend: str = "jax"
    vocab_size: int | None = None
    origin: Mapping | None = None
    base: Mapping = field(default_factory=dict)
    records: RecordSet | None = None
    trained_on: tuple[str, ...] = ()
    weights: str = ""
    step: int | None = None

    @property
    def identity(self) -> dict:
        """The keys that identify it in results: path of the final model, and step of a checkpoint."""
        return {"path": f"{self.stage}/{self.name}", **({} if self.step is None else {"step": self.step})}

    @property
    def job_recipe(self) -> dict:
        """The recipe of a job that opens it: its key and name, and `opening`."""
        return {"key": self.key, **self.identity, **self.opening}

    @property
    def fetch_folder(self) -> str:
        """The folder below results/ of the external masked model that it is, or starts from."""
        return f"{self.stage}/{self.name}/{'init' if 'init' in self.recipe else 'model'}"

    @property
    def sequence_length(self) -> int:
        """Tokens of a record that it reads; LENGTH without records."""
        return self.records.sequence_length if self.records else self.recipe.get("sequence_length", LENGTH)

    @property
    def files(self) -> list[str]:
        """The files of a masked model's folder."""
        return [f"{self.export_folder}/{file}" for file in MODEL_FILES]

    @property
    def preset(self) -> str:
        """The preset folder that opens a causal model: for a finetuned one, its base model's."""
        return f"<results>/base/{self.recipe['base']}/preset" if self.stage == "finetune" else self.export_folder

    @property
    def fingerprint(self) -> str:
        """The file that changes with the content of `preset`: Snakemake compares a folder by its date only."""
        return f"{self.preset}.json"

    def fields_with(self, **changes: Any) -> dict[str, Any]:
        """Return the fields of the model, with some values replaced."""
        return {part.name: getattr(self, part.name) for part in fields(Model)} | changes

    @property
    def tuned_weights(self) -> str | list[str]:
        """The file with the variables of a finetuned model, which are added to `preset`; none for other models."""
        return self.weights if self.stage == "finetune" else []


@dataclass(frozen=True, kw_only=True)
class Run(Model):
    """A model that is trained here, and how. A model on a task has one run for each chain of checkpoints.

    step_keys    keys of the recipe that decide what a training step computes
    more_recipe  other keys in the recipe of a segment, with their values
    init         files of the masked model that it starts from; init_config  those that later segments read, too
    start        weights of another run that it starts from
    forgotten    records of the corpus, which measure what finetuning has forgotten; None without a corpus
    described    keys of a plan in addition to the step's, such as sizes of the model; None if it cannot be planned
    plan_inputs  files that a plan reads: manifest, init (config.json of a model), task (labels)
    task         that the model is finetuned on; "" for none
    variant      on a task: weights, rate and seed, which differ from those of the model's other runs
    """

    step_keys: tuple[str, ...]
    more_recipe: Mapping
    init: list[str] = field(default_factory=list)
    init_config: list[str] = field(default_factory=list)
    start: list[str] = field(default_factory=list)
    forgotten: RecordSet | None = None
    described: Mapping | None = field(default_factory=dict)
    plan_inputs: Mapping[str, str | list[str]] = field(default_factory=lambda: {"manifest": [], "init": [], "task": []})
    task: str = ""
    variant: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The folder of its artifacts."""
        return f"<results>/{self.path}"

    @cached_property
    def phases(self) -> list[Phase]:
        """Its phases; one, if the config has none."""
        return phases_of(self.recipe, self.sequence_length)

    def recipe_at(self, last: int) -> Mapping:
        """Return its recipe in the phase of the segment that ends at `last`."""
        return phase_at(self.phases, last).recipe

    @cached_property
    def phase_records(self) -> dict[tuple[str, int], RecordSet]:
        """The records that its phases read, and those that measure sources, by source and length."""
        return phase_records(self.records, self.phases) if self.records and self.recipe.get("phases") else {}

    def mixture_at(self, last: int) -> list[str]:
        """Return the manifests of the records that the segment up to `last` mixes; none if it reads the run's own."""
        phase = phase_at(self.phases, last)
        sets = [self.phase_records[source, phase.sequence_length] for source in phase.shares if self.phase_records]
        return [records.manifest for records in sets] if entries_until(self.phases, last) else []

    @property
    def by_source(self) -> dict[str, RecordSet]:
        """The records that measure the loss of each source that a phase names, by name of the source."""
        return {
            source: records
            for (source, _), records in self.phase_records.items()
            if source != WHOLE_TEXT and "validation" in records.shards_here
        }

    @cached_property
    def segment_ends(self) -> list[int]:
        """The last step of each segment."""
        every = self.recipe["checkpoint_every"]
        return list(range(every, self.recipe["steps"] + 1, every))

    def checkpoint(self, step: int | None = None) -> dict[str, str]:
        """Return the files of the checkpoint at `step`, by default the last one, by their names."""
        return checkpoint_of(self.path, self.recipe["steps"] if step is None else step)

    @property
    def state(self) -> str:
        """The state.json of its last checkpoint, which also has the step of the final model."""
        return self.checkpoint()["state"]

    def at(self, step: int) -> Model:
        """Return the model as it was at a checkpoint."""
        path = f"{self.path}/{step:08d}"
        changes = {"path": path, "step": step, "weights": self.checkpoint(step)["weights"]}
        changes |= {"export_folder": f"{EXPORTED}/{path}/{os.path.basename(self.export_folder)}"}
        return Model(**self.fields_with(**changes))

    def snapshots(self, step: int) -> str:
        """Return the folder of the snapshots of the segment that ends at `step`."""
        return f"{self.folder}/{SNAPSHOTS}/{step:08d}"

    def in_every_checkpoint(self, file: str) -> list[str]:
        """Return this file of every checkpoint, in order."""
        return [f"{self.folder}/checkpoints/{last:08d}/{file}" for last in self.segment_ends]

    def next_state(self, step: int) -> str:
        """Return the state.json of the checkpoint after `step`."""
        return self.checkpoint(step + self.recipe["checkpoint_every"])["state"]

    def before(self, last: int) -> dict[str, str]:
        """Return the files of the checkpoint that the segment up to `last` resumes from; none for the first segment."""
        first = last - self.recipe["checkpoint_every"]
        return self.checkpoint(first) if first else {}

    def init_at(self, last: int) -> list[str]:
        """Return the files of the masked model that the segment up to `last` reads."""
        return self.init_config if self.before(last) else self.init

    def start_at(self, last: int) -> list[str]:
        """Return the weights of another run that the segment up to `last` starts from: only the first one does."""
        return [] if self.before(last) else self.start

    @cached_property
    def by_phase(self) -> list["Run"]:
        """A run for each phase that does what this one does in it, for what depends on the step: memory and plans."""
        return [self.alone(phase) for phase in self.phases]

    def alone(self, phase: Phase) -> "Run":
        """Return the run of a phase."""
        recipe = {key: value for key, value in phase.recipe.items() if key != "phases"}
        length, described = phase.sequence_length, self.described
        if described and "sequence_length" in described:
            described = {**described, "sequence_length": length}
        records = replace(self.records, sequence_length=length) if self.records else None
        steps = {"steps": phase.until - phase.first}
        return replace(self, recipe=recipe | steps, records=records, described=described)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that the model reads in a step."""
        return self.recipe["batch_size"] * self.sequence_length

    @property
    def tokens_at(self) -> dict[int, int]:
        """The tokens that it has read at each checkpoint."""
        return {last: tokens_until(self.segment(last), last, self.sequence_length) for last in self.segment_ends}

    @property
    def record_sets(self) -> list[RecordSet]:
        """All records that it reads."""
        return [records for records in (self.records, self.forgotten, *self.phase_records.values()) if records]

    @property
    def prune_marks(self) -> list[str]:
        """The marks of the checkpoints that keep_checkpoints deletes: never the last one, which exports read."""
        period = checkpoint_period(self.recipe["keep_checkpoints"], len(self.segment_ends))
        marks = self.in_every_checkpoint(PRUNED)[:-1]
        return [mark for number, mark in enumerate(marks, start=1) if number % period]

    def segment(self, last: int) -> dict:
        """Return the recipe of the segment that ends at step `last`, with its part of the schedule.

        It lacks the total number of steps, so that a longer run keeps its segments, and patience where that cannot have
        run out: the first evaluation is always the best so far.
        """
        recipe, phases = self.recipe_at(last), entries_until(self.phases, last)
        first = last - recipe["checkpoint_every"]
        curve = recipe["schedule"] | {"learning_rate": recipe["learning_rate"]}
        patience, evaluations = recipe["patience"], first // recipe["checkpoint_every"]
        return {
            "first": first,
            "last": last,
            "schedule": segment_schedule(curve, recipe["steps"], first, last),
            **pick(recipe, "host_device_count", *self.step_keys),
            **self.more_recipe,
            **({"evaluate_every": recipe["evaluate_every"]} if recipe["evaluate_every"] else {}),
            **({"patience": patience} if patience and evaluations > patience else {}),
            **({"phases": phases} if phases else {}),
        }

    def plan_recipe(self) -> dict:
        """Return the recipe of the run's plan: the keys that decide its step, and the number of steps.

        A run on TensorFlow is planned on JAX, see `as_on_jax`. Without a plan, there are no steps. With phases, it has
        the recipe of each, as `phases`, with its first and last step.
        """
        where = {"where": self.key} | ({"backend": self.backend} if self.backend != "jax" else {})
        if self.described is None:
            return where
        loss = self.records.loss if self.records else {}
        phases = [
            {"first": phase.first, "until": phase.until, **run.plan_recipe()}
            for phase, run in zip(self.phases, self.by_phase, strict=True)
            if "phases" in self.recipe
        ]
        step = {**pick(self.recipe, "steps", *self.step_keys), **loss, **self.described}
        return {**where, **step, **({"phases": phases} if phases else {})}


def checkpoint_of(path: str, step: int) -> dict[str, str]:
    """Return the files of a checkpoint by their names; path  of the run below results/."""
    return {name: f"<results>/{path}/checkpoints/{step:08d}/{file}" for name, file in CHECKPOINT_FILES.items()}


def segment_outputs(folder: str) -> dict[str, str]:
    """Return the outputs of the rule that trains a segment, by name, for a run's folder or a pattern of it."""
    files = CHECKPOINT_FILES | SEGMENT_FILES
    return {name: f"{folder}/checkpoints/{{step}}/{file}" for name, file in files.items()}


def checkpoint_period(keep: str, segments: int) -> int:
    """Return N if every Nth checkpoint of a run, and the last, keeps its weights.

    keep      keep_checkpoints of the run: all, last or every N
    segments  how many checkpoints the run has
    """
    return {"all": 1, "last": segments}.get(keep) or period_of(keep)


def period_of(period: str) -> int:
    """Return N of `every N`."""
    return int(period.removeprefix("every "))


class Outline:
    """The models that a completed config trains and opens.

    texts    by folder below results/
    models   all models by path, in each stage runs before external models
    runs     models that are trained here by path, in the order of the stages
    records  all sets of records by folder below results/
    """

    def __init__(self, config: Mapping):
        self.config = config
        self.cpu = {"cpu_threads": config["cpu_threads"]}
        self.texts = {"corpus": Text("corpus", config["corpus"])} if "corpus" in config else {}
        if "text" in config["finetune"]:
            self.texts["finetune-text"] = Text("finetune.text", config["finetune"]["text"])
        self.masked_records = masked_records(config) if "tfrecords" in config else None
        bases = {name: self.base_model(name, recipe) for name, recipe in config["base"].items()}
        models = [self.masked_model(name, recipe) for name, recipe in config["mlm"]["runs"].items()]
        models += bases.values()
        models += [self.finetuned(name, run, bases[run["base"]]) for name, run in config["finetune"]["runs"].items()]
        models.sort(key=lambda model: (STAGES.index(model.stage), not model.weights))
        self.models: dict[str, Model] = {model.path: model for model in models}
        self.runs: dict[str, Run] = {model.path: model for model in models if isinstance(model, Run)}
        sets = [self.masked_records] if self.masked_records else []
        sets += [records for run in self.runs.values() for records in run.record_sets]
        self.records = by_folder(sets)

    def of_stage(self, stage: str) -> dict[str, Model]:
        """Return the models of a stage by name."""
        return {model.name: model for model in self.models.values() if model.stage == stage}

    def runs_of(self, stage: str) -> dict[str, Run]:
        """Return the runs of a stage by name."""
        return {run.name: run for run in self.runs.values() if run.stage == stage}

    @property
    def sampled_bases(self) -> list[str]:
        """Base models trained here that continue the prompts alone, not beside a finetuned model."""
        finetuned = {run.recipe["base"] for run in self.runs_of("finetune").values()}
        prompts = self.config["prompts"]["generate"]
        return [name for name in self.runs_of("base") if prompts and name not in finetuned]

    def opener(self, model: Model) -> Model:
        """Return the model whose resources a job takes to open a model: for a fetched base, a run that tunes it."""
        tuned = [run for run in self.runs.values() if run.stage == "finetune" and run.base is model.recipe]
        return min(tuned, key=lambda run: run.name) if "preset" in model.recipe and tuned else model

    def common(self, stage: str, name: str, recipe: Mapping) -> dict[str, Any]:
        """Return the fields that models of all stages have."""
        path = f"{stage}/{name}"
        return {
            "stage": stage,
            "name": name,
            "key": f"{stage}.{name}" if stage == "base" else f"{stage}.runs.{name}",
            "path": path,
            "recipe": recipe,
            "export_folder": f"<results>/{path}/{'preset' if stage == 'base' else 'model'}",
            "backend": recipe.get("backend", "jax"),
            "weights": checkpoint_of(path, recipe["steps"])["best"] if "steps" in recipe else "",
        }

    def masked_model(self, name: str, recipe: Mapping) -> Model:
        """Return the model of an entry of mlm.runs."""
        on_jax, records = recipe["backend"] == "jax", self.masked_records
        common, source = self.common("mlm", name, recipe), recipe.get("init", recipe)
        spread = ("batch_size", "microbatches", "mesh", "layout", "host_device_count") if on_jax else ()
        opening = pick({"batch_size": MEASURED_AT_ONCE, **recipe}, *spread, *determinism_keys(recipe))
        measured = "steps" in recipe or (records and same_origin(recipe, self.config["tokenizer"]))
        folder = "<results>/tokenizer" if measured else common["export_folder"]
        files = [f"{folder}/tokenizer.json", f"{folder}/special_tokens_map.json"]
        common |= {
            "opening": opening | {"backend": recipe["backend"]} | self.cpu,
            "vocabulary": Vocabulary("tokenizer" if measured else f"mlm-{name}", files),
            "vocab_size": self.config.get("tokenizer", {}).get("vocab_size"),
            "origin": {key: source.get(key) for key in ("pretrained", "revision")} if "pretrained" in source else None,
            "records": records if measured else None,
        }
        if "steps" not in recipe:
            return Model(**common)
        assert records is not None  # by the schema
        init = [f"<results>/mlm/{name}/init/{file}" for file in MODEL_FILES] if "init" in recipe else []
        sizes = {} if on_jax else as_on_jax(recipe)
        has_plan, unknown = bool(on_jax or sizes), common["vocab_size"] is None
        described: dict[str, Any] = {"sequence_length": records.sequence_length, "packing": records.packing}
        described |= pick(recipe, "mesh", "microbatches") | {"model": sizes} if sizes else {}
        if not unknown:
            described |= {"vocabulary": {"size": common["vocab_size"], "pad": PAD_ID}}
        manifest: str | list[str] = records.manifest if has_plan and unknown else []
        return Run(
            **common,
            trained_on=("corpus",),
            step_keys=step_keys(recipe, *(() if init else ("model",)), "masking"),
            more_recipe=records.loss | self.cpu,
            init=init,
            init_config=init[:1],
            described=described if has_plan else None,
            plan_inputs={"manifest": manifest, "init": init[:1] if on_jax else [], "task": []},
        )

    def base_model(self, name: str, recipe: Mapping) -> Model:
        """Return the model of an entry of base."""
        common = self.common("base", name, recipe)
        opening = pick(recipe, *OPENING_KEYS, *determinism_keys(recipe)) | self.cpu
        vocabulary = Vocabulary(f"base-{name}", [f"<results>/base/{name}/tokenizer.json"])
        common |= {"opening": opening, "vocabulary": vocabulary, "base": recipe}
        if "model" not in recipe:
            return Model(**common)
        records = corpus_records(self.config, name, recipe["sequence_length"])
        return Run(
            **common,
            records=records,
            trained_on=("corpus",),
            step_keys=step_keys(recipe, "sequence_length", "packing", "model"),
            more_recipe=records.loss | self.cpu,
            described=pick(recipe, "vocab_size"),
        )

    def finetuned(self, name: str, recipe: Mapping, base: Model) -> Run:
        """Return the run of an entry of finetune.runs."""
        before = recipe.get("init")
        steps = self.config["finetune"]["runs"][before]["steps"] if before else 0
        records = tuning_records(self.config, recipe)
        method = ("method", *LORA_KEYS) if recipe["method"] == "lora" else ("method",)
        return Run(
            **self.common("finetune", name, recipe),
            opening=pick(recipe, *method, *OPENING_KEYS, *determinism_keys(recipe)) | self.cpu,
            vocabulary=base.vocabulary,
            base=base.recipe,
            records=records,
            trained_on=("finetune-text", *base.trained_on),
            step_keys=step_keys(recipe, "sequence_length", "packing", *method),
            more_recipe=records.loss | self.cpu,
            start=[checkpoint_of(f"finetune/{before}", steps)["best"]] if before else [],
            forgotten=(
                corpus_records(self.config, recipe["base"], recipe["sequence_length"])
                if "corpus" in self.config
                else None
            ),
            described={"base": given_keys(base.recipe, "model", "vocab_size", "preset", "revision")},
        )


def step_keys(recipe: Mapping, *more_keys: str) -> tuple[str, ...]:
    """Return the keys of a run's recipe that decide its step; some only if they differ from the default."""
    on_jax = recipe.get("backend", "jax") == "jax"
    keys = [*STEP_KEYS, *more_keys, *(["z_loss"] if recipe.get("z_loss") else [])]
    if not on_jax:
        return (*keys, *(["microbatches"] if recipe["microbatches"] > 1 else []))
    return (*keys, *JAX_KEYS, *determinism_keys(recipe))


def determinism_keys(recipe: Mapping) -> tuple[str, ...]:
    """Return the key `determinism` if a run does not promise its bytes, otherwise no key."""
    return ("determinism",) if recipe["determinism"] == "steps" else ()


def as_on_jax(recipe: Mapping) -> dict:
    """Return the sizes of a masked model on TensorFlow as JAX has them.

    Empty if JAX does not train such a model, or if the run starts from another one, which has the sizes.
    """
    if "model" not in recipe:
        return {}
    config = exported_model(recipe["model"], "tensorflow")
    return config_recipe(config) if opens(config) else {}


def same_origin(first: Mapping, second: Mapping) -> bool:
    """Return whether two sections of the config name the same folder, or the same commit of the hub."""
    places = [section.get("pretrained") and os.path.normpath(section["pretrained"]) for section in (first, second)]
    return bool(places[0]) and places[0] == places[1] and first.get("revision") == second.get("revision")


def sampling_of(config: Mapping) -> dict:
    """Return the keys under generation that its sampler reads, and a limit."""
    recipe = dict(config["generation"])
    if not given_keys(recipe, *LIMITS):
        recipe["max_new_tokens"] = MAX_NEW_TOKENS
    keys = {"greedy": (), "top_k": ("k", "temperature", "seed"), "top_p": ("p", "temperature", "seed")}
    return pick(recipe, "sampler", *given_keys(recipe, *LIMITS), "samples", *keys[recipe["sampler"]])
