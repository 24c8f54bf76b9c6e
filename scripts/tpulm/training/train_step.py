"""The training step of all JAX models: one pure function of arrays, compiled by `jax.jit`.

Model, optimizer, mesh and objective are arguments, so that a plan can compile the same function for absent devices.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras

from tpulm.models.sharding import Sharded, replicated_sharding, shardings
from tpulm.models.token_losses import losses_and_correct
from tpulm.models.variables import is_random_state

Batch = dict[str, jax.Array]
Objective = Callable[[dict], tuple]


class TrainState(NamedTuple):
    """Lists of all that a step changes: the optimizer's variables, states of random generators, trainable variables.

    The entries are Keras variables, or their values, or their shapes and shardings.
    """

    optimizer: list
    random: list
    trainable: list


def seed_generators(model: keras.Model) -> list[int]:
    """Return the indices of the non-trainable variables that are states of random generators, for dropout."""
    return [i for i, v in enumerate(model.non_trainable_variables) if is_random_state(v)]


def train_variables(model: keras.Model, optimizer: keras.Optimizer) -> TrainState:
    """Return the Keras variables that a step changes."""
    frozen = model.non_trainable_variables
    random = [frozen[i] for i in seed_generators(model)]
    return TrainState(optimizer.variables, random, model.trainable_variables)


def make_grad_fn(model: keras.Model, objective: Objective, z_loss: float = 0.0) -> Callable:
    """Return the function (trainable, frozen, random, batch, weight) -> ((loss, (accuracy, random)), gradients).

    Loss and accuracy of a microbatch are its sums divided by `weight`, the number of predictions of the whole batch, so
    that they and the gradients of microbatches add up. z_loss  see `tpulm.models.token_losses.losses_and_correct`
    """
    indices = seed_generators(model)

    def loss_of(trainable: list, frozen: list, random: list, batch: Batch, weight: jax.Array) -> tuple:
        frozen = list(frozen)
        for index, value in zip(indices, random, strict=True):
            frozen[index] = value
        inputs, labels, weights = objective(batch)
        losses, correct, changed = losses_and_correct(model, trainable, frozen, inputs, labels, True, z_loss)
        accuracy = (correct * weights).sum() / weight
        return (losses * weights).sum() / weight, (accuracy, [changed[index] for index in indices])

    return jax.value_and_grad(loss_of, has_aux=True)


def make_train_step(
    model: keras.Model, optimizer: keras.Optimizer, objective: Objective, microbatches: int = 1, z_loss: float = 0.0
) -> Callable:
    """Return the function of one update: (state, frozen, batch, rate) -> (state, figures).

    objective     returns inputs, labels and weights for a batch, such as `records.masked_batches.masked_lm`
    microbatches  equal parts of a batch, whose gradients are accumulated before the update
    z_loss        weight of the z-loss, see `tpulm.models.token_losses.losses_and_correct`
    state         TrainState of values; frozen  values of the model's non-trainable variables
    batch         arrays [records, ...]
    rate          float32, the learning rate; as an argument, a new rate compiles nothing anew
    figures       float32 [3]: loss, nats per prediction; accuracy, the share of correct predictions; norm of
                  the gradients of all variables, before any clipping
    """
    grad_fn = make_grad_fn(model, objective, z_loss)
    rate_index = next(i for i, v in enumerate(optimizer.variables) if v is optimizer.learning_rate)

    def step(state: TrainState, frozen: list, batch: Batch, rate: jax.Array) -> tuple[TrainState, jax.Array]:
        weight = jnp.maximum(objective(batch)[2].sum(), 1.0)  # a small batch may have nothing to predict
        trainable, random = state.trainable, state.random
        if microbatches == 1:
            (loss, (accuracy, random)), gradients = grad_fn(trainable, frozen, random, batch, weight)
        else:

            def accumulate(carry: tuple, microbatch: Batch) -> tuple:
                loss, accuracy, random, gradients = carry
                (more, (correct, random)), new = grad_fn(trainable, frozen, random, microbatch, weight)
                return (loss + more, accuracy + correct, random, jax.tree.map(jnp.add, gradients, new)), None

            zeros = jax.tree.map(jnp.zeros_like, trainable)
            start = (jnp.zeros((), "float32"), jnp.zeros((), "float32"), random, zeros)
            (loss, accuracy, random, gradients), _ = jax.lax.scan(accumulate, start, jax.tree.map(split, batch))
        slots = list(state.optimizer)
        slots[rate_index] = rate.astype(slots[rate_index].dtype)
        trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
        return TrainState(slots, random, trainable), jnp.stack([loss, accuracy, global_norm(gradients)])

    def split(array: jax.Array) -> jax.Array:
        """Return [records, ...] as [microbatches, records / microbatches, ...], interleaved to keep the sharding."""
        rows = array.reshape(array.shape[0] // microbatches, microbatches, *array.shape[1:])
        return jnp.swapaxes(rows, 0, 1)

    return step


def global_norm(gradients: Sequence[jax.Array]) -> jax.Array:
    """Return the Euclidean norm of all gradients as one vector, float32.

    The formula is that of Keras's `clip_by_global_norm`, so that the compiler merges the two.
    """
    return jnp.sqrt(jnp.sum(jnp.stack([jnp.sum(jnp.square(gradient)) for gradient in gradients]))).astype("float32")


def jit_train_step(
    model: keras.Model,
    optimizer: keras.Optimizer,
    distribution: Sharded,
    objective: Objective,
    microbatches: int,
    steps_per_execution: int,
    z_loss: float = 0.0,
) -> jax.stages.Wrapped:
    """Return the jitted function of a dispatch: `make_train_step`, or a scan over `steps_per_execution` of them.

    With a scan, arrays of a batch, rates and figures have the steps as first dimension. The state is donated: the new
    state takes its memory.
    """
    step = make_train_step(model, optimizer, objective, microbatches, z_loss)

    def several(state: TrainState, frozen: list, batches: Batch, rates: jax.Array) -> tuple[TrainState, jax.Array]:
        return jax.lax.scan(lambda state, part: step(state, frozen, *part), state, (batches, rates))

    function = step if steps_per_execution == 1 else several

    @functools.wraps(function)
    def dispatch(*arguments: Any) -> tuple[TrainState, jax.Array]:
        with distribution.records_apart():
            return function(*arguments)

    state = TrainState(*(shardings(distribution, part) for part in train_variables(model, optimizer)))
    return jax.jit(dispatch, donate_argnums=0, out_shardings=(state, replicated_sharding(distribution)))
