"""Build the JAX run that trains a model with a classification head."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import jax
import numpy as np

from tpulm.core.arrays import load_arrays
from tpulm.core.errors import UserError
from tpulm.core.files import read_json
from tpulm.models import masked_models
from tpulm.models.optimizers import build_optimizer, make_optimizer
from tpulm.models.sharding import Sharded, replicated_sharding
from tpulm.models.task_models import TaskModel, build_task_model
from tpulm.models.variables import assign, values_of
from tpulm.records.labelled_batches import Arrays, encode_examples, labelling
from tpulm.specs.classification_heads import masked_model, outputs_of
from tpulm.specs.training_step import TrainingStep
from tpulm.tokenization.tokenizer import TextTokenizer
from tpulm.training.device_batches import whole_batch_on_devices
from tpulm.training.jax_run import JaxRun, distribute_step, finish_build


def encoder(folder: Path, recipe: Mapping) -> Callable[[Mapping[str, list]], Arrays]:
    """Return a function of a split's columns that encodes its examples for the model of a folder.

    recipe  predict, sequence_length
    """
    tokenizer = TextTokenizer.load(folder / "tokenizer.json", folder / "special_tokens_map.json")
    pad = tokenizer.special["pad"]
    return partial(
        encode_examples, tokenizer.fast, predict=recipe["predict"], length=recipe["sequence_length"], pad=pad
    )


def task_step(recipe: Mapping, folder: Path, described: Mapping) -> TrainingStep:
    """Return the training step of a task's recipe and the masked model in a folder.

    recipe     of a segment, see `tpulm.config.outline.Run.segment`
    described  description of the task, with its labels

    Raises UserError for a model that JAX cannot open.
    """
    known = masked_model(read_json(folder / "config.json"))
    outputs = outputs_of(recipe["predict"], described["labels"])
    return TrainingStep.of("mlm", recipe["key"], recipe, outputs=outputs, **known)


def build_task_run(step: TrainingStep, folder: Path, weights: bool) -> JaxRun:
    """Return the run of a step, its variables with values.

    folder     of the model; weights  whether to load its weights, which are drawn otherwise, as those of the head are

    Raises UserError if the model has too few positions, or the weights belong to another model.
    """
    distribution = distribute_step(step, masked_models)
    model = build_task_model(step, distribution, folder, weights)
    optimizer = make_optimizer(step.optimizer)
    build_optimizer(optimizer, model)
    return finish_build(JaxRun(step, model, distribution, optimizer, labelling))


def start_from(model: TaskModel, best: str) -> None:
    """Load the trained weights of another task, except those of the classification head.

    best  safetensors file of trainable variables. Raises UserError if they belong to another model.
    """
    prefix = f"{model.head.name}/"
    without_head = [variable for variable in model.trainable_variables if not variable.path.startswith(prefix)]
    assign(without_head, load_arrays(best), best)


def check_predictions(predictions: np.ndarray, where: str, best: str, split: str) -> None:
    """Raise UserError if predictions of `make_predictor` are nan.

    where  config key of the task; best  the weights of the chain; split  of the examples
    """
    bad = int(np.isnan(predictions).sum())
    if bad:
        raise UserError(
            f"{where} cannot be scored: with the weights of {best}, the outputs for {bad:,} of {len(predictions):,} "
            f"predictions of the {split} split are nan or inf; allowed: finite numbers. Its training has diverged, or "
            "its precision is too low: try a lower rate in learning_rates, or precision: float32."
        )


def make_predictor(model: TaskModel, distribution: Sharded) -> Callable[[list, Mapping[str, np.ndarray]], np.ndarray]:
    """Return a function of the trainable variables' values and a batch that returns the predictions, compiled once.

    They are float32 [records]: indices of labels, or numbers; nan if an output of the model is not finite.
    """

    def predicted(trainable: list, frozen: list, batch: dict[str, jax.Array]) -> jax.Array:
        inputs, labels, _ = labelling(batch)
        logits, _ = model.stateless_call(trainable, frozen, inputs, training=False)
        predictions = logits.argmax(-1) if labels.dtype == "int32" else logits[..., 0]
        return jax.numpy.where(jax.numpy.isfinite(logits).all(-1), predictions.astype("float32"), jax.numpy.nan)

    compiled = jax.jit(predicted, out_shardings=replicated_sharding(distribution))
    _, frozen = values_of(model)

    def predict(trainable: list, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        predictions = compiled(trainable, frozen, whole_batch_on_devices(batch, distribution))
        return np.asarray(predictions)[: len(batch["labels"])]

    return predict
