"""Score texts with a causal model on JAX. Needs tpulm.training.runtime.start first."""

from collections.abc import Mapping, Sequence

import keras

from tpulm.evaluation.jax_scoring import Scorer
from tpulm.evaluation.rows import causal_rows
from tpulm.evaluation.vocabularies import CausalVocabulary, costs_of
from tpulm.models.sharding import Sharded
from tpulm.training.tasks import causal


class CausalScorer:
    """Scores the same texts each time it is called, with the values that the model's variables hold then."""

    def __init__(
        self, model: keras.Model, distribution: Sharded, recipe: Mapping, vocabulary: str, texts: Sequence[str]
    ):
        """Take a model, how it is sharded, what its run says of it, and texts.

        recipe      sequence_length; batch_size and microbatches, which say what fits into memory
        vocabulary  the preset folder, whose tokenizer is the model's
        """
        self.vocabulary = CausalVocabulary(vocabulary, start=lambda: None)
        self.texts, self.encoded = texts, self.vocabulary.encode(texts)
        self.length = recipe["sequence_length"]
        tokens = recipe["batch_size"] // recipe["microbatches"] * self.length
        self.score = Scorer(model, distribution, causal, tokens, self.length)

    def __call__(self) -> dict[str, float]:
        """Return the negative log-likelihood of each text, nats."""
        rows = causal_rows(self.encoded, self.vocabulary, self.length)
        return costs_of(self.texts, self.encoded, self.score(rows, len(self.texts)))
