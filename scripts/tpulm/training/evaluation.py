"""Measure loss and accuracy of a JAX model on held-out batches."""

from collections.abc import Callable, Iterable

import jax
import keras
import numpy as np

from tpulm.models.sharding import Sharded, batch_sharding, replicated_sharding
from tpulm.models.token_losses import losses_and_correct
from tpulm.training.device_batches import AHEAD, on_devices
from tpulm.training.history import held_out_metrics


def make_eval_step(model: keras.Model, objective: Callable) -> Callable:
    """Return the function (trainable, frozen, batch) -> (loss, correct, count), float32 sums over predicted tokens."""

    def evaluation(trainable: list, frozen: list, batch: dict[str, jax.Array]) -> tuple:
        inputs, labels, weights = objective(batch)
        losses, correct, _ = losses_and_correct(model, trainable, frozen, inputs, labels, training=False)
        return (losses * weights).sum(), (correct * weights).sum(), weights.sum()

    return evaluation


class Evaluator:
    """Measures a model on held-out batches; compiled once."""

    def __init__(self, model: keras.Model, distribution: Sharded, objective: Callable):
        """Take a model, its sharding, and its objective, a function of `tpulm.training.train_step`."""
        self.model, self.sharding = model, batch_sharding(distribution)
        self.replicas = distribution.num_model_replicas
        self.eval_step = jax.jit(make_eval_step(model, objective), out_shardings=replicated_sharding(distribution))

    def __call__(self, data: Iterable[dict[str, np.ndarray]]) -> dict[str, float]:
        """Return the figures of `held_out_metrics` on held-out batches, with the values that the model holds."""
        trainable, frozen = (
            [v.value for v in part] for part in (self.model.trainable_variables, self.model.non_trainable_variables)
        )
        return self.measure(trainable, frozen, data)

    def measure(self, trainable: list, frozen: list, data: Iterable[dict[str, np.ndarray]]) -> dict[str, float]:
        """Return the figures of `held_out_metrics` with the given values of the model's variables.

        data  batches of one size, arrays [records, ...]; rows of zeros, which weigh nothing, even out the replicas
        """
        sums: list = []
        for arrays in data:
            batch = {name: self.place(array) for name, array in arrays.items()}
            sums.append(self.eval_step(trainable, frozen, batch))
            if len(sums) > AHEAD:  # waiting batches take memory; on virtual devices, many of them deadlock
                jax.block_until_ready(sums[-AHEAD])
        return held_out_metrics(*np.array(sums, np.float64).sum(0))

    def place(self, array: np.ndarray) -> jax.Array:
        """Return an array that every process holds whole, padded and sharded over the devices."""
        array = np.pad(array, [(0, -len(array) % self.replicas)] + [(0, 0)] * (array.ndim - 1))
        return on_devices(array, self.sharding, slice(0, len(array)), len(array))
