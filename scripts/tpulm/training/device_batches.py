"""Feed batches to the devices: each process prefetches the records of its own devices, some steps ahead."""

from collections.abc import Callable, Iterator, Mapping

import grain
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tpulm.models.sharding import Sharded, batch_sharding

AHEAD = 4  # batches prepared, and steps dispatched, before they are needed


def own_rows(sharding: NamedSharding, size: int) -> slice:
    """Return the slice of a batch's `size` records that the devices of this process need."""
    rows = NamedSharding(sharding.mesh, PartitionSpec(sharding.spec[-1]))
    places = [index[0].indices(size) for index in rows.addressable_devices_indices_map((size,)).values()]
    return slice(min(place[0] for place in places), max(place[1] for place in places))


def on_devices(array: np.ndarray, sharding: NamedSharding, rows: slice, size: int) -> jax.Array:
    """Return the array on all devices of a batch of `size` records, of which this process has the slice `rows`.

    array  [rows, ...], or [steps, rows, ...] where `sharding` has the steps in front
    """
    axis = len(sharding.spec) - 1  # the axis of the records
    shape = (*array.shape[:axis], size, *array.shape[axis + 1 :])

    def part(index: tuple[slice, ...]) -> np.ndarray:
        start, stop, _ = index[axis].indices(size)
        return array[(*index[:axis], slice(start - rows.start, stop - rows.start), *index[axis + 1 :])]

    return jax.make_array_from_callback(shape, sharding, part)


def whole_batch_on_devices(arrays: Mapping[str, np.ndarray], distribution: Sharded) -> dict[str, jax.Array]:
    """Return the arrays of a batch on the devices, where every process holds them whole.

    arrays  [records, ...]; rows of zeros at their end even out the replicas
    """
    sharding, replicas = batch_sharding(distribution), distribution.num_model_replicas
    placed = {}
    for name, array in arrays.items():
        padded = np.pad(array, [(0, -len(array) % replicas)] + [(0, 0)] * (array.ndim - 1))
        placed[name] = on_devices(padded, sharding, slice(0, len(padded)), len(padded))
    return placed


def batches(
    load: Callable[[int, slice], dict[str, np.ndarray]],
    span: tuple[int, int],
    batch_size: int,
    steps_per_execution: int,
    distribution: Sharded,
) -> Iterator[dict[str, jax.Array]]:
    """Yield the batches of a span of steps, on the devices; grain prepares some ahead.

    load   function of a step and a slice of rows that returns a dict of arrays [rows, ...]; it depends on nothing
           else, so that a run can begin at any step
    span   the first step, counted from 0, and the one after the last
    """
    sharding = batch_sharding(distribution, steps_per_execution)
    rows = own_rows(sharding, batch_size)
    dataset = grain.MapDataset.range(*span).map(lambda step: load(int(step), rows))
    if steps_per_execution > 1:
        dataset = dataset.batch(steps_per_execution)
    for arrays in dataset.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=AHEAD)):
        yield {name: on_devices(array, sharding, rows, batch_size) for name, array in arrays.items()}
