"""Measure loss and accuracy of a JAX model on held-out batches."""

from collections.abc import Callable, Iterable

import jax
import keras
import numpy as np

from tpulm.models.sharding import Sharded, replicated_sharding
from tpulm.models.token_losses import losses_and_correct
from tpulm.models.variables import values_of
from tpulm.training.device_batches import AHEAD, whole_batch_on_devices
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
        self.model, self.distribution = model, distribution
        self.eval_step = jax.jit(make_eval_step(model, objective), out_shardings=replicated_sharding(distribution))

    def __call__(self, data: Iterable[dict[str, np.ndarray]]) -> dict[str, float]:
        """Return the figures of `held_out_metrics` on held-out batches, with the values that the model holds."""
        return self.measure(*values_of(self.model), data)

    def measure(self, trainable: list, frozen: list, data: Iterable[dict[str, np.ndarray]]) -> dict[str, float]:
        """Return the figures of `held_out_metrics` with the given values of the model's variables.

        data  batches of one size, arrays [records, ...]; rows of zeros, which weigh nothing, even out the replicas
        """
        sums: list = []
        for arrays in data:
            sums.append(self.eval_step(trainable, frozen, whole_batch_on_devices(arrays, self.distribution)))
            if len(sums) > AHEAD:  # waiting batches take memory; on virtual devices, many of them deadlock
                jax.block_until_ready(sums[-AHEAD])
        return held_out_metrics(*np.array(sums, np.float64).sum(0))
