"""Generate samples of causal language models."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import keras
import keras_hub
import numpy as np

from tpulm.core.errors import UserError, describe

# Lengths are multiples of this, so that prompts of other lengths rarely compile anew.
LENGTHS = 32
ADDED = 8  # more tokens than a preprocessor adds to a text


def make_sampler(recipe: Mapping) -> keras_hub.samplers.Sampler:
    """Return the sampler of `recipe`: sampler; unless it is greedy also k or p, temperature, seed."""
    if recipe["sampler"] == "greedy":
        return keras_hub.samplers.GreedySampler()
    common = {"temperature": recipe["temperature"], "seed": recipe["seed"]}
    if recipe["sampler"] == "top_k":
        return keras_hub.samplers.TopKSampler(k=recipe["k"], **common)
    return keras_hub.samplers.TopPSampler(p=recipe["p"], **common)


def end_ids(tokenizer: keras_hub.tokenizers.Tokenizer) -> list[int]:
    """Return the ids that end a document: none, one, or for Llama 3 two."""
    ids = (tokenizer.end_token_id, getattr(tokenizer, "end_token2_id", None))
    return [token for token in ids if token is not None]


class Continuation(NamedTuple):
    """What a model writes after a prompt.

    text      that follows the prompt in the text of both
    response  text of the new tokens alone, without white space at its ends
    cut       whether the limit of tokens ended it, not the model
    """

    text: str
    response: str
    cut: bool


def count_cut(before: Iterable[Continuation], after: Iterable[Continuation]) -> dict[str, int]:
    """Return how many continuations of a base model and of its finetuned model the limit of tokens ended."""
    return {"before": sum(found.cut for found in before), "after": sum(found.cut for found in after)}


class Generator:
    """Continues prompts; compiled once, whatever the model's variables hold later."""

    def __init__(self, model: keras.Model, recipe: Mapping, rows: int):
        """Sample from `model` by `recipe`: sampler, samples per prompt; max_new_tokens, or max_length with the prompt.

        rows  size of the mesh's axis batch; batches are filled up to a multiple of it

        A model may have several generators.
        """
        self.model, self.recipe, self.rows = model, recipe, rows
        self.sampler = make_sampler(recipe)
        self.states = [np.asarray(variable.value) for variable in self.sampler.variables]
        model.compile(sampler=self.sampler)
        self.function = model.make_generate_function()

    def __call__(self, prompts: list[str]) -> list[list[Continuation]]:
        """Return `samples` continuations of each prompt; every call draws the same numbers.

        Raises UserError for a prompt that leaves no room in max_length.
        """
        samples = self.recipe["samples"]
        texts = [prompt for prompt in prompts for _ in range(samples)]
        preprocessor = self.model.preprocessor
        given, starts, most = self.prepared(texts + [texts[-1]] * (-len(texts) % self.rows))
        stops = end_ids(preprocessor.tokenizer)
        made = self.generated(given, stops)
        places = np.arange(made["token_ids"].shape[1])
        before = places < starts
        new = made["padding_mask"].astype(bool) & ~before & (places < starts + most)
        cut = ~np.any(np.isin(made["token_ids"], stops) & new, axis=1)
        # The prompts as they begin the texts: without special tokens.
        whole, shown, alone = (
            preprocessor.generate_postprocess({"token_ids": made["token_ids"], "padding_mask": mask})
            for mask in (before | new, before, new)
        )
        rows = zip(whole, shown, alone, cut, strict=True)
        found = [Continuation(text[len(prompt) :], own.strip(), bool(ends)) for text, prompt, own, ends in rows]
        return [found[start : start + samples] for start in range(0, len(texts), samples)]

    def prepared(self, texts: list[str]) -> tuple[dict[str, np.ndarray], np.ndarray, int]:
        """Return the arrays of prompts, their lengths in tokens [rows, 1], and the most new tokens of each."""

        def arrays(length: int) -> dict[str, np.ndarray]:
            made = self.model.preprocessor.generate_preprocess(texts, sequence_length=length)
            return {name: np.asarray(array) for name, array in made.items()}

        if "max_length" in self.recipe:
            length = most = self.recipe["max_length"]
        else:
            most = self.recipe["max_new_tokens"]
            room = max(len(text.encode()) for text in texts) + ADDED  # a token has a byte or more
            longest = int(arrays(room)["padding_mask"].sum(axis=1).max())
            length = -(-(longest + most) // LENGTHS) * LENGTHS
        given = arrays(length)
        starts = given["padding_mask"].sum(axis=1, keepdims=True)
        if (starts >= length).any():
            text = texts[int(starts.argmax())]
            raise UserError(
                f"the prompt {describe(text)} leaves no room for an answer: generation.max_length is {length} tokens, "
                "prompt included; allowed: a longer one, or generation.max_new_tokens instead."
            )
        return given, starts, most

    def generated(self, given: Mapping[str, Any], stops: list[int]) -> dict[str, np.ndarray]:
        """Return token ids and padding mask with the tokens that follow those of prompts, up to one of `stops`."""
        model, preprocessor = self.model, self.model.preprocessor
        # Of several generators, each has a sampler and a compiled function of its own.
        model.sampler, model.generate_function = self.sampler, self.function
        for variable, state in zip(self.sampler.variables, self.states, strict=True):
            variable.assign(state)
        model.preprocessor = None  # so that tokens come back
        try:
            made = model.generate(dict(given), stop_token_ids=stops)
        finally:
            model.preprocessor = preprocessor
        return {name: np.asarray(array) for name, array in made.items()}
