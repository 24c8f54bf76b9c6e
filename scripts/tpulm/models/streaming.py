"""A causal model that continues a prompt token by token, for somebody who watches.

Needs tpulm.training.runtime.start first.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import keras
import keras_hub
import numpy as np
from keras import ops

STEP = 64  # sequences are generated in multiples of it: a program is compiled for each
CANDIDATES = 6  # that are told of each token


class Token(NamedTuple):
    """A token that was generated: its id, its probability, and those of the likeliest ids; at temperature 1."""

    token: int
    probability: float
    candidates: list[tuple[int, float]]


class TellingSampler(keras_hub.samplers.Sampler):
    """Draws tokens by settings that are variables, so that nothing is compiled anew for others, and tells of each."""

    def __init__(self, tell: Callable[..., None]):
        """Take what is called with the values of a `Token`, as arrays."""
        super().__init__()
        self.tell = tell
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
        """Return ids, int32 [1], of probabilities [1, vocabulary]; see Holtzman et al. 2020 for top_p."""
        temperature, top_p = self.settings[0], self.settings[1]
        order = ops.flip(ops.argsort(probabilities, -1), -1)
        logits = ops.log(ops.take_along_axis(probabilities, order, -1)) / ops.maximum(temperature, 1e-6)
        scaled = ops.softmax(logits, -1)
        kept = ops.cumsum(scaled, -1) - scaled < top_p  # those before have not reached it: always the first
        drawn = keras.random.categorical(ops.where(kept, logits, -np.inf), 1, seed=self.seeds)
        place = ops.where(temperature > 0, ops.cast(drawn, "int32"), 0)
        chosen = ops.take_along_axis(order, place, -1)
        of_chosen = ops.take_along_axis(probabilities, chosen, -1)
        best, ids = ops.top_k(probabilities, min(CANDIDATES, probabilities.shape[-1]))
        jax.debug.callback(self.tell, chosen[0, 0], of_chosen[0, 0], best[0], ids[0], ordered=True)
        return chosen[:, 0]


class Streaming:
    """Continues prompts of a model; one at a time."""

    def __init__(self, model: keras_hub.models.CausalLM):
        """Take a model with its preprocessor."""
        self.model, self.told = model, queue.SimpleQueue[Token | BaseException | None]()
        self.sampler = TellingSampler(self.tell)
        model.compile(sampler=self.sampler)

    def tell(self, chosen: np.ndarray, probability: np.ndarray, best: np.ndarray, ids: np.ndarray) -> None:
        """Keep a token for whoever waits."""
        candidates = list(zip(map(int, ids), map(float, best), strict=True))
        self.told.put(Token(int(chosen), float(probability), candidates))

    def __call__(self, prompt: list[int], length: int, temperature: float, top_p: float, seed: int) -> Iterator[Token]:
        """Yield `length` tokens after these ids at most, up to the one that ends a document, which is left out."""
        whole = -(-(len(prompt) + length) // STEP) * STEP
        ids = np.zeros((1, whole), np.int32)
        ids[0, : len(prompt)] = prompt
        inputs = {"token_ids": ids, "padding_mask": (np.arange(whole) < len(prompt))[None].astype(np.int32)}
        end = self.model.preprocessor.tokenizer.end_token_id
        self.sampler.set(temperature, top_p, seed)

        def generate() -> None:
            ended: BaseException | None = None
            try:
                function = self.model.make_generate_function()
                jax.block_until_ready(function(inputs, stop_token_ids=[end]))
                jax.effects_barrier()
            except BaseException as error:  # to where it is waited for
                ended = error
            self.told.put(ended)

        threading.Thread(target=generate, daemon=True).start()
        over = False
        try:
            while isinstance(told := self.told.get(), Token):
                if length and told.token != end:
                    length -= 1
                    yield told
            over = True
            if told:
                raise told
        finally:  # who waited may have gone: the next prompt must find nothing of this one
            while not over:
                over = not isinstance(self.told.get(), Token)
