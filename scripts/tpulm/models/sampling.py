"""Generate samples of causal language models. Needs tpulm.training.runtime.start first."""

import keras
import keras_hub
import numpy as np


def make_sampler(recipe: dict) -> keras_hub.samplers.Sampler:
    """Return the sampler of `recipe`: sampler; unless it is greedy also k or p, temperature, seed."""
    if recipe["sampler"] == "greedy":
        return keras_hub.samplers.GreedySampler()
    common = {"temperature": recipe["temperature"], "seed": recipe["seed"]}
    if recipe["sampler"] == "top_k":
        return keras_hub.samplers.TopKSampler(k=recipe["k"], **common)
    return keras_hub.samplers.TopPSampler(p=recipe["p"], **common)


class Generator:
    """Continues prompts; compiled once, whatever the model's variables hold later."""

    def __init__(self, model: keras.Model, recipe: dict, rows: int):
        """Sample from `model` by `recipe` (sampler, max_length in tokens, samples per prompt).

        rows  size of the mesh's axis batch; batches are filled up to a multiple of it
        """
        self.model, self.recipe, self.rows = model, recipe, rows
        self.sampler = make_sampler(recipe)
        self.states = [np.asarray(variable.value) for variable in self.sampler.variables]
        model.compile(sampler=self.sampler)

    def __call__(self, prompts: list[str]) -> list[list[str]]:
        """Return `samples` continuations of each prompt, without the prompt; every call draws the same numbers."""
        for variable, state in zip(self.sampler.variables, self.states, strict=True):
            variable.assign(state)
        samples = self.recipe["samples"]
        texts = [prompt for prompt in prompts for _ in range(samples)]
        filling = [texts[-1]] * (-len(texts) % self.rows)
        length, preprocessor = self.recipe["max_length"], self.model.preprocessor
        generated = self.model.generate(texts + filling, max_length=length)[: len(texts)]
        # The prompts as they begin the generated texts: without special tokens, and cut at max_length.
        shown = preprocessor.generate_postprocess(preprocessor.generate_preprocess(texts, sequence_length=length))
        continuations = [text[len(prompt) :] for text, prompt in zip(generated, shown, strict=True)]
        return [continuations[i : i + samples] for i in range(0, len(continuations), samples)]

    def responses(self, prompts: list[str]) -> list[str]:
        """Return the greedy continuation of each prompt, without the special tokens of the prompt."""
        filling = [prompts[-1]] * (-len(prompts) % self.rows)
        generated = self.model.generate(prompts + filling, max_length=self.recipe["max_length"], strip_prompt=True)
        return [text.strip() for text in generated[: len(prompts)]]
