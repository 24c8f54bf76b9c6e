"""A causal model that continues a prompt and tells of each token as it comes, for somebody who watches.

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

from tpulm.tokenization.tokenizer import TextTokenizer

HALF = "\ufffd"  # what a text ends with while a character has not come whole
STEP = 64  # sequences are generated in multiples of it: a program is compiled for each
CANDIDATES = 6  # named with each token


class Reply:
    """What follows a prompt, as it grows."""

    def __init__(self, tokenizer: TextTokenizer, ids: list[int], ending: str):
        """Begin behind the ids of a prompt; ending  what the reply ends at, empty where there is no such text."""
        self.tokenizer, self.ids, self.ending = tokenizer, list(ids), ending
        self.before, self.shown, self.ended = len(tokenizer.decode(ids)), 0, False

    def add(self, token: int) -> str:
        """Return the text that a token adds: nothing while it is a part of a character, or may be one of the ending."""
        self.ids.append(token)
        whole = self.whole().rstrip(HALF)
        self.ended = bool(self.ending) and self.ending in whole
        parts = (self.ending[:length] for length in range(len(self.ending) - 1, 0, -1))
        if self.ended:
            whole = whole.partition(self.ending)[0].rstrip()
        else:
            whole = whole.removesuffix(next(filter(whole.endswith, parts), ""))
        said, self.shown = whole[self.shown :], max(self.shown, len(whole))
        return said

    def rest(self) -> str:
        """Return the rest of the reply, which was held back, after its last token."""
        return "" if self.ended else self.whole().rstrip(HALF)[self.shown :]

    def whole(self) -> str:
        """Return the text behind the prompt."""
        return self.tokenizer.decode(self.ids)[self.before :]


class Token(NamedTuple):
    """A token that was generated: its id, its probability, and those of the likeliest ids; at temperature 1."""

    token: int
    probability: float
    candidates: list[tuple[int, float]]


class TellingSampler(keras_hub.samplers.Sampler):
    """Draws tokens by settings that are variables, so that nothing is compiled anew for others, and tells of each."""

    def __init__(self, tell: Callable[..., np.bool], size: int, end: int):
        """Draw ids below `size`; after a token for which `tell` returns False comes `end`.

        tell  is called with a token's id and probability, and with probabilities and ids of candidates, as arrays
        """
        super().__init__()
        self.tell, self.size, self.end = tell, size, end
        self.settings = keras.Variable([1.0, 1.0], trainable=False, dtype="float32", name="settings")
        self.seeds = keras.random.SeedGenerator(0)

    @property
    def variables(self) -> list[keras.Variable]:
        """What a generation reads and changes."""
        return [self.settings, *super().variables]

    def set(self, temperature: float, top_p: float, seed: int) -> None:
        """Set how the next tokens are drawn; temperature 0 is greedy."""
        self.settings.assign([temperature, top_p])
        self.seeds.state.assign(keras.random.SeedGenerator(seed).state)

    def get_next_token(self, probabilities: jax.Array) -> jax.Array:
        """Return ids, int32 [1], of probabilities, float32 [1, vocabulary]; top_p as of Holtzman et al. 2020."""
        temperature, top_p = self.settings[0], self.settings[1]
        # Embeddings can have more rows than the tokenizer has tokens.
        probabilities = ops.where(ops.arange(probabilities.shape[-1]) < self.size, probabilities, 0.0)
        order = ops.flip(ops.argsort(probabilities, -1), -1)
        logits = ops.log(ops.take_along_axis(probabilities, order, -1)) / ops.maximum(temperature, 1e-6)
        scaled = ops.softmax(logits, -1)
        kept = ops.cumsum(scaled, -1) - scaled < top_p  # those before have not reached it: always the first
        drawn = keras.random.categorical(ops.where(kept, logits, -np.inf), 1, seed=self.seeds)
        place = ops.where(temperature > 0, ops.cast(drawn, "int32"), 0)
        chosen = ops.take_along_axis(order, place, -1)[:, 0]
        best, ids = ops.top_k(probabilities, min(CANDIDATES, self.size))
        drawn = chosen[0], probabilities[0, chosen[0]], best[0], ids[0]
        more = io_callback(self.tell, jax.ShapeDtypeStruct((), np.bool_), *drawn, ordered=True)
        return ops.where(more, chosen, ops.cast(self.end, chosen.dtype))


def padded(ids: list[int], room: int, most: int | None) -> dict[str, np.ndarray]:
    """Return the inputs of a model: ids, then zeros, int32 [1, length], and a mask of the ids.

    The length has room for so many more tokens, and is a multiple of STEP; no more than `most`.
    """
    whole = -(-(len(ids) + room) // STEP) * STEP
    whole = min(whole, most) if most else whole
    tokens = np.zeros((1, whole), np.int32)
    tokens[0, : len(ids)] = ids
    return {"token_ids": tokens, "padding_mask": (np.arange(whole) < len(ids))[None].astype(np.int32)}


class Streaming:
    """Continues prompts of a model, and scores them; one at a time."""

    def __init__(self, model: keras_hub.models.CausalLM, size: int):
        """Take a model with its preprocessor; size  ids of its tokenizer."""
        tokenizer = model.preprocessor.tokenizer
        ends = (tokenizer.end_token_id, getattr(tokenizer, "end_token2_id", None))  # Llama 3 has two
        self.ends = [token for token in ends if token is not None]
        self.model, self.sampler = model, TellingSampler(self.hear, size, self.ends[0])
        self.most = getattr(model.backbone, "max_sequence_length", None)
        self.scored = jax.jit(self.log_probabilities)
        model.compile(sampler=self.sampler)

    def hear(self, chosen: np.ndarray, probability: np.ndarray, best: np.ndarray, ids: np.ndarray) -> np.bool:
        """Tell of a token; return whether there is to be another one."""
        self.left -= 1
        more = int(chosen) not in self.ends and self.left >= 0
        if more:
            candidates = list(zip(map(int, ids), map(float, best), strict=True))
            more = self.tell(Token(int(chosen), float(probability), candidates)) and self.left > 0
        return np.bool_(more)

    def __call__(
        self,
        prompt: list[int],
        tell: Callable[[Token], bool],
        length: int,
        temperature: float,
        top_p: float,
        seed: int,
    ) -> None:
        """Continue these ids by `length` tokens at most, up to one that ends a document, which is left out.

        tell  is called with each token, from another thread; where it returns False, that was the last one
        """
        self.tell, self.left = tell, length
        inputs = padded(prompt, length, self.most)
        self.sampler.set(temperature, top_p, seed)
        jax.block_until_ready(self.model.make_generate_function()(inputs, stop_token_ids=self.ends))
        jax.effects_barrier()

    def log_probabilities(self, variables: tuple[list, list], inputs: dict[str, jax.Array]) -> jax.Array:
        """Return log p of each token given those before it, natural logarithm, float32 [length - 1]."""
        logits, _ = self.model.stateless_call(*variables, inputs, training=False)
        found = jax.nn.log_softmax(logits[0, :-1].astype("float32"))
        return jax.numpy.take_along_axis(found, inputs["token_ids"][0, 1:, None], -1)[:, 0]

    def score(self, ids: list[int]) -> list[float]:
        """Return log p of each of these ids but the first, natural logarithm."""
        variables = [
            [one.value for one in group]
            for group in (self.model.trainable_variables, self.model.non_trainable_variables)
        ]
        found = self.scored(tuple(variables), padded(ids, 0, self.most))
        return np.asarray(found)[: len(ids) - 1].tolist()
