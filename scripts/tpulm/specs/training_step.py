"""The description of a training step on JAX, from which both the trainer and the plan are built.

Pure Python: dtypes are strings, and nothing here imports numpy or JAX.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from tpulm.core.errors import UserError
from tpulm.specs.causal_families import constructor
from tpulm.specs.classification_heads import NUMBER, ClassificationHead
from tpulm.specs.masked_sizes import sizes_of
from tpulm.specs.recipes import determinism_of
from tpulm.specs.record_arrays import Arrays, causal_arrays, labelled_arrays, masked_arrays, predictions_per_record


def determinism_metrics(recipe: Mapping) -> dict:
    """Return the metrics of a run whose bytes may differ when it is repeated, otherwise {}."""
    if determinism_of(recipe) == "bytes":
        return {}
    return {"determinism": recipe["determinism"], "bytes_promised": False}


@dataclass(frozen=True)
class MaskedArchitecture:
    """A masked language model that is built.

    sizes            all sizes by transformers' names
    vocabulary_size, pad_id   of the vocabulary
    name             of its architecture, see tpulm.specs.masked_sizes
    """

    sizes: Mapping[str, Any]
    vocabulary_size: int
    pad_id: int
    name: str = "roberta"


@dataclass(frozen=True)
class CausalArchitecture:
    """A causal language model that is built.

    family           keras-hub's class of its backbone, such as GemmaBackbone
    sizes            arguments of the class without vocabulary_size
    vocabulary_size  of the vocabulary
    """

    family: str
    sizes: Mapping[str, Any]
    vocabulary_size: int


@dataclass(frozen=True)
class Preset:
    """A causal language model that is loaded.

    name      a folder; for a plan also a name that keras-hub knows or a handle, at `revision`
    revision  commit of an hf:// handle, otherwise None
    """

    name: str
    revision: str | None = None


@dataclass(frozen=True)
class ModelSpec:
    """The model of a run, how it is sharded, and which variables are trained.

    source      architecture from which it is built, or preset from which it is loaded
    where       config key of the run, such as base.small, for messages
    mesh        devices along the axes batch and model; one may be -1, for all that are left
    precision   float32, mixed_bfloat16 (variables float32, arithmetic bfloat16) or bfloat16 (both)
    seed        of new weights and of dropout
    segments    whether it separates the documents of a record by segment ids
    full        whether it reads only records that are one document without padding, as those of `packing: concat`
    layout      mesh axes by regular expressions, which take precedence over the layout map
    determinism bytes, or steps: faster kernels whose bytes may differ from run to run
    method      lora or full for a finetuning run; otherwise None
    rank        of LoRA's two matrices, whose product times alpha / rank is added; None without LoRA
    targets     layers that LoRA adapts, see `tpulm.specs.causal_families.TARGETS`
    base_precision   type of the weights that LoRA does not train; None for that of `precision`
    """

    source: MaskedArchitecture | CausalArchitecture | Preset
    where: str
    mesh: tuple[int, int]
    precision: str
    seed: int
    segments: bool = False
    full: bool = False
    layout: Mapping[str, list] = field(default_factory=dict)
    determinism: str = "bytes"
    method: str | None = None
    rank: int | None = None
    alpha: float | None = None
    targets: tuple[str, ...] = ()
    base_precision: str | None = None

    @classmethod
    def of(cls, stage: str, where: str, recipe: Mapping) -> Self:
        """Return the model of a recipe.

        The recipe has mesh and precision; seed, packing, layout, determinism, method and the keys of LoRA are optional.
        An mlm run also has model and vocabulary (size, pad); other runs model and vocab_size, or preset and optionally
        revision, which a finetuning run has in `base`.
        Raises UserError, naming the key, for sizes that models on JAX cannot have.
        """
        common: dict[str, Any] = {
            "where": where,
            "mesh": tuple(recipe["mesh"]),
            "precision": recipe["precision"],
            "seed": recipe.get("seed", 0),
            "segments": recipe.get("packing") == "segments",
            "layout": recipe.get("layout", {}),
            "determinism": determinism_of(recipe),
        }
        if stage == "mlm":
            sizes, vocabulary = sizes_of(recipe["model"], f"{where}.model"), recipe["vocabulary"]
            name = recipe["model"]["architecture"]
            return cls(MaskedArchitecture(sizes, vocabulary["size"], vocabulary["pad"], name), **common)
        base = recipe["base"] if stage == "finetune" else recipe
        if stage == "finetune":
            common |= {"method": recipe["method"]}
            if recipe["method"] == "lora":
                common |= adapters_of(recipe)
        if "model" in base:
            return cls(CausalArchitecture(*constructor(base["model"]), base["vocab_size"]), **common)
        return cls(Preset(str(base["preset"]), base.get("revision")), **common)

    @property
    def masked(self) -> MaskedArchitecture:
        """The architecture of a masked model. Raises ValueError for another model."""
        if not isinstance(self.source, MaskedArchitecture):
            raise ValueError(f"{self.where} is not a masked model")
        return self.source

    @property
    def causal(self) -> CausalArchitecture:
        """The architecture of a causal model that is built. Raises ValueError for another model."""
        if not isinstance(self.source, CausalArchitecture):
            raise ValueError(f"{self.where} is not a causal model that is built")
        return self.source

    @property
    def preset(self) -> str:
        """Folder or name of the preset from which the model is loaded. Raises ValueError for one that is built."""
        if not isinstance(self.source, Preset):
            raise ValueError(f"{self.where} is built, not loaded from a preset")
        return self.source.name

    @property
    def only_lora(self) -> bool:
        """Whether LoRA's own variables are the only trainable ones."""
        return self.method == "lora"


def adapters_of(recipe: Mapping) -> dict[str, Any]:
    """Return the settings of LoRA in a recipe by the fields of `ModelSpec`, with the config's defaults."""
    rank, alpha = recipe["rank"], recipe.get("alpha")
    return {
        "rank": rank,
        "alpha": float(rank if alpha is None else alpha),
        "targets": tuple(recipe.get("targets", ("query", "value"))),
        "base_precision": recipe.get("base_precision"),
    }


@dataclass(frozen=True)
class TrainingStep:
    """A training step: a model, and the work of one call of its compiled program.

    batch_size           records of the global batch
    sequence_length      tokens of a record that the model reads
    microbatches         equal parts of the global batch that are computed one after another (gradient accumulation)
    steps_per_execution  steps that one dispatch of the program runs
    remat                whether blocks recompute their activations in the backward pass (gradient checkpointing)
    optimizer            name and arguments, see `tpulm.models.optimizers.make_optimizer`
    packing              of the records: concat, segments or pad
    responses            whether a causal model predicts the tokens of responses only
    z_loss               weight of the squared logarithm of the softmax's divisor in the loss of a masked model
    masking              of a masked model: mlm_probability, mask_replace_prob, random_replace_prob; otherwise None
    head                 classification head; None without one
    """

    model: ModelSpec
    batch_size: int
    sequence_length: int
    microbatches: int
    steps_per_execution: int
    remat: bool
    optimizer: Mapping[str, Any]
    packing: str
    responses: bool = False
    masking: Mapping[str, float] | None = None
    z_loss: float = 0.0
    head: ClassificationHead | None = None

    @classmethod
    def of(cls, stage: str, where: str, recipe: Mapping, **known: Any) -> Self:
        """Return the training step of the recipe of a segment or a plan.

        stage  of the model
        known  keys that are not in a segment's recipe, from the inputs of its job: sequence_length, packing and
               vocabulary (size, pad) of an mlm run, vocab_size of a base model, base of a finetuning run, {"preset":
               folder}; on a task, outputs and the result of `masked_model`

        Raises UserError, see `ModelSpec.of`.
        """
        recipe = {**recipe, **known}
        head = ClassificationHead.of(recipe) if "predict" in recipe else None
        packing = "pad" if head else recipe.get("packing", "concat")
        return cls(
            # A model that is opened to be used, without its step, may read prompts with padding.
            replace(ModelSpec.of(stage, where, recipe), full=packing == "concat"),
            recipe["batch_size"],
            recipe["sequence_length"],
            recipe.get("microbatches", 1),
            recipe.get("steps_per_execution", 1),
            recipe.get("remat", False),
            recipe["optimizer"],
            packing,
            recipe.get("responses", False),
            recipe["masking"] if stage == "mlm" and not head else None,
            recipe.get("z_loss", 0.0),
            head,
        )

    @property
    def figures(self) -> tuple[str, ...]:
        """The names of the metrics of its held-out predictions, see `tpulm.training.history.held_out_metrics`."""
        if self.head is None:
            return ("loss", "accuracy", "perplexity", "predictions")
        return ("loss", "predictions") if self.head.predict == NUMBER else ("loss", "accuracy", "predictions")

    @property
    def record_arrays(self) -> Arrays:
        """Shape and dtype of each array of a record, without the batch axis."""
        if self.head:
            return labelled_arrays(self.sequence_length, self.head.predict == NUMBER)
        if self.masking is None:
            return causal_arrays(self.sequence_length, self.packing, self.responses)
        return masked_arrays(self.sequence_length, self.masking["mlm_probability"], self.packing)

    @property
    def predictions_per_record(self) -> int:
        """The largest number of tokens of a record that the model predicts; 0 with a classification head."""
        if self.head:
            return 0
        if self.masking is None:
            return self.sequence_length
        return predictions_per_record(self.sequence_length, self.masking["mlm_probability"])

    @property
    def microbatch_size(self) -> int:
        """Records of a microbatch, on all devices together."""
        return self.batch_size // self.microbatches

    @property
    def tokens_per_step(self) -> int:
        """Tokens that the model reads in a step."""
        return self.batch_size * self.sequence_length


# The schema's maximum of host_device_count, which planners cannot read: a test compares the two.
MOST_HOST_DEVICES = 512


def check_mesh(where: str, recipe: dict) -> None:
    """Check a run's mesh, batch and steps per execution against each other. Raises UserError, naming the key `where`.

    recipe  mesh, host_device_count, batch_size, checkpoint_every, resources; microbatches and steps_per_execution, or 1
    """
    mesh, devices = recipe["mesh"], recipe["host_device_count"]
    if any(size < 1 and size != -1 for size in mesh) or mesh == [-1, -1]:
        raise UserError(f"{where}.mesh is {mesh}; allowed: two sizes of 1 or more, one of which may be -1.")
    known = math.prod(size for size in mesh if size != -1)
    if devices % known or (-1 not in mesh and known != devices):
        raise UserError(f"{where}.mesh is {mesh}, which does not fit host_device_count, {devices}.")
    hosts = recipe["resources"]["hosts"]
    if devices % hosts and not (-1 in mesh and devices == known):  # then the hosts say how many devices there are
        raise UserError(f"{where}.resources.hosts is {hosts}; allowed: a divisor of host_device_count, {devices}.")
    batch_axis = devices // known if mesh[0] == -1 else mesh[0]
    check_batch_size(where, recipe["batch_size"], batch_axis, recipe.get("microbatches", 1))
    at_once = recipe.get("steps_per_execution", 1)
    if recipe["checkpoint_every"] % at_once:
        raise UserError(
            f"{where}.checkpoint_every is {recipe['checkpoint_every']}; "
            f"allowed: a multiple of steps_per_execution, {at_once}."
        )


def check_batch_size(
    where: str, batch_size: int, devices: int, microbatches: int, what: str = "the batch axis of mesh"
) -> None:
    """Raise UserError if the devices cannot share each microbatch equally; what  name of their number in messages."""
    if batch_size % (devices * microbatches):
        parts = f" times microbatches, {microbatches}" if microbatches > 1 else ""
        raise UserError(f"{where}.batch_size is {batch_size}; allowed: a multiple of {what}, {devices}{parts}.")
