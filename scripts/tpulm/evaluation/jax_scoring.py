"""Score rows and texts with a model on JAX."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import jax
import keras
import numpy as np

from tpulm.evaluation.material import Passage
from tpulm.evaluation.rows import Batch, Row, batched, causal_rows, costs_of, encode_passages, sum_by_text
from tpulm.models.sharding import Sharded, batch_sharding
from tpulm.models.token_losses import losses_and_correct
from tpulm.models.variables import values_of
from tpulm.records.causal_batches import causal_lm
from tpulm.tokenization.tokenizer import TextTokenizer
from tpulm.training.device_batches import AHEAD, whole_batch_on_devices


class Scorer:
    """Scores rows of tokens; compiled once for each shape, and valid for later values of the model's variables."""

    def __init__(self, model: keras.Model, distribution: Sharded, task: Callable, tokens: int, longest: int):
        """Take a model, its sharding, and the function of `tpulm.training.train_step` that prepares its batches.

        tokens   about so many in a batch
        longest  limit of a row, in tokens
        """
        self.model, self.distribution = model, distribution
        self.shapes = tokens, longest, distribution.num_model_replicas

        def measure(trainable: list, frozen: list, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
            inputs, labels, weights = task(batch)
            losses, correct, _ = losses_and_correct(model, trainable, frozen, inputs, labels, training=False)
            return (losses * weights).sum(-1), (correct | (weights == 0)).all(-1)

        self.measure = jax.jit(measure, out_shardings=batch_sharding(distribution))

    def __call__(self, rows: Iterable[Row], texts: int) -> np.ndarray:
        """Return the negative log-likelihood of each text in nats, float64 [texts]; texts  their number."""
        return sum_by_text(((batch, costs) for batch, costs, _ in self.measured(batched(rows, *self.shapes))), texts)

    def measured(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, np.ndarray, np.ndarray]]:
        """Yield each batch with the nats of each row, and whether all scored tokens of the row are the likeliest."""
        trainable, frozen = values_of(self.model)
        pending: list[tuple[Batch, tuple[jax.Array, jax.Array]]] = []
        for batch in batches:
            arrays = whole_batch_on_devices(batch.arrays, self.distribution)
            pending.append((batch, self.measure(trainable, frozen, arrays)))
            if len(pending) > AHEAD:  # pending batches take memory
                finished, (costs, likeliest) = pending.pop(0)
                yield finished, np.asarray(costs), np.asarray(likeliest)
        for finished, (costs, likeliest) in pending:
            yield finished, np.asarray(costs), np.asarray(likeliest)


class CausalScorer:
    """Scores the same texts at each call, with the current values of the model's variables."""

    def __init__(
        self,
        model: keras.Model,
        distribution: Sharded,
        recipe: Mapping,
        tokenizer: TextTokenizer,
        texts: Sequence[Passage],
    ):
        """Take a model, its sharding, its tokenizer, and texts.

        recipe  sequence_length; batch_size and microbatches, which limit the tokens in memory
        """
        self.tokenizer, self.texts, self.encoded = tokenizer, texts, encode_passages(tokenizer, texts)
        self.length = recipe["sequence_length"]
        tokens = recipe["batch_size"] // recipe["microbatches"] * self.length
        self.score = Scorer(model, distribution, causal_lm, tokens, self.length)

    def __call__(self) -> dict[Passage, float]:
        """Return the negative log-likelihood of each text in nats."""
        rows = causal_rows(self.encoded, self.tokenizer, self.length)
        return costs_of(self.texts, self.encoded, self.score(rows, len(self.texts)))
