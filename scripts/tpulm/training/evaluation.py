"""Loss and accuracy of a JAX model on held-out batches, and how batches reach the devices."""

from collections.abc import Callable, Iterable, Iterator

import grain
import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tpulm.models.sharding import Sharded, batch_sharding, replicated_sharding
from tpulm.models.token_losses import predict
from tpulm.training.history import held_out_metrics

AHEAD = 4  # batches prepared, and steps dispatched, before they are needed


def own_rows(sharding: NamedSharding, size: int) -> slice:
    """Return which of the `size` records of a batch this process has to read: those of its own devices."""
    rows = NamedSharding(sharding.mesh, PartitionSpec(sharding.spec[-1]))
    places = [index[0].indices(size) for index in rows.addressable_devices_indices_map((size,)).values()]
    return slice(min(place[0] for place in places), max(place[1] for place in places))


def on_devices(array: np.ndarray, sharding: NamedSharding, rows: slice, size: int) -> jax.Array:
    """Return the records `rows` of a batch of `size` records as this process's part of the whole on all devices.

    array  [rows, ...], or [steps, rows, ...] where `sharding` has the steps in front
    """
    axis = len(sharding.spec) - 1  # of the records
    shape = (*array.shape[:axis], size, *array.shape[axis + 1 :])

    def part(index: tuple[slice, ...]) -> np.ndarray:
        start, stop, _ = index[axis].indices(size)
        return array[(*index[:axis], slice(start - rows.start, stop - rows.start), *index[axis + 1 :])]

    return jax.make_array_from_callback(shape, sharding, part)


def batches(
    load: Callable[[int, slice], dict[str, np.ndarray]],
    span: tuple[int, int],
    batch_size: int,
    steps_per_execution: int,
    distribution: Sharded,
) -> Iterator[dict[str, jax.Array]]:
    """Yield the batches of a span of steps, on the devices; grain prepares some ahead.

    load   function of a step and the rows wanted that returns a dict of arrays [rows, ...]: of nothing else,
           so that a run can begin at any step
    span   the first step, counted from 0, and the one after the last
    """
    sharding = batch_sharding(distribution, steps_per_execution)
    rows = own_rows(sharding, batch_size)
    dataset = grain.MapDataset.range(*span).map(lambda step: load(int(step), rows))
    if steps_per_execution > 1:
        dataset = dataset.batch(steps_per_execution)
    for arrays in dataset.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=AHEAD)):
        yield {name: on_devices(array, sharding, rows, batch_size) for name, array in arrays.items()}


def make_eval_step(model: keras.Model, task: Callable) -> Callable:
    """Return the function (trainable, frozen, batch) -> sums over predicted tokens: loss, correct, count; float32."""

    def evaluation(trainable: list, frozen: list, batch: dict[str, jax.Array]) -> tuple:
        inputs, labels, weights = task(batch)
        losses, correct, _ = predict(model, trainable, frozen, inputs, labels, training=False)
        return (losses * weights).sum(), (correct * weights).sum(), weights.sum()

    return evaluation


class Evaluator:
    """Measures a model on held-out batches; compiled once."""

    def __init__(self, model: keras.Model, distribution: Sharded, task: Callable):
        """Take a model, how it is sharded, and what it predicts (of `tpulm.training.train_step`)."""
        self.model, self.sharding = model, batch_sharding(distribution)
        self.replicas = distribution.num_model_replicas
        self.eval_step = jax.jit(make_eval_step(model, task), out_shardings=replicated_sharding(distribution))

    def __call__(self, data: Iterable[dict[str, np.ndarray]]) -> dict[str, float]:
        """Return the figures of `held_out_metrics` on held-out batches, with the values that the model holds."""
        trainable, frozen = (
            [v.value for v in part] for part in (self.model.trainable_variables, self.model.non_trainable_variables)
        )
        return self.measure(trainable, frozen, data)

    def measure(self, trainable: list, frozen: list, data: Iterable[dict[str, np.ndarray]]) -> dict[str, float]:
        """Return the same with these values of the model's variables.

        data  batches of one size, arrays [records, ...]; rows of zeros, which weigh nothing, even out the replicas
        """
        sums = []
        for arrays in data:
            batch = {name: self.place(array) for name, array in arrays.items()}
            sums.append(self.eval_step(trainable, frozen, batch))
            if len(sums) > AHEAD:  # batches that wait take memory; on virtual devices, many of them wait for ever
                jax.block_until_ready(sums[-AHEAD])
        return held_out_metrics(*np.array(sums, np.float64).sum(0))

    def place(self, array: np.ndarray) -> jax.Array:
        """Return an array that every process holds whole as one that is sharded over the devices."""
        array = np.pad(array, [(0, -len(array) % self.replicas)] + [(0, 0)] * (array.ndim - 1))
        return on_devices(array, self.sharding, slice(0, len(array)), len(array))
