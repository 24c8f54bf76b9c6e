"""Training runs of which nothing has a value: what a plan compiles. Needs lib.keras_jax.start first.

Variables that are made inside `StatelessScope(initialize_variables=False)` have a shape, a type and a place on the
mesh, but no value: a model of any size costs no memory. Model, optimizer and step are made by the trainers' functions.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import jax
import keras
import keras_hub
import numpy as np

from lib import roberta, sharding
from lib.architectures import published
from lib.causal_model import backbone_class, build_gemma, make_optimizer, plain_attention, prepare_tuning
from lib.errors import UserError
from lib.files import read_json
from lib.jax_training import (
    batch_sharding,
    causal,
    jitted_part,
    jitted_step,
    masked,
    moving_variables,
    shardings,
)
from lib.masking import predictions_per_record
from lib.rematerialise import rematerialise
from lib.roberta_sizes import sizes_of


class Unreachable(UserError):
    """What a plan needs to know could not be fetched: no result, another time it may be."""


class Run:
    """A run of the config on devices that need not be there."""

    def __init__(self, stage: str, recipe: dict, devices: list, where: str):
        """Make model and optimizer of a run.

        stage    mlm, base or lora
        recipe   the run's, with what `describe` reads of the stages before
        devices  JAX's, or those of a topology description
        where    how the config names the run, for errors
        """
        family, build, self.task, arrays = describe(stage, recipe, where)
        keras.distribution.set_distribution(None)
        self.optimizer = make_optimizer(recipe["optimizer"])  # its own scalars have values, here on this machine
        self.distribution = sharding.set_up(family, recipe["mesh"], f"{where}.mesh", devices)
        replicas = self.distribution.num_model_replicas * recipe["accumulate"]
        if recipe["batch_size"] % replicas:
            raise UserError(
                f"{where}.batch_size is {recipe['batch_size']}; allowed on these devices: a multiple of {replicas}."
            )
        keras.utils.set_random_seed(recipe["seed"])
        with keras.StatelessScope(initialize_variables=False), uncompiled():
            self.model = build()
            if stage == "lora":
                prepare_tuning(self.model, recipe)
            for variable in self.model.variables:  # as Keras does it when a variable gets its value
                variable._layout = self.distribution.get_variable_layout(variable)
            self.optimizer.build(self.model.trainable_variables)
        if recipe["rematerialise"]:
            rematerialise(self.model)
        self.recipe, self.stage = recipe, stage
        self.variables = moving_variables(self.model, self.optimizer)
        self.batch = {name: ((recipe["batch_size"], *shape), dtype) for name, (shape, dtype) in arrays.items()}

    def arguments(self) -> tuple:
        """Return the arguments of a dispatch of the run: shapes, types and places."""
        moving = {part: self.abstract(variables) for part, variables in self.variables.items()}
        steps = self.recipe["steps_per_dispatch"]
        ahead = () if steps == 1 else (steps,)
        place = batch_sharding(self.distribution, steps)
        batch = {
            name: jax.ShapeDtypeStruct((*ahead, *shape), dtype, sharding=place)
            for name, (shape, dtype) in self.batch.items()
        }
        return moving, self.abstract(self.model.non_trainable_variables), batch, np.zeros(ahead, np.float32)

    def abstract(self, variables: list) -> list[jax.ShapeDtypeStruct]:
        """Return shape, type and place of variables."""
        places = shardings(self.distribution, variables)
        return [
            jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=place) for v, place in zip(variables, places, strict=True)
        ]

    def lowered(self) -> jax.stages.Lowered:
        """Return the program of a dispatch, before it is compiled."""
        function = jitted_step(self.model, self.optimizer, self.distribution, self.task, self.recipe)
        return function.lower(*self.arguments())

    def lowered_part(self) -> jax.stages.Lowered:
        """Return the program of one of the parts of a batch, gradients only: what a step repeats `accumulate` times."""
        size = self.recipe["batch_size"] // self.recipe["accumulate"]
        place = batch_sharding(self.distribution)
        batch = {
            name: jax.ShapeDtypeStruct((size, *shape[1:]), dtype, sharding=place)
            for name, (shape, dtype) in self.batch.items()
        }
        trainable, random = (self.abstract(self.variables[part]) for part in ("trainable", "random"))
        frozen = self.abstract(self.model.non_trainable_variables)
        weight = jax.ShapeDtypeStruct((), np.float32)
        function = jitted_part(self.model, self.distribution, self.task)
        return function.lower(trainable, frozen, random, batch, weight)

    def bytes_per_device(self, variables: list) -> int:
        """Return how many bytes of variables lie on each device."""
        places = shardings(self.distribution, variables)
        return sum(
            math.prod(place.shard_shape(tuple(v.shape))) * np.dtype(v.dtype).itemsize
            for v, place in zip(variables, places, strict=True)
        )

    def tokens_per_step(self) -> int:
        """Return how many tokens the model reads in a step."""
        return self.recipe["batch_size"] * self.recipe["sequence_length"]

    def model_flops(self) -> float:
        """Return the FLOPs that a step needs at the least (Chowdhery et al. 2022, appendix B).

        Two per weight of a matrix and token, and 4 x width x length / 2 per token and layer for attention over what
        lies before (all of it in a masked model); the same again for gradients of activations, and for gradients of
        weights where they are trained. A head and its logits only where the model predicts.
        """
        backbone, length = self.model.backbone, self.recipe["sequence_length"]
        tokens = self.tokens_per_step()
        table = next(v for v in backbone.variables if v.path.endswith("token_embedding/embeddings"))
        inside, everywhere = (
            sum(math.prod(v.shape) for v in part.variables if len(v.shape) > 1 and v.path.endswith("kernel"))
            for part in (backbone, self.model)
        )
        head = everywhere - inside + math.prod(table.shape)
        heads = getattr(backbone, "num_query_heads", None) or backbone.num_heads
        width = heads * (getattr(backbone, "head_dim", None) or backbone.hidden_dim // heads)
        predicted = 1.0
        if self.task is masked:
            predicted = predictions_per_record(length, self.recipe["masking"]["rate"]) / length
            width *= 2
        forward = 2 * inside + 2 * head * predicted + 2 * backbone.num_layers * width * length
        passes = 2 if self.stage == "lora" and self.recipe["method"] == "lora" else 3
        return float(tokens * forward * passes)


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Keep keras-hub's tasks from making the optimizer that they come with: nobody asked for it."""
    tasks = (keras_hub.models.CausalLM, keras_hub.models.MaskedLM)
    kept = [task.compile for task in tasks]
    for task in tasks:
        task.compile = lambda self, *args, **kwargs: None
    try:
        yield
    finally:
        for task, method in zip(tasks, kept, strict=True):
            task.compile = method


def describe(stage: str, recipe: dict, where: str) -> tuple[type, Callable, Callable, dict]:
    """Return the class of a run's backbone, how its model is built, what it predicts, the arrays of a record."""
    length = recipe["sequence_length"]
    if stage == "mlm":
        sizes = sizes_of(recipe["model"], f"{where}.model")
        chosen = predictions_per_record(length, recipe["masking"]["rate"])
        arrays = {"input_ids": ((length,), np.int32), "positions": ((chosen,), np.int32)}
        arrays |= {"labels": ((chosen,), np.int32), "weights": ((chosen,), np.float32)}
        vocabulary = recipe["vocabulary"]
        build = lambda: roberta.build(sizes, vocabulary["size"], vocabulary["pad"])  # noqa: E731
        return roberta.backbone_class(), build, masked, arrays
    arrays = {"tokens": ((length + 1,), np.int32), "mask": ((length + 1,), np.bool_)}
    base = recipe if stage == "base" else recipe["base"]
    if "model" in base:
        build = lambda: build_gemma(base["model"], base["vocab_size"])  # noqa: E731
        return keras_hub.models.GemmaBackbone, build, causal, arrays
    family, arguments = preset_backbone(base["preset"], base.get("revision"), where)
    return family, lambda: language_model(family, arguments), causal, arrays


def preset_backbone(preset: str, revision: str | None, where: str) -> tuple[type, dict]:
    """Return class and arguments of a preset's backbone: of a local folder, published, or asked from its hub.

    Raises Unreachable where the hub cannot be asked, UserError for a model that keras-hub does not know.
    """
    if (Path(preset) / "config.json").is_file():
        return backbone_class(preset), read_json(Path(preset) / "config.json")["config"]
    known = published(preset)
    if known:
        return getattr(keras_hub.models, known[0]), known[1]
    from keras_hub.src.utils.preset_utils import load_json  # private: the one way to read a config and no weights

    try:
        if preset.startswith("hf://"):
            name = preset.removeprefix("hf://")
            config = read_json(huggingface_hub.hf_hub_download(name, "config.json", revision=revision))
        else:
            config = load_json(preset, "config.json")
    except Exception as error:
        raise Unreachable(f"the sizes of {preset} cannot be had: {' '.join(str(error).split())[:200]}") from None
    family = keras.saving.get_registered_object(config.get("registered_name", ""))
    if family is None:
        raise UserError(f"{preset} is not in Keras's format, or a model that keras-hub does not know.")
    return family, config["config"]


def language_model(family: type, arguments: dict) -> keras.Model:
    """Return the causal language model of a backbone's class, without a preprocessor."""
    kept = {key: value for key, value in arguments.items() if key not in ("name", "trainable", "dtype")}
    backbone = family(**kept)
    for task in keras_hub.models.CausalLM.__subclasses__():
        if task.backbone_cls is family:
            return plain_attention(task(backbone=backbone, preprocessor=None))
    raise UserError(f"keras-hub has no causal language model for {family.__name__}.")
