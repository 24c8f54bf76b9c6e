"""Score texts with a masked model on TensorFlow. Import after tpulm.training.tensorflow_runtime."""

from collections.abc import Iterable

import numpy as np

from tpulm.evaluation.rows import Row, batched, sum_by_text
from tpulm.training.tensorflow_model import cross_entropy, predictions
from tpulm.training.tensorflow_runtime import graph, tf, transformers

# Any number of rows and tokens, so that the model is traced once.
ARRAYS = {
    "input_ids": tf.TensorSpec([None, None], tf.int32),
    "attention_mask": tf.TensorSpec([None, None], tf.int32),
    "positions": tf.TensorSpec([None, 1], tf.int32),
    "labels": tf.TensorSpec([None, 1], tf.int32),
    "weights": tf.TensorSpec([None, 1], tf.float32),
}


def score(
    model: transformers.TFPreTrainedModel, rows: Iterable[Row], texts: int, tokens: int, longest: int
) -> np.ndarray:
    """Return the negative log-likelihood of each text in nats, float64 [texts]; the other parameters: see `batched`.

    texts  number of texts
    """

    def costs(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        logits = predictions(model, batch, training=False)
        return tf.reduce_sum(cross_entropy(logits, batch["labels"]) * batch["weights"], -1)

    run = graph(costs).get_concrete_function(ARRAYS)  # type: ignore[attr-defined]
    batches = batched(rows, tokens, longest)
    scored = ((batch, run({name: tf.constant(batch.arrays[name]) for name in ARRAYS}).numpy()) for batch in batches)
    return sum_by_text(scored, texts)
