"""The training step of all models on JAX, and the loop around it.

The step is one plain function of arrays, compiled by `jax.jit`. Model, optimizer, mesh and what to predict come in
through `jitted_step`, so that a plan can compile the same function for devices that are not there.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

import grain
import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from keras.distribution import ModelParallel

from lib import checkpoint, sharded_arrays
from lib.causal_model import assign, count
from lib.dropout import draw_masks_once
from lib.errors import UserError
from lib.history import Drain, History, held_out_figures
from lib.rematerialise import rematerialise
from lib.schedule import learning_rates
from lib.sharding import described, undivided

AHEAD = 4  # batches prepared, and steps dispatched, before they are needed


def causal(batch: dict) -> tuple:
    """Return inputs, labels and weights of a causal model for a batch of lib.causal_data: each next token."""
    tokens, mask = batch["tokens"], batch["mask"]
    inputs = {"token_ids": tokens[:, :-1], "padding_mask": mask[:, :-1].astype("int32")}
    return inputs, tokens[:, 1:], mask[:, 1:].astype("float32")


def masked(batch: dict) -> tuple:
    """Return inputs, labels and weights of a masked model for a batch of lib.mlm_data: the chosen positions only."""
    tokens = batch["input_ids"]
    inputs = {"token_ids": tokens, "padding_mask": jnp.ones_like(tokens), "mask_positions": batch["positions"]}
    return inputs, batch["labels"], batch["weights"]


def random_states(model: keras.Model) -> list[int]:
    """Return which of the non-trainable variables are states of random generators (of dropout)."""
    return [i for i, v in enumerate(model.non_trainable_variables) if "seed_generator" in v.path]


def moving_variables(model: keras.Model, optimizer: keras.Optimizer) -> dict[str, list]:
    """Return the variables that a step changes: trainable, optimizer, random."""
    frozen = model.non_trainable_variables
    return {
        "trainable": model.trainable_variables,
        "optimizer": optimizer.variables,
        "random": [frozen[i] for i in random_states(model)],
    }


def token_losses(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the cross-entropy of each token in nats, float32 of the labels' shape."""
    logits = logits.astype("float32")
    # No gather: over a vocabulary that is spread over devices, it would fetch the logits from all of them.
    places = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    chosen = jnp.where(places == labels[..., None], logits, 0.0).sum(-1)
    return jax.nn.logsumexp(logits, -1) - chosen


def make_gradients(model: keras.Model, task: Callable) -> Callable:
    """Return the function (trainable, frozen, random, batch, weight) -> ((loss, random), gradients) of one part.

    The loss of a part is its sum over `weight`, the number of predictions of the whole batch: parts just add up.
    """
    indices = random_states(model)
    draw_masks_once()

    def loss_of(trainable, frozen, random, batch, weight):
        frozen = list(frozen)
        for index, value in zip(indices, random, strict=True):
            frozen[index] = value
        inputs, labels, weights = task(batch)
        logits, changed = model.stateless_call(trainable, frozen, inputs, training=True)
        return (token_losses(logits, labels) * weights).sum() / weight, [changed[index] for index in indices]

    return jax.value_and_grad(loss_of, has_aux=True)


def make_step(model: keras.Model, optimizer: keras.Optimizer, task: Callable, accumulate: int = 1) -> Callable:
    """Return the function of one update: (moving, frozen, batch, rate) -> (moving, loss).

    task        `causal` or `masked`
    accumulate  parts of equal size that a batch is worked through in, one after another
    moving      values of `moving_variables`; frozen  values of the model's non-trainable variables
    batch       arrays [records, ...]
    rate        float32, the learning rate: an argument, so that a schedule compiles nothing anew
    loss        float32, nats per prediction
    """
    gradients_of = make_gradients(model, task)
    rate_index = next(i for i, v in enumerate(optimizer.variables) if v is optimizer._learning_rate)

    def step(moving, frozen, batch, rate):
        weight = jnp.maximum(task(batch)[2].sum(), 1.0)  # a small batch may have nothing to predict
        trainable, random = moving["trainable"], moving["random"]
        if accumulate == 1:
            (loss, random), gradients = gradients_of(trainable, frozen, random, batch, weight)
        else:

            def part(carry, piece):
                loss, random, gradients = carry
                (more, random), new = gradients_of(trainable, frozen, random, piece, weight)
                return (loss + more, random, jax.tree.map(jnp.add, gradients, new)), None

            zeros = jax.tree.map(jnp.zeros_like, trainable)
            start = (jnp.zeros((), "float32"), random, zeros)
            (loss, random, gradients), _ = jax.lax.scan(part, start, jax.tree.map(parts_of, batch))
        slots = list(moving["optimizer"])
        slots[rate_index] = rate.astype(slots[rate_index].dtype)
        trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
        return {"trainable": trainable, "optimizer": slots, "random": random}, loss

    def parts_of(array):
        """Return [records, ...] as [accumulate, records / accumulate, ...], each part spread as the whole was."""
        rows = array.reshape(array.shape[0] // accumulate, accumulate, *array.shape[1:])
        return jnp.swapaxes(rows, 0, 1)

    return step


def make_evaluation(model: keras.Model, task: Callable) -> Callable:
    """Return the function (trainable, frozen, batch) -> sums over predicted tokens: loss, correct, count."""

    def evaluation(trainable, frozen, batch):
        inputs, labels, weights = task(batch)
        logits, _ = model.stateless_call(trainable, frozen, inputs, training=False)
        correct = (logits.argmax(-1) == labels).astype("float32")
        return (token_losses(logits, labels) * weights).sum(), (correct * weights).sum(), weights.sum()

    return evaluation


def jitted_step(
    model: keras.Model, optimizer: keras.Optimizer, distribution: ModelParallel, task: Callable, recipe: dict
) -> Callable:
    """Return what a dispatch runs: a step of `make_step`, or a scan over `steps_per_dispatch` of them.

    With a scan, arrays of a batch, rates and losses have one more dimension in front, the steps.
    """
    step = make_step(model, optimizer, task, recipe["accumulate"])

    def several(moving, frozen, batches, rates):
        return jax.lax.scan(lambda moving, part: step(moving, frozen, *part), moving, (batches, rates))

    where = {part: shardings(distribution, variables) for part, variables in moving_variables(model, optimizer).items()}
    one = NamedSharding(distribution.device_mesh.backend_mesh, PartitionSpec())
    function = step if recipe["steps_per_dispatch"] == 1 else several
    return jax.jit(function, donate_argnums=0, out_shardings=(where, one))


def jitted_part(model: keras.Model, distribution: ModelParallel, task: Callable) -> Callable:
    """Return the gradients of one part of a batch, compiled by itself: what a step of several parts repeats."""
    one = NamedSharding(distribution.device_mesh.backend_mesh, PartitionSpec())
    where = shardings(distribution, model.trainable_variables)
    return jax.jit(make_gradients(model, task), out_shardings=((one, one), where))


def shardings(distribution: ModelParallel, variables: list) -> list[NamedSharding]:
    """Return how each variable lies on the mesh, by the layout map, whether or not it has a value."""
    mesh = distribution.device_mesh.backend_mesh
    return [NamedSharding(mesh, PartitionSpec(*distribution.get_variable_layout(v).axes)) for v in variables]


def batch_sharding(distribution: ModelParallel, steps: int = 1) -> NamedSharding:
    """Return how the arrays of a batch lie on the mesh: records over the axis batch, `steps` in front if several."""
    axes = (distribution.batch_dim_name,) if steps == 1 else (None, distribution.batch_dim_name)
    return NamedSharding(distribution.device_mesh.backend_mesh, PartitionSpec(*axes))


def own_rows(sharding: NamedSharding, size: int) -> slice:
    """Return which of the `size` records of a batch this process has to read: those of its own devices."""
    rows = NamedSharding(sharding.mesh, PartitionSpec(sharding.spec[-1]))
    places = [index[0].indices(size) for index in rows.addressable_devices_indices_map((size,)).values()]
    return slice(min(place[0] for place in places), max(place[1] for place in places))


def on_devices(array: np.ndarray, sharding: NamedSharding, rows: slice, size: int) -> jax.Array:
    """Return the records `rows` of a batch of `size` records as this process's part of the whole on all devices."""
    axis = len(sharding.spec) - 1  # of the records
    shape = (*array.shape[:axis], size, *array.shape[axis + 1 :])

    def part(index):
        start, stop, _ = index[axis].indices(size)
        return array[(*index[:axis], slice(start - rows.start, stop - rows.start), *index[axis + 1 :])]

    return jax.make_array_from_callback(shape, sharding, part)


def batches(load: Callable, recipe: dict, distribution: ModelParallel) -> Iterator[dict[str, jax.Array]]:
    """Yield the batches of steps `first` to `last`, on the devices; grain prepares some ahead.

    load  function of a step and the rows wanted that returns a dict of arrays [rows, ...]: of nothing else,
          so that a run can begin at any step
    """
    steps, size = recipe["steps_per_dispatch"], recipe["batch_size"]
    sharding = batch_sharding(distribution, steps)
    rows = own_rows(sharding, size)
    dataset = grain.MapDataset.range(recipe["first"], recipe["last"]).map(lambda step: load(int(step), rows))
    if steps > 1:
        dataset = dataset.batch(steps)
    for arrays in dataset.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=AHEAD)):
        yield {name: on_devices(array, sharding, rows, size) for name, array in arrays.items()}


class Trainer:
    """A model, its optimizer and their values on the devices."""

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.Optimizer,
        distribution: ModelParallel,
        task: Callable,
        recipe: dict,
    ):
        """Take a model whose trainable variables are settled; builds the optimizer.

        recipe  first and last step, batch_size, schedule, accumulate, steps_per_dispatch, rematerialise

        Raises UserError where they are bfloat16: there 0.999, Adam's beta_2, rounds to 1, and no step changes anything.
        LoRA's own variables are always float32.
        """
        if any(variable.dtype == "bfloat16" for variable in model.trainable_variables):
            raise UserError(
                "precision is bfloat16, which AdamW cannot train all parameters in; allowed: float32, mixed_bfloat16."
            )
        optimizer.build(model.trainable_variables)
        if recipe["rematerialise"]:
            rematerialise(model)
        self.model, self.distribution, self.task, self.recipe = model, distribution, task, recipe
        self.variables = moving_variables(model, optimizer)
        self.step = jitted_step(model, optimizer, distribution, task, recipe)
        self.read_values()

    def read_values(self) -> None:
        """Take the values of the variables as the state to train on."""
        self.moving = {part: [v.value for v in variables] for part, variables in self.variables.items()}
        self.frozen = [v.value for v in self.model.non_trainable_variables]
        # A step gives its arguments' memory away: what it changes must not be among the frozen.
        for index in random_states(self.model):
            self.frozen[index] = jnp.copy(self.frozen[index])

    def load(self, weights: Mapping, optimizer: Mapping, source: str) -> None:
        """Continue from the arrays of a checkpoint; `source` names it in errors. Raises UserError, see `assign`."""
        self.moving = self.frozen = None  # or the devices would hold the state that was, beside the one that comes
        assign(self.variables["trainable"], weights, source)
        assign(self.variables["optimizer"], optimizer, source)
        for index, variable in enumerate(self.variables["random"]):
            variable.assign(optimizer[f"random/{index}"])
        self.read_values()

    def weights(self) -> dict[str, jax.Array]:
        """Return the trained variables, by path."""
        return sharded_arrays.by_path(self.variables["trainable"], self.moving["trainable"])

    def optimizer(self) -> dict[str, jax.Array]:
        """Return what else the next segment needs: the optimizer's variables by path, random states by number.

        Keras numbers the states' paths through the life of a process, so these say nothing.
        """
        states = {f"random/{index}": value for index, value in enumerate(self.moving["random"])}
        return sharded_arrays.by_path(self.variables["optimizer"], self.moving["optimizer"]) | states

    def train(self, load: Callable, rates: np.ndarray, history: History) -> None:
        """Train the steps of the recipe on what `load` returns (see `batches`), at `rates` float32 [last - first]."""
        rows = self.distribution.num_model_replicas * self.recipe["accumulate"]
        if self.recipe["batch_size"] % rows:
            raise UserError(
                f"batch_size is {self.recipe['batch_size']}; allowed: a multiple of {rows}, the batch axis of mesh "
                "times accumulate."
            )
        steps = self.recipe["steps_per_dispatch"]
        drain, pending = Drain(history), deque()
        data = batches(load, self.recipe, self.distribution)
        for batch, some in zip(data, rates.reshape(-1, steps), strict=True):
            self.moving, losses = self.step(self.moving, self.frozen, batch, some[0] if steps == 1 else some)
            drain.add(losses, some)
            pending.append(losses)
            if len(pending) > AHEAD:
                pending.popleft().block_until_ready()
        drain.finish()

    def evaluate(self, data: Iterable[dict[str, np.ndarray]]) -> dict[str, float]:
        """Return the figures of `held_out_figures` on held-out batches."""
        return Evaluator(self.model, self.distribution, self.task).measure(self.moving["trainable"], self.frozen, data)


class Evaluator:
    """Measures a model on held-out batches; compiled once."""

    def __init__(self, model: keras.Model, distribution: ModelParallel, task: Callable):
        """Take a model and what it predicts."""
        self.model, self.sharding = model, batch_sharding(distribution)
        self.replicas = distribution.num_model_replicas
        one = NamedSharding(distribution.device_mesh.backend_mesh, PartitionSpec())
        self.function = jax.jit(make_evaluation(model, task), out_shardings=one)

    def __call__(self, data: Iterable[dict[str, np.ndarray]]) -> dict[str, float]:
        """Return the figures of `held_out_figures` on held-out batches, with the model as it is now."""
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
            sums.append(self.function(trainable, frozen, batch))
            if len(sums) > AHEAD:  # batches that wait take memory; on virtual devices, many of them wait for ever
                jax.block_until_ready(sums[-AHEAD])
        return held_out_figures(*np.array(sums, np.float64).sum(0))

    def place(self, array: np.ndarray) -> jax.Array:
        """Return an array that every process holds whole as one that is spread over the devices."""
        array = np.pad(array, [(0, -len(array) % self.replicas)] + [(0, 0)] * (array.ndim - 1))
        return on_devices(array, self.sharding, slice(0, len(array)), len(array))


def train_segment(
    trainer: Trainer,
    load: Callable,
    held_out: Iterable[dict[str, np.ndarray]],
    sequence_length: int,
    files: tuple[object, dict[str, str] | None],
    say: Callable[[str], None],
) -> None:
    """Train a segment and write its checkpoint, history and timings.

    load      function of a step and rows, see `batches`; held_out  batches of the validation split
    files     the rule's outputs, and the parts of the checkpoint before, None at first
    """
    output, previous = files
    recipe = trainer.recipe
    first, last = recipe["first"], recipe["last"]
    if previous:
        weights, optimizer = (sharded_arrays.Arrays(previous[part]) for part in ("weights", "optimizer"))
        trainer.load(weights, optimizer, f"the checkpoint with {previous['weights']}")
    trained, total = count(trainer.model.trainable_variables), count(trainer.model.variables)
    parameters = f"{total:,}" if trained == total else f"{trained:,} of {total:,}"
    say(f"steps {first + 1} to {last}, {parameters} parameters, {described(trainer.distribution)}")
    for sentence in undivided(trainer.distribution):
        say(sentence)
    history = History(first, last, recipe["batch_size"] * sequence_length, say)
    trainer.train(load, learning_rates(recipe["schedule"], first, last), history)
    evaluation = trainer.evaluate(held_out)
    say(f"step {last}  held-out loss {evaluation['loss']:.4f}, accuracy {evaluation['accuracy']:.3f}")
    state = (trainer.weights(), trainer.optimizer(), evaluation)
    checkpoint.save(dict(output.items()), recipe, *state, previous, sharded_arrays.save, jax.process_index() == 0)
    if jax.process_index() == 0:
        history.write(output.history, output.timings)
    sharded_arrays.wait_for_all("checkpoint written")  # a process that ends first would take the others for dead
