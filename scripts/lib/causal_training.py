"""The training step of causal language models on JAX, base training and tuning alike, and the loop around it.

The step is one plain function of arrays, compiled by `jax.jit`; a model, an optimizer and a
mesh come in through `make_step` and `shardings`, so that a plan can compile the same
function for devices that are not there.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from keras.distribution import ModelParallel

from lib.causal_data import held_out_indices
from lib.causal_model import arrays_of, assign
from lib.errors import UserError
from lib.history import Drain, History
from lib.order import batch_records

AHEAD = 4  # batches prepared, and steps dispatched, before they are needed
EVALUATION_BATCH = 64  # sequences, unless training's own batch is larger


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
    chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1) - chosen


def model_inputs(tokens: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
    """Return what the model reads of records [batch, length + 1]: all but the last token."""
    return {"token_ids": tokens[:, :-1], "padding_mask": mask[:, :-1].astype("int32")}


def make_step(model: keras.Model, optimizer: keras.Optimizer) -> Callable:
    """Return the function of one update: (moving, frozen, tokens, mask, rate) -> (moving, loss).

    moving  values of `moving_variables`; frozen  values of the model's non-trainable variables
    tokens  int32 [batch, length + 1]; mask  bool, the same shape, false at padding
    rate    float32, the learning rate: an argument, so that a schedule compiles nothing anew
    loss    float32, nats per predicted token
    """
    random = random_states(model)
    rate_index = next(i for i, v in enumerate(optimizer.variables) if v is optimizer._learning_rate)

    def step(moving, frozen, tokens, mask, rate):
        frozen = list(frozen)
        for index, value in zip(random, moving["random"], strict=True):
            frozen[index] = value

        def loss_of(trainable):
            logits, changed = model.stateless_call(trainable, frozen, model_inputs(tokens, mask), training=True)
            weights = mask[:, 1:].astype("float32")
            losses = token_losses(logits, tokens[:, 1:])
            return (losses * weights).sum() / weights.sum(), [changed[index] for index in random]

        (loss, states), gradients = jax.value_and_grad(loss_of, has_aux=True)(moving["trainable"])
        slots = list(moving["optimizer"])
        slots[rate_index] = rate.astype(slots[rate_index].dtype)
        trainable, slots = optimizer.stateless_apply(slots, gradients, moving["trainable"])
        return {"trainable": trainable, "optimizer": slots, "random": states}, loss

    return step


def make_evaluation(model: keras.Model) -> Callable:
    """Return the function (trainable, frozen, tokens, mask) -> sums over predicted tokens: loss, correct, count."""

    def evaluation(trainable, frozen, tokens, mask):
        logits, _ = model.stateless_call(trainable, frozen, model_inputs(tokens, mask), training=False)
        labels, weights = tokens[:, 1:], mask[:, 1:].astype("float32")
        correct = (logits.argmax(-1) == labels).astype("float32")
        return (token_losses(logits, labels) * weights).sum(), (correct * weights).sum(), weights.sum()

    return evaluation


def shardings(distribution: ModelParallel, variables: list) -> list[NamedSharding]:
    """Return how each variable lies on the mesh, by the layout map, whether or not it has a value."""
    mesh = distribution.device_mesh.backend_mesh
    return [NamedSharding(mesh, PartitionSpec(*distribution.get_variable_layout(v).axes)) for v in variables]


def batch_sharding(distribution: ModelParallel) -> NamedSharding:
    """Return how a batch [records, tokens] lies on the mesh: its records over the axis batch."""
    return NamedSharding(distribution.device_mesh.backend_mesh, PartitionSpec(distribution.batch_dim_name, None))


def batches(records: object, recipe: dict, sharding: NamedSharding) -> Iterator[tuple[jax.Array, jax.Array]]:
    """Yield tokens and mask of each step from `first` to `last`, on the devices, some prepared ahead.

    The records of a step are a function of the seed and the step alone.
    """

    def prepare(step: int) -> tuple[jax.Array, jax.Array]:
        arrays = records.read(batch_records(records.records, recipe["seed"], recipe["batch_size"], step))
        return tuple(on_devices(array, sharding) for array in arrays)

    with ThreadPoolExecutor(1) as pool:
        waiting: deque = deque()
        for step in range(recipe["first"], recipe["last"]):
            waiting.append(pool.submit(prepare, step))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def on_devices(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Return an array that every process holds whole as one that is spread over the devices."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


class Trainer:
    """A model, its optimizer and their values on the devices."""

    def __init__(self, model: keras.Model, optimizer: keras.Optimizer, distribution: ModelParallel):
        """Take a model whose trainable variables are settled; builds the optimizer.

        Raises UserError where they are bfloat16: there 0.999, Adam's beta_2, rounds to 1, and no step changes anything.
        LoRA's own variables are always float32.
        """
        if any(variable.dtype == "bfloat16" for variable in model.trainable_variables):
            raise UserError(
                "precision is bfloat16, which AdamW cannot train all parameters in; allowed: float32, mixed_bfloat16."
            )
        optimizer.build(model.trainable_variables)
        self.model, self.distribution = model, distribution
        self.variables = moving_variables(model, optimizer)
        where = {part: shardings(distribution, variables) for part, variables in self.variables.items()}
        one = NamedSharding(distribution.device_mesh.backend_mesh, PartitionSpec())
        self.step = jax.jit(make_step(model, optimizer), donate_argnums=0, out_shardings=(where, one))
        self.read_values()

    def read_values(self) -> None:
        """Take the values of the variables as the state to train on."""
        self.moving = {part: [v.value for v in variables] for part, variables in self.variables.items()}
        self.frozen = [v.value for v in self.model.non_trainable_variables]
        # A step gives its arguments' memory away: what it changes must not be among the frozen.
        for index in random_states(self.model):
            self.frozen[index] = jnp.copy(self.frozen[index])

    def load(self, weights: dict, optimizer: dict, source: str) -> None:
        """Continue from the arrays of a checkpoint; `source` names it in errors. Raises UserError, see `assign`."""
        assign(self.variables["trainable"], weights, source)
        assign(self.variables["optimizer"], optimizer, source)
        for index, variable in enumerate(self.variables["random"]):
            variable.assign(optimizer[f"random/{index}"])
        self.read_values()

    def weights(self) -> dict[str, np.ndarray]:
        """Return the trained variables, by path."""
        return arrays_of(self.variables["trainable"], self.moving["trainable"])

    def optimizer(self) -> dict[str, np.ndarray]:
        """Return what else the next segment needs: the optimizer's variables by path, random states by number.

        Keras numbers the states' paths through the life of a process, so these say nothing.
        """
        states = {f"random/{index}": np.asarray(value) for index, value in enumerate(self.moving["random"])}
        return arrays_of(self.variables["optimizer"], self.moving["optimizer"]) | states

    def train(self, records: object, recipe: dict, rates: np.ndarray, history: History) -> None:
        """Train the steps of `recipe`, from `first` to `last`, at `rates` float32 [last - first]."""
        rows = self.distribution.num_model_replicas
        if recipe["batch_size"] % rows:
            raise UserError(
                f"batch_size is {recipe['batch_size']}; allowed: a multiple of {rows}, the batch axis of mesh."
            )
        drain, pending = Drain(history), deque()
        data = batches(records, recipe, batch_sharding(self.distribution))
        for (tokens, mask), rate in zip(data, rates, strict=True):
            self.moving, loss = self.step(self.moving, self.frozen, tokens, mask, rate)
            drain.add(loss, rate)
            pending.append(loss)
            if len(pending) > AHEAD:
                pending.popleft().block_until_ready()
        drain.finish()

    def evaluate(self, records: object, batch_size: int) -> dict[str, float]:
        """Return loss (nats per token), accuracy and tokens on held-out records."""
        evaluator = Evaluator(self.model, self.distribution, batch_size)
        return evaluator.measure(self.moving["trainable"], self.frozen, records)


class Evaluator:
    """Measures a model on held-out records; compiled once."""

    def __init__(self, model: keras.Model, distribution: ModelParallel, batch_size: int):
        """Take a model; `batch_size` is training's, and where it is small more sequences go at once."""
        self.model = model
        self.size = batch_size * max(1, EVALUATION_BATCH // batch_size)
        self.sharding = batch_sharding(distribution)
        self.function = jax.jit(make_evaluation(model))

    def __call__(self, records: object) -> dict[str, float]:
        """Return loss (nats per token), accuracy and tokens on held-out records, with the model as it is now."""
        trainable, frozen = (
            [v.value for v in part] for part in (self.model.trainable_variables, self.model.non_trainable_variables)
        )
        return self.measure(trainable, frozen, records)

    def measure(self, trainable: list, frozen: list, records: object) -> dict[str, float]:
        """Return the same with these values of the model's variables."""
        indices = held_out_indices(records.records)
        sums = []
        for start in range(0, len(indices), self.size):
            tokens, mask = records.read(indices[start : start + self.size])
            short = self.size - len(tokens)  # the last batch, filled up with what does not count
            batch = [on_devices(np.pad(array, ((0, short), (0, 0))), self.sharding) for array in (tokens, mask)]
            sums.append(self.function(trainable, frozen, *batch))
        loss, correct, count = np.array(sums, np.float64).sum(0)
        return {"loss": float(loss / count), "accuracy": float(correct / count), "tokens": int(count)}
