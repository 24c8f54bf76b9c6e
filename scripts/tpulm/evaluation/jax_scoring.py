"""Score texts with a model on JAX. Needs tpulm.training.runtime.start first."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import jax
import keras
import numpy as np

from tpulm.evaluation.material import Passage
from tpulm.evaluation.rows import Batch, Row, batched, causal_rows, costs_of, encode_passages, sum_by_text
from tpulm.models.sharding import Sharded, batch_sharding
from tpulm.models.token_losses import losses_and_correct
from tpulm.records.causal_batches import causal_lm
from tpulm.tokenization.tokenizer import TextTokenizer
from tpulm.training.device_batches import AHEAD, on_devices


class Scorer:
    """Scores rows; compiled once for each shape, whatever the model's variables hold later."""

    def __init__(self, model: keras.Model, distribution: Sharded, task: Callable, tokens: int, longest: int):
        """Take a model, how it is sharded, and what it predicts (of `tpulm.training.train_step`).

        tokens  that it reads at once; longest  of a row, at most
        """
        self.model, self.sharding = model, batch_sharding(distribution)
        self.shapes = tokens, longest, distribution.num_model_replicas

        def measure(trainable: list, frozen: list, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
            inputs, labels, weights = task(batch)
            losses, correct, _ = losses_and_correct(model, trainable, frozen, inputs, labels, training=False)
            return (losses * weights).sum(-1), (correct | (weights == 0)).all(-1)

        self.measure = jax.jit(measure, out_shardings=self.sharding)

    def __call__(self, rows: Iterable[Row], texts: int) -> np.ndarray:
        """Return the negative log-likelihood of each of so many texts, by their rows: nats, float64 [texts]."""
        return sum_by_text(((batch, costs) for batch, costs, _ in self.measured(batched(rows, *self.shapes))), texts)

    def measured(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, np.ndarray, np.ndarray]]:
        """Yield each batch with the cost of each row, and whether all of its scored tokens are the likeliest ones."""
        variables = self.model.trainable_variables, self.model.non_trainable_variables
        trainable, frozen = ([variable.value for variable in part] for part in variables)
        waiting: list[tuple[Batch, tuple[jax.Array, jax.Array]]] = []
        for batch in batches:
            size = len(batch.texts)
            arrays = {
                name: on_devices(array, self.sharding, slice(0, size), size) for name, array in batch.arrays.items()
            }
            waiting.append((batch, self.measure(trainable, frozen, arrays)))
            if len(waiting) > AHEAD:  # batches that wait take memory
                done, (costs, likeliest) = waiting.pop(0)
                yield done, np.asarray(costs), np.asarray(likeliest)
        for done, (costs, likeliest) in waiting:
            yield done, np.asarray(costs), np.asarray(likeliest)


class CausalScorer:
    """Scores the same texts each time it is called, with the values that the model's variables hold then."""

    def __init__(
        self,
        model: keras.Model,
        distribution: Sharded,
        recipe: Mapping,
        tokenizer: TextTokenizer,
        texts: Sequence[Passage],
    ):
        """Take a model, how it is sharded, what its run says of it, its tokenizer, and texts.

        recipe  sequence_length; batch_size and microbatches, which say what fits into memory
        """
        self.tokenizer, self.texts, self.encoded = tokenizer, texts, encode_passages(tokenizer, texts)
        self.length = recipe["sequence_length"]
        tokens = recipe["batch_size"] // recipe["microbatches"] * self.length
        self.score = Scorer(model, distribution, causal_lm, tokens, self.length)

    def __call__(self) -> dict[Passage, float]:
        """Return the negative log-likelihood of each text, nats."""
        rows = causal_rows(self.encoded, self.tokenizer, self.length)
        return costs_of(self.texts, self.encoded, self.score(rows, len(self.texts)))
