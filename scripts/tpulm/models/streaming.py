"""Continue prompts with a causal model, passing on each token as it comes, and score texts.

Needs tpulm.training.runtime.start first, in the same thread: some settings of Keras are a thread's own.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import keras
import keras_hub
import numpy as np
from jax.experimental import io_callback
from keras import ops

from tpulm.models.sampling import end_ids
from tpulm.models.variables import values_of
from tpulm.tokenization.tokenizer import TextTokenizer

HALF = "\ufffd"  # the end of a text whose last character is incomplete
STEP = 64  # tokens; lengths are multiples of it, since each length compiles a program
CANDIDATES = 6  # likeliest tokens that are passed on with each token


class Reply:
    """The text after a prompt, as it grows."""

    def __init__(self, tokenizer: TextTokenizer, ids: list[int], ending: str):
        """Begin after the ids of a prompt; ending  the text at which the reply ends, empty for none."""
        self.tokenizer, self.ids, self.ending = tokenizer, list(ids), ending
        self.before, self.shown, self.ended = len(tokenizer.decode(ids)), 0, False

    def add(self, token: int) -> str:
        """Return the text that a token adds, without an incomplete character or a possible beginning of the ending."""
        self.ids.append(token)
        whole = self.whole().rstrip(HALF)
        self.ended = bool(self.ending) and self.ending in whole
        parts = (self.ending[:length] for length in range(len(self.ending) - 1, 0, -1))
        if self.ended:
            whole = whole.partition(self.ending)[0].rstrip()
        else:
            whole = whole.removesuffix(next(filter(whole.endswith, parts), ""))
        added, self.shown = whole[self.shown :], max(self.shown, len(whole))
        return added

    def rest(self) -> str:
        """Return the text that was held back, after the last token of the reply."""
        return "" if self.ended else self.whole().rstrip(HALF)[self.shown :]

    def whole(self) -> str:
        """Return the text after the prompt."""
        return self.tokenizer.decode(self.ids)[self.before :]


class Token(NamedTuple):
    """A generated token: its id, its probability, and the likeliest ids with theirs, at temperature 1."""

    token: int
    probability: float
    candidates: list[tuple[int, float]]


class TellingSampler(keras_hub.samplers.Sampler):
    """Draws tokens and passes them on; its settings are variables, so that new ones do not compile anew."""

    def __init__(self, on_token: Callable[..., np.bool], size: int, end: int):
        """Draw ids below `size`; after a token for which `on_token` returns False comes `end`.

        on_token  takes arrays: a token's id and probability, probabilities and ids of candidates
        """
        super().__init__()
        self.on_token, self.size, self.end = on_token, size, end
        self.settings = keras.Variable([1.0, 1.0], trainable=False, dtype="float32", name="settings")
        self.seeds = keras.random.SeedGenerator(0)

    @property
    def variables(self) -> list[keras.Variable]:
        """The variables that a generation reads and changes."""
        return [self.settings, *super().variables]

    def set(self, temperature: float, top_p: float, seed: int) -> None:
        """Set how the next tokens are drawn; temperature 0 is greedy decoding."""
        self.settings.assign([temperature, top_p])
        self.seeds.state.assign(keras.random.SeedGenerator(seed).state)

    def get_next_token(self, probabilities: jax.Array) -> jax.Array:
        """Return an id, int32 [1], drawn by probabilities, float32 [1, vocabulary] (top_p: Holtzman et al. 2020)."""
        temperature, top_p = self.settings[0], self.settings[1]
        # Embeddings can have more rows than the tokenizer has tokens.
        probabilities = ops.where(ops.arange(probabilities.shape[-1]) < self.size, probabilities, 0.0)
        order = ops.flip(ops.argsort(probabilities, -1), -1)
        logits = ops.log(ops.take_along_axis(probabilities, order, -1)) / ops.maximum(temperature, 1e-6)
        scaled = ops.softmax(logits, -1)
        nucleus = ops.cumsum(scaled, -1) - scaled < top_p  # always the first: none before it
        drawn = keras.random.categorical(ops.where(nucleus, logits, -np.inf), 1, seed=self.seeds)
        place = ops.where(temperature > 0, ops.cast(drawn, "int32"), 0)
        chosen = ops.take_along_axis(order, place, -1)[:, 0]
        best, ids = ops.top_k(probabilities, min(CANDIDATES, self.size))
        drawn = chosen[0], probabilities[0, chosen[0]], best[0], ids[0]
        more = io_callback(self.on_token, jax.ShapeDtypeStruct((), np.bool_), *drawn, ordered=True)
        return ops.where(more, chosen, ops.cast(self.end, chosen.dtype))


def padded(ids: list[int], room: int, most: int | None) -> dict[str, np.ndarray]:
    """Return the inputs of a model: ids, then zeros, int32 [1, length], and a mask of the ids.

    The length has room for `room` more tokens and is a multiple of STEP, but at most `most`.
    """
    whole = -(-(len(ids) + room) // STEP) * STEP
    whole = min(whole, most) if most else whole
    tokens = np.zeros((1, whole), np.int32)
    tokens[0, : len(ids)] = ids
    return {"token_ids": tokens, "padding_mask": (np.arange(whole) < len(ids))[None].astype(np.int32)}


class Streaming:
    """Continues prompts and scores texts with a model, one at a time."""

    def __init__(self, model: keras_hub.models.CausalLM, size: int):
        """Take a model with its preprocessor; size  number of ids of its tokenizer."""
        self.ends = end_ids(model.preprocessor.tokenizer)
        self.model, self.sampler = model, TellingSampler(self.hear, size, self.ends[0])
        self.most = getattr(model.backbone, "max_sequence_length", None)
        self.scored = jax.jit(self.log_probabilities)
        model.compile(sampler=self.sampler)

    def hear(self, chosen: np.ndarray, probability: np.ndarray, best: np.ndarray, ids: np.ndarray) -> np.bool:
        """Pass a token on; return whether to generate another one."""
        self.left -= 1
        more = int(chosen) not in self.ends and self.left >= 0
        if more:
            candidates = list(zip(map(int, ids), map(float, best), strict=True))
            more = self.on_token(Token(int(chosen), float(probability), candidates)) and self.left > 0
        return np.bool_(more)

    def __call__(
        self,
        prompt: list[int],
        on_token: Callable[[Token], bool],
        length: int,
        temperature: float,
        top_p: float,
        seed: int,
    ) -> None:
        """Continue a prompt by `length` tokens at most, up to one that ends a document, which is left out.

        on_token  takes each token, in another thread; returns False to end the generation
        """
        self.on_token, self.left = on_token, length
        inputs = padded(prompt, length, self.most)
        self.sampler.set(temperature, top_p, seed)
        jax.block_until_ready(self.model.make_generate_function()(inputs, stop_token_ids=self.ends))
        jax.effects_barrier()

    def log_probabilities(self, variables: tuple[list, list], inputs: dict[str, jax.Array]) -> jax.Array:
        """Return the natural log probability of each token given those before it, float32 [length - 1]."""
        logits, _ = self.model.stateless_call(*variables, inputs, training=False)
        scores = jax.nn.log_softmax(logits[0, :-1].astype("float32"))
        return jax.numpy.take_along_axis(scores, inputs["token_ids"][0, 1:, None], -1)[:, 0]

    def score(self, ids: list[int]) -> list[float]:
        """Return the natural log probability of each of the ids but the first."""
        scores = self.scored(values_of(self.model), padded(ids, 0, self.most))
        return np.asarray(scores)[: len(ids) - 1].tolist()
