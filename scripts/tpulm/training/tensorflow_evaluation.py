"""Loss and accuracy of a TensorFlow masked language model on a held-out split."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from tpulm.records.masked_batches import documents_apart, evaluation_batches
from tpulm.records.reader import Records
from tpulm.training.history import held_out_figures
from tpulm.training.tensorflow_model import loss_sum, predictions
from tpulm.training.tensorflow_runtime import alone, graph, tf, transformers


def evaluate(
    model: transformers.TFPreTrainedModel, records: Records, strategy: tf.distribute.Strategy | None = None
) -> dict[str, float]:
    """Return the figures of `held_out_figures` of a split, for its masked tokens."""
    return evaluator(model, records, strategy)(iter)


def evaluator(
    model: transformers.TFPreTrainedModel, records: Records, strategy: tf.distribute.Strategy | None = None
) -> Callable[[Callable[[Iterable], Iterator]], dict[str, float]]:
    """Return a function that does what `evaluate` does, compiled once; what it is given passes on the batches."""
    strategy = strategy or tf.distribute.get_strategy()
    replicas = strategy.num_replicas_in_sync

    def measure(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        logits = predictions(model, batch, training=False)
        right = tf.cast(tf.argmax(logits, -1, tf.int32) == batch["labels"], tf.float32) * batch["weights"]
        return tf.stack([loss_sum(logits, batch), tf.reduce_sum(right), tf.reduce_sum(batch["weights"])])

    def distributed(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(measure, (batch,)), axis=None)

    def spread(array: np.ndarray) -> tf.distribute.DistributedValues:
        """Split an array's rows over the replicas; rows of zeros, which weigh nothing, make them equal in number."""
        array = np.pad(array, [(0, -len(array) % replicas)] + [(0, 0)] * (array.ndim - 1))
        parts = np.split(array, replicas)
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group])
        )

    one, several = graph(measure), graph(distributed, xla=False)
    run, place = (one, tf.constant) if alone(strategy) else (several, spread)

    def evaluation(watch: Callable[[Iterable], Iterator]) -> dict[str, float]:
        totals = np.zeros(3)
        batches = evaluation_batches(records)
        if records.manifest["packing"] == "segments":
            batches = documents_apart(batches, records.manifest["special_ids"]["pad"])
        for batch in watch(batches):
            totals += run({name: place(array) for name, array in batch.items()}).numpy()
        return held_out_figures(*totals)

    return evaluation
