"""The training loop on JAX: one segment of a run, from the previous checkpoint to its own.

`MultiProcess` makes the processes of a run agree on when to stop, or to write a snapshot.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from tpulm.core.devices import devices_in_words
from tpulm.core.live_metrics import LiveMetrics
from tpulm.core.processes import StopRequest
from tpulm.models.flops import seconds_at_peak
from tpulm.models.sharding import Sharded, devices_of, replication_notes, shardings
from tpulm.models.variables import assign, count
from tpulm.specs.phases import tokens_until
from tpulm.specs.schedule import learning_rates
from tpulm.training import checkpoint, sharded_arrays
from tpulm.training.callbacks import SingleProcess, StepCallbacks
from tpulm.training.device_batches import AHEAD, batches
from tpulm.training.evaluation import Evaluator
from tpulm.training.history import FigureReader, History
from tpulm.training.jax_run import JaxRun
from tpulm.training.profiling import Profile
from tpulm.training.segment import Segment
from tpulm.training.train_step import TrainState, seed_generators


class MultiProcess(SingleProcess):
    """The coordinator of several processes; with one, it is like `SingleProcess`.

    SIGTERM at any of them reaches all through JAX's preemption service, which takes the signal from Python.
    """

    def first(self, values: list[int]) -> list[int]:
        """Return the values of the first process."""
        return multihost_utils.broadcast_one_to_all(np.array(values, np.int32)).tolist()

    def gather(self, digest: str) -> list[str]:
        """Return the SHA-256 of every process, after waiting for all of them."""
        words = np.frombuffer(bytes.fromhex(digest), np.uint8)
        rows = np.atleast_2d(multihost_utils.process_allgather(words))
        return [row.astype(np.uint8).tobytes().hex() for row in rows]

    def stops(self, request: StopRequest, moment: int) -> bool:
        """Return whether all stop at this moment."""
        if jax.process_count() == 1:
            return super().stops(request, moment)
        return multihost_utils.reached_preemption_sync_point(moment)


class Trainer:
    """A run and the values of its variables on the devices.

    state   TrainState of jax.Array, what a step changes
    frozen  values of the model's non-trainable variables
    """

    def __init__(self, run: JaxRun):
        """Take a run as `build_run` makes it."""
        self.run, self.variables = run, run.variables
        self.dispatch = run.jit_train_step()
        self.read_values()

    def read_values(self) -> None:
        """Take the values of the Keras variables as the state to train."""
        self.state = TrainState(*(placed(self.run.distribution, part) for part in self.variables))
        self.frozen = placed(self.run.distribution, self.run.model.non_trainable_variables)
        # A step donates the memory of its state, which therefore must not be among the frozen values.
        for index in seed_generators(self.run.model):
            self.frozen[index] = jnp.copy(self.frozen[index])

    def load(self, weights: Mapping, optimizer: Mapping, source: str) -> None:
        """Continue from the arrays of a checkpoint; `source` names it in errors. Raises UserError, see `assign`."""
        del self.state, self.frozen  # otherwise the devices would hold the old state and the new one
        assign(self.variables.trainable, weights, source)
        assign(self.variables.optimizer, optimizer, source)
        for index, variable in enumerate(self.variables.random):
            variable.assign(optimizer[f"random/{index}"])
        self.read_values()

    def weights(self) -> dict[str, jax.Array]:
        """Return the trained variables, by path."""
        return sharded_arrays.by_path(self.variables.trainable, self.state.trainable)

    def optimizer(self) -> dict[str, jax.Array]:
        """Return the optimizer's variables by path, and random states by number, for the next segment."""
        # Keras numbers the paths of random states through the life of a process, so they cannot be keys.
        states = {f"random/{index}": value for index, value in enumerate(self.state.random)}
        return sharded_arrays.by_path(self.variables.optimizer, self.state.optimizer) | states

    def state_parts(self) -> tuple[dict[str, np.ndarray], dict[str, tuple[int, ...]]]:
        """Return the parts of weights/* and optimizer/* that this process keeps, and the shapes of the arrays."""
        arrays = {f"weights/{name}": value for name, value in self.weights().items()}
        arrays |= {f"optimizer/{name}": value for name, value in self.optimizer().items()}
        return sharded_arrays.own_parts(arrays), {name: array.shape for name, array in arrays.items()}

    def train(
        self,
        load: Callable,
        first: int,
        rates: np.ndarray,
        history: History,
        callbacks: StepCallbacks | None = None,
    ) -> None:
        """Train from step `first`, counted from 0, on the batches of `load` (see `batches`).

        rates      float32 [steps], learning rates; their number is a multiple of steps_per_execution
        callbacks  called between two dispatches
        """
        if not len(rates):
            return
        step = self.run.step
        steps, span = step.steps_per_execution, (first, first + len(rates))
        reader = FigureReader(history)
        pending: deque[jax.Array] = deque()
        data = batches(load, span, step.batch_size, steps, self.run.distribution)
        for batch, step_rates in zip(data, rates.reshape(-1, steps), strict=True):
            rate = step_rates[0] if steps == 1 else step_rates
            self.state, figures = self.dispatch(self.state, self.frozen, batch, rate)
            if callbacks:
                callbacks.defer_signals()
            reader.add(figures, step_rates)
            pending.append(figures)
            if len(pending) > AHEAD:
                pending.popleft().block_until_ready()
            if callbacks:
                first += steps
                callbacks(first, reader)
        reader.finish()

    @cached_property
    def evaluator(self) -> Evaluator:
        """The evaluator of the model, compiled once."""
        return Evaluator(self.run.model, self.run.distribution, self.run.objective)

    def evaluate(self, data: Iterable[dict[str, np.ndarray]]) -> dict[str, float]:
        """Return the figures of `held_out_metrics` that the step has, on held-out batches."""
        figures = self.evaluator.measure(self.state.trainable, self.frozen, data)
        return {name: figures[name] for name in self.run.step.figures}


def placed(distribution: Sharded, variables: list) -> list[jax.Array]:
    """Return the values of Keras variables, sharded as a step returns them.

    On a mesh of one device, Keras does not shard values: a step would be compiled for them, and again for its outputs.
    """
    places = zip(variables, shardings(distribution, variables), strict=True)
    return [v.value if v.value.sharding == place else jax.device_put(v.value, place) for v, place in places]


def train_segment(
    run: JaxRun, data: tuple[Callable, Callable[[], Iterable[dict[str, np.ndarray]]]], segment: Segment
) -> None:
    """Train a segment and write its checkpoint, history and timings.

    data  a function of a step and rows, see `batches`, and one that returns the batches of the validation split
    """
    (load, held_out), recipe, outputs, previous = data, segment.recipe, segment.outputs, segment.previous
    say, every = segment.say, recipe.get("evaluate_every")
    first, last, is_main_process = recipe["first"], recipe["last"], jax.process_index() == 0
    trainer = Trainer(run)
    devices = devices_of(run.distribution)
    trained, total = count(run.model.trainable_variables), count(run.model.weights)
    parameters = f"{total:,}" if trained == total else f"{trained:,} of {total:,}"
    say(f"steps {first + 1} to {last}, {parameters} parameters, {devices_in_words(devices)}")
    if run.step.responses:
        say("the loss covers tokens of responses only")
    say(f"attention: {run.attention}")
    for sentence in replication_notes(run.distribution):
        say(sentence)
    before = tokens_until(recipe, first, run.step.sequence_length)
    history = History(first, last, run.step.tokens_per_step, say, seconds_at_peak(run, devices), devices, before)
    rates = learning_rates(recipe["schedule"], first, last)

    def measure(watch: Callable) -> dict[str, float]:
        return trainer.evaluate(watch(held_out()))

    with StepCallbacks(trainer, measure, history, segment.snapshots, say, every, MultiProcess()) as callbacks:
        if not callbacks.resume() and previous:
            weights, optimizer = (sharded_arrays.Arrays(previous[part]) for part in ("weights", "optimizer"))
            trainer.load(weights, optimizer, f"the checkpoint with {previous['weights']}")
        callbacks.profile = Profile.of(segment.resources, segment.log)
        history.live = LiveMetrics(segment.log, history.step) if is_main_process else None
        callbacks.redo_evaluation()
        trainer.train(load, history.step, rates[history.step - first :], history, callbacks)
        state = (trainer.weights(), trainer.optimizer(), callbacks.finish())
        save = sharded_arrays.save_sharded
        checkpoint.save_checkpoint(segment, *state, save, is_main_process, run.attention.note)
        if is_main_process:
            history.write(outputs["history"], outputs["timings"], bool(every))
            callbacks.segment_written()
        sharded_arrays.wait_for_all("checkpoint written")  # a process that ends first would take the others for dead
