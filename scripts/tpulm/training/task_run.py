"""A model with a head for labels, as a JAX run that trains it. Needs tpulm.training.runtime.start first."""

from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import numpy as np

from tpulm.config.tasks import NUMBER, without_either
from tpulm.config.training_step import ModelSpec, TrainingStep
from tpulm.core.errors import UserError
from tpulm.models.masked_models import folder_recipe
from tpulm.models.optimizers import make_optimizer
from tpulm.models.sharding import Sharded, batch_sharding, replicated_sharding
from tpulm.models.task_models import TaskModel, build_task_model
from tpulm.training.feeding import on_devices
from tpulm.training.jax_run import JaxRun, distributed, finished
from tpulm.training.tasks import labelled


def task_step(recipe: Mapping, folder: Path) -> TrainingStep:
    """Return the training step of a task's recipe and the model in a folder of transformers.

    recipe  of a segment, see `tpulm.config.tasks.TaskChain.segment`

    Raises UserError for a model that JAX cannot open.
    """
    found = folder_recipe(folder)
    known = {"model": without_either(found["model"]), "vocabulary": found["vocabulary"]}
    model = ModelSpec.of("mlm", recipe["key"], {**recipe, **known})
    return TrainingStep(
        model,
        recipe["batch_size"],
        recipe["sequence_length"],
        microbatches=1,
        steps_per_execution=1,
        remat=False,
        optimizer=recipe["optimizer"],
        packing="pad",
        labels=recipe["predict"],
    )


def build_task_run(step: TrainingStep, folder: Path, described: Mapping, weights: bool) -> JaxRun:
    """Return the run of a step, its variables with values.

    folder     of the model; weights  whether its weights are loaded: else they are drawn, as those of the head
    described  of the task: its labels

    Raises UserError where the model has too few positions, or its weights are another one's.
    """
    distribution = distributed(step)
    model = open_task_model(step, distribution, folder, described, weights)
    optimizer = make_optimizer(step.optimizer)
    optimizer.build(model.trainable_variables)
    return finished(JaxRun(step, model, distribution, optimizer))


def open_task_model(
    step: TrainingStep, distribution: Sharded, folder: Path, described: Mapping, weights: bool
) -> TaskModel:
    """Return the model of a step, see `build_task_run`."""
    predict = str(step.labels)
    outputs = 1 if predict == NUMBER else len(described["labels"])
    model = build_task_model(step.model, distribution, folder, outputs, predict, weights)
    most = model.backbone.max_sequence_length
    if step.sequence_length > most:
        raise UserError(
            f"{step.model.where}.sequence_length is {step.sequence_length}; allowed: {most} or less, the positions of "
            "the model."
        )
    return model


def make_predictor(model: TaskModel, distribution: Sharded) -> Callable[[list, Mapping[str, np.ndarray]], np.ndarray]:
    """Return a function of values of the trainable variables and a batch: what the model predicts.

    It returns int32 indices of labels, of the shape of the batch's labels, or float32 numbers; compiled once.
    """
    sharding, replicas = batch_sharding(distribution), distribution.num_model_replicas

    def predicted(trainable: list, frozen: list, batch: dict[str, jax.Array]) -> jax.Array:
        inputs, labels, _ = labelled(batch)
        logits, _ = model.stateless_call(trainable, frozen, inputs, training=False)
        return logits.argmax(-1).astype("int32") if labels.dtype == "int32" else logits[..., 0]

    compiled = jax.jit(predicted, out_shardings=replicated_sharding(distribution))
    frozen = [variable.value for variable in model.non_trainable_variables]

    def predict(trainable: list, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        size = len(batch["labels"])
        placed = {}
        for name, array in batch.items():
            padded = np.pad(array, [(0, -size % replicas)] + [(0, 0)] * (array.ndim - 1))
            placed[name] = on_devices(padded, sharding, slice(0, len(padded)), len(padded))
        return np.asarray(compiled(trainable, frozen, placed))[:size]

    return predict
