"""Train masked language models on TensorFlow, and evaluate them on a held-out split."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np

from tpulm.compat.tf_keras import dropout_generators
from tpulm.core.arrays import load_arrays
from tpulm.core.devices import IN_USE, devices_in_words
from tpulm.core.errors import UserError
from tpulm.core.live_metrics import LiveMetrics
from tpulm.records.masked_batches import documents_apart, evaluation_batches, training_batch
from tpulm.records.reader import Records
from tpulm.specs.schedule import learning_rates
from tpulm.training import checkpoint
from tpulm.training.callbacks import StepCallbacks
from tpulm.training.history import FigureReader, History, held_out_metrics
from tpulm.training.segment import Segment
from tpulm.training.tensorflow_model import (
    assign,
    build_model,
    load_weights,
    loss_sum,
    named_arrays,
    predictions,
    right_sum,
)
from tpulm.training.tensorflow_runtime import graph, is_single_device, tf, tf_keras, transformers


def evaluate(
    model: transformers.TFPreTrainedModel, records: Records, strategy: tf.distribute.Strategy | None = None
) -> dict[str, float]:
    """Return the figures of `held_out_metrics` for the masked tokens of a split."""
    return evaluator(model, records, strategy)(iter)


def evaluator(
    model: transformers.TFPreTrainedModel, records: Records, strategy: tf.distribute.Strategy | None = None
) -> Callable[[Callable[[Iterable], Iterator]], dict[str, float]]:
    """Return a function, compiled once, of the figures of `evaluate`; its argument passes on the batches."""
    strategy = strategy or tf.distribute.get_strategy()
    replicas = strategy.num_replicas_in_sync

    def measure(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        logits = predictions(model, batch, training=False)
        correct = tf.cast(tf.argmax(logits, -1, tf.int32) == batch["labels"], tf.float32) * batch["weights"]
        return tf.stack([loss_sum(logits, batch), tf.reduce_sum(correct), tf.reduce_sum(batch["weights"])])

    def distributed(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(measure, (batch,)), axis=None)

    def spread(array: np.ndarray) -> tf.distribute.DistributedValues:
        """Return an array split over the replicas; rows of zeros, which have no weight, make the parts equal."""
        array = np.pad(array, [(0, -len(array) % replicas)] + [(0, 0)] * (array.ndim - 1))
        parts = np.split(array, replicas)
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group])
        )

    on_device, on_replicas = graph(measure), graph(distributed, xla=False)
    run, place = (on_device, tf.constant) if is_single_device(strategy) else (on_replicas, spread)

    def evaluation(watch: Callable[[Iterable], Iterator]) -> dict[str, float]:
        totals = np.zeros(3)
        batches = evaluation_batches(records)
        if records.manifest["packing"] == "segments":
            batches = documents_apart(batches, records.manifest["special_ids"]["pad"])
        for batch in watch(batches):
            totals += run({name: place(array) for name, array in batch.items()}).numpy()
        return held_out_metrics(*totals)

    return evaluation


NOT_DECAYED = ["bias", "LayerNorm", "layer_norm", "layernorm"]  # searched for in the names of variables


def build_optimizer(model: transformers.TFPreTrainedModel, recipe: dict) -> tf_keras.optimizers.AdamW:
    """Return AdamW (Loshchilov and Hutter 2019) for `model`; its rate is set step by step."""
    optimizer = tf_keras.optimizers.AdamW(
        learning_rate=0.0,
        weight_decay=recipe["weight_decay"],
        beta_1=recipe["beta_1"],
        beta_2=recipe["beta_2"],
        epsilon=recipe["epsilon"],
        jit_compile=False,
    )
    optimizer.exclude_from_weight_decay(var_names=NOT_DECAYED)
    optimizer.build(model.trainable_variables)
    return optimizer


class Trainer:
    """A model, its optimizer and the compiled step, under one strategy."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        config: transformers.PretrainedConfig,
        recipe: dict,
        init: str | None = None,
    ):
        """Build model and optimizer.

        recipe  seed, precision, optimizer; microbatches, if there are several
        init    model.safetensors with PyTorch's names to start from; None to draw weights
        """
        self.strategy, self.seed, self.microbatches = strategy, recipe["seed"], recipe.get("microbatches", 1)
        tf_keras.mixed_precision.set_global_policy(recipe["precision"])
        with strategy.scope():
            self.model = build_model(config, recipe["seed"])
            if init:
                load_weights(self.model, init)
            self.optimizer = build_optimizer(self.model, recipe["optimizer"])
            self.dropouts = dropout_generators(self.model)
        self.step = self.make_train_step(recipe["optimizer"]["global_clipnorm"])

    def make_train_step(self, global_clipnorm: float | None) -> Callable:
        """Return the compiled function of one update: (batch, rate, number of the step) -> figures.

        figures  float32 [3]: loss, nats per prediction; accuracy, the share of correct predictions; norm of
                 the gradients of all variables, before any clipping
        """
        # If replicas communicate within a step, XLA compiles only what each computes alone.
        mirrored = isinstance(self.strategy, tf.distribute.MirroredStrategy)
        gradients = graph(self.gradients) if mirrored else self.gradients

        def step(batch: dict, rate: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
            """Run one step on every replica; return the figures of all of them."""
            replica = tf.distribute.get_replica_context()
            batch = dict(batch, replica=tf.cast(replica.replica_id_in_sync_group, tf.int64))
            weight = replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(batch["weights"]))
            # A small batch may have nothing to predict.
            figures, grads = gradients(batch, number, tf.maximum(weight, 1.0))
            figures, grads = replica.all_reduce(tf.distribute.ReduceOp.SUM, [figures, grads])
            norm = tf.linalg.global_norm(grads)
            if global_clipnorm is not None:
                grads, _ = tf.clip_by_global_norm(grads, global_clipnorm, use_norm=norm)
            self.optimizer.learning_rate.assign(rate)
            self.optimizer.apply_gradients(
                zip(grads, self.model.trainable_variables, strict=True), skip_gradients_aggregation=True
            )
            return tf.concat([figures, [tf.cast(norm, figures.dtype)]], 0)

        if is_single_device(self.strategy):
            return graph(step)

        def distributed(batch: dict, rate: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
            figures = self.strategy.run(step, (batch, rate, number))
            return self.strategy.experimental_local_results(figures)[0]

        return graph(distributed, xla=False)

    def gradients(self, batch: dict[str, tf.Tensor], number: tf.Tensor, weight: tf.Tensor) -> tuple:
        """Return this replica's part of the figures and gradients, summed over microbatches.

        weight  number of predictions of all replicas, by which the sums are divided
        """
        batch = dict(batch)
        replica = batch.pop("replica")
        for index, dropout in enumerate(self.dropouts):
            # Philox state: a counter of 128 bits and a key. Dropout, too, is a function of seed and step.
            key = self.seed * 1_000_003 + index + replica * 100_003
            dropout.state.assign(tf.stack([tf.zeros((), tf.int64), number, key]))
        if self.microbatches == 1:
            return self.gradients_at_once(batch, weight)
        parts = {
            name: tf.reshape(array, [self.microbatches, array.shape[0] // self.microbatches, *array.shape[1:]])
            for name, array in batch.items()
        }

        def accumulate(index: tf.Tensor, figures: tf.Tensor, grads: list[tf.Tensor]) -> tuple:
            part = {name: array[index] for name, array in parts.items()}
            more, new = self.gradients_at_once(part, weight)
            return index + 1, figures + more, [total + added for total, added in zip(grads, new, strict=True)]

        zeros = [tf.zeros_like(variable) for variable in self.model.trainable_variables]
        _, figures, grads = tf.while_loop(
            lambda index, *_: index < self.microbatches,
            accumulate,
            (tf.constant(0), tf.zeros(2), zeros),
            parallel_iterations=1,
            maximum_iterations=self.microbatches,
        )
        return figures, grads

    def gradients_at_once(self, batch: dict[str, tf.Tensor], weight: tf.Tensor) -> tuple:
        """Return figures and gradients of records that are in memory together."""
        with tf.GradientTape() as tape:
            logits = predictions(self.model, batch, training=True)
            loss = loss_sum(logits, batch) / weight
        grads = tape.gradient(loss, self.model.trainable_variables, unconnected_gradients="zero")
        grads = [tf.convert_to_tensor(gradient) for gradient in grads]  # embeddings give sparse ones
        return tf.stack([loss, right_sum(logits, batch) / weight]), grads

    def train(
        self,
        load: Callable[[int], dict],
        batch_size: int,
        first: int,
        rates: np.ndarray,
        history: History,
        callbacks: StepCallbacks | None = None,
    ) -> None:
        """Train from step `first`, counted from 0, on the arrays of `load`, see `global_batches`.

        rates  float32 [steps], learning rates; callbacks  called between two steps

        Raises UserError for a loss that is not finite.
        """
        if not len(rates):
            return
        reader = FigureReader(history)
        data = global_batches(self.strategy, load, batch_size, first, first + len(rates))
        for step, (batch, rate) in enumerate(zip(data, rates, strict=True), first):
            figures = self.step(batch, tf.constant(rate), tf.constant(step, tf.int64))
            if callbacks:
                callbacks.defer_signals()
            reader.add(figures, rates[step - first : step - first + 1])
            if callbacks:
                callbacks(step + 1, reader)
        reader.finish()

    def weights(self) -> dict[str, np.ndarray]:
        """Return the model's variables as arrays."""
        return named_arrays(self.model.weights)

    def optimizer_state(self) -> dict[str, np.ndarray]:
        """Return the optimizer's variables as arrays."""
        return named_arrays(self.optimizer.variables)

    def state_parts(self) -> tuple[dict[str, np.ndarray], dict[str, tuple[int, ...]]]:
        """Return weights/* and optimizer/* as the parts that `Snapshots.save` takes, and their shapes."""
        arrays = {f"weights/{name}": np.asarray(array) for name, array in self.weights().items()}
        arrays |= {f"optimizer/{name}": np.asarray(array) for name, array in self.optimizer_state().items()}
        parts = {f"{name}@{','.join('0' * array.ndim)}": array for name, array in arrays.items()}
        return parts, {name: array.shape for name, array in arrays.items()}

    def load(self, weights: Mapping[str, np.ndarray], optimizer: Mapping[str, np.ndarray], source: str) -> None:
        """Load the arrays of a checkpoint; `source` names it in errors."""
        assign(self.model.weights, weights, source)
        assign(self.optimizer.variables, optimizer, source)


def check_microbatches(where: str, recipe: Mapping, replicas: int) -> None:
    """Raise UserError if the records of a replica cannot be divided into equal microbatches.

    where   the config key of the run
    recipe  batch_size; microbatches, if there are several
    """
    size, microbatches = recipe["batch_size"], recipe.get("microbatches", 1)
    if microbatches > 1 and size % (replicas * microbatches):
        raise UserError(
            f"{where}.batch_size is {size}; allowed: a multiple of the {replicas} device{'s' * (replicas != 1)} of "
            f"this job times microbatches, {microbatches}."
        )


def train_segment(trainer: Trainer, records: tuple[Records, Records], segment: Segment) -> None:
    """Train a segment and write its checkpoint, history and timings; records  of the splits train and validation."""
    (train, validation), recipe, outputs, previous = records, segment.recipe, segment.outputs, segment.previous
    say, every = segment.say, recipe.get("evaluate_every")
    first, last, batch_size = recipe["first"], recipe["last"], recipe["batch_size"]
    say(f"steps {first + 1} to {last}, {trainer.model.num_parameters():,} parameters, {devices_in_words(IN_USE)}")
    history = History(first, last, batch_size * train.sequence_length, say, devices=IN_USE)
    rates, load = learning_rates(recipe["schedule"], first, last), partial(training_batch, train, recipe)
    measure = evaluator(trainer.model, validation, trainer.strategy)
    with StepCallbacks(trainer, measure, history, segment.snapshots, say, every) as callbacks:
        if not callbacks.resume() and previous:
            weights, optimizer = (load_arrays(previous[part]) for part in ("weights", "optimizer"))
            trainer.load(weights, optimizer, f"the checkpoint with {previous['weights']}")
        history.live = LiveMetrics(segment.log, history.step)
        callbacks.redo_evaluation()
        trainer.train(load, batch_size, history.step, rates[history.step - first :], history, callbacks)
        evaluation = callbacks.finish()
        checkpoint.save_checkpoint(segment, trainer.weights(), trainer.optimizer_state(), evaluation)
        history.write(outputs["history"], outputs["timings"], bool(every))
        callbacks.segment_written()


def global_batches(
    strategy: tf.distribute.Strategy, load: Callable[[int], dict], batch_size: int, first: int, last: int
) -> tf.data.Dataset | tf.distribute.DistributedDataset:
    """Return an iterable over the global batches of steps `first` to `last`, each split over the replicas."""
    example = load(first)
    names = sorted(example)

    def fetch(step: tf.Tensor) -> dict[str, tf.Tensor]:
        arrays = tf.numpy_function(
            lambda number: [load(int(number))[name] for name in names], [step], [example[n].dtype for n in names]
        )
        for array, name in zip(arrays, names, strict=True):
            array.set_shape([batch_size, *example[name].shape[1:]])
        return dict(zip(names, arrays, strict=True))

    dataset = tf.data.Dataset.range(first, last).map(fetch, num_parallel_calls=1, deterministic=True)
    options = tf.data.Options()
    options.autotune.enabled = False  # there is nothing to tune, and its thread ends up to 0.2 s later
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = dataset.prefetch(4).with_options(options)
    return dataset if is_single_device(strategy) else strategy.experimental_distribute_dataset(dataset)
