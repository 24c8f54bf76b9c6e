"""Build a JAX run from its `TrainingStep`: with values for the trainer, or without values for a plan."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import keras

from tpulm.core.errors import UserError
from tpulm.models.attention import Attention, attention_of
from tpulm.models.building import ModelModule, build_model, distribute
from tpulm.models.optimizers import build_optimizer, make_optimizer
from tpulm.models.remat import remat
from tpulm.models.sharding import Sharded
from tpulm.specs.training_step import TrainingStep, check_batch_size
from tpulm.training.train_step import Objective, TrainState, jit_train_step, train_variables


@dataclass(frozen=True)
class JaxRun:
    """The parts of a compiled step.

    step          its specification
    model         with its trainable variables set; distribution  its sharding
    optimizer     built for these variables
    objective     returns inputs, labels and weights for a batch
    """

    step: TrainingStep
    model: keras.Model
    distribution: Sharded
    optimizer: keras.Optimizer
    objective: Objective

    @property
    def attention(self) -> Attention:
        """The implementation of the model's attention, see `tpulm.models.attention`."""
        return attention_of(self.model, self.distribution, self.step.model.determinism, self.step.sequence_length)

    @property
    def variables(self) -> TrainState:
        """The Keras variables that a step changes."""
        return train_variables(self.model, self.optimizer)

    def jit_train_step(self) -> jax.stages.Wrapped:
        """Return the jitted function of a dispatch, see `tpulm.training.train_step.jit_train_step`."""
        step = self.step
        parts = (self.model, self.optimizer, self.distribution, self.objective)
        return jit_train_step(*parts, step.microbatches, step.steps_per_execution, step.z_loss)


def build_run(step: TrainingStep, module: ModelModule) -> JaxRun:
    """Return a run on JAX's devices, its variables with values.

    Raises UserError if the devices or the model do not allow the step.
    """
    distribution = distribute_step(step, module)
    model = build_model(step.model, module, distribution)
    optimizer = make_optimizer(step.optimizer)
    build_optimizer(optimizer, model)
    return finish_build(JaxRun(step, model, distribution, optimizer, module.objective))


def build_abstract_run(
    step: TrainingStep,
    module: ModelModule,
    devices: list,
    build: Callable[[TrainingStep, Sharded], keras.Model],
    objective: Objective,
) -> JaxRun:
    """Return the run of `build_run` with shapes, dtypes and shardings but no values, on devices that need not exist.

    step      of a model without a preset, see `build_abstract_model`
    devices   JAX's, or those of a topology description
    build     returns the model of a step, without values; objective  of that model

    Raises UserError as `build_run` does.
    """
    keras.distribution.set_distribution(None)
    optimizer = make_optimizer(step.optimizer)  # its scalars have values, on this machine
    distribution = distribute_step(step, module, devices)
    model = build(step, distribution)
    with keras.StatelessScope(initialize_variables=False):
        build_optimizer(optimizer, model)
    return finish_build(JaxRun(step, model, distribution, optimizer, objective))


def distribute_step(step: TrainingStep, module: ModelModule, devices: list | None = None) -> Sharded:
    """Return the sharding of a step over devices. Raises UserError if the mesh or the batch does not fit them."""
    distribution = distribute(step.model, module, devices)
    check_batch_size(step.model.where, step.batch_size, distribution.num_model_replicas, step.microbatches)
    return distribution


def finish_build(run: JaxRun) -> JaxRun:
    """Return the run, its blocks rematerialized if the step says so.

    Raises UserError for trainable variables in bfloat16: there Adam's beta_2, 0.999, rounds to 1, and small steps have
    no effect. LoRA's variables are always float32.
    """
    if any(variable.dtype == "bfloat16" for variable in run.model.trainable_variables):
        raise UserError(
            f"{run.step.model.where}.precision is bfloat16, which does not support training all parameters; "
            "allowed: float32, mixed_bfloat16."
        )
    if run.step.remat:
        remat(run.model)
    return run
