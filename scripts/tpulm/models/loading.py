"""A masked model of a Hugging Face folder on JAX, as a run there exported it: to be evaluated and prompted.

Needs tpulm.training.runtime.start first.
"""

from collections.abc import Mapping
from pathlib import Path

import jax
import keras
import numpy as np

from tpulm.core.errors import UserError
from tpulm.core.files import read_json
from tpulm.models.building import open_model
from tpulm.models.causal import assign
from tpulm.models.masked_models import folder_recipe, folder_weights
from tpulm.models.sharding import Sharded
from tpulm.specs.training_step import ModelSpec
from tpulm.tokenization.tokenizer import TextTokenizer

TOP = 5  # answers to a prompt


def load_masked(folder: Path, where: str, recipe: Mapping) -> tuple[keras.Model, Sharded]:
    """Return the model of a folder, in float32, and how it is sharded over JAX's devices.

    where    the config key of its run; recipe   of the run: mesh, and layout, packing, determinism if it has them

    Raises UserError where the mesh does not fit the devices.
    """
    model, distribution = open_model(ModelSpec.of("mlm", where, {**recipe, **folder_recipe(folder)}))
    load_folder(model, folder / "model.safetensors")
    return model, distribution


def load_folder(model: keras.Model, weights: str | Path) -> None:
    """Load the weights of a Hugging Face folder, model.safetensors there, into a model of its sizes.

    Raises UserError where they are another model's.
    """
    folder = Path(weights).parent
    assign(model.trainable_variables, folder_weights(folder, model.trainable_variables), str(folder))


class FillMask:
    """Predicts the masked token of a prompt, as the fill-mask pipeline of transformers does."""

    def __init__(self, folder: Path, opened: tuple[keras.Model, Sharded] | None = None):
        """Open the model and the tokenizer of a folder, on one device.

        opened  the model, where the folder has the tokenizer only
        """
        self.tokenizer = TextTokenizer.load(folder / "tokenizer.json", folder / "special_tokens_map.json")
        self.mask = self.tokenizer.piece(self.tokenizer.special["mask"])
        self.spaces = read_json(folder / "tokenizer_config.json").get("clean_up_tokenization_spaces", False)
        self.model, self.sharded = opened or load_masked(folder, str(folder), {"mesh": [1, 1]})

    def __call__(self, prompt: str) -> list[dict]:
        """Return the five most likely tokens for the [MASK] of a prompt: score, token, token_str, sequence.

        Raises UserError for a prompt that is longer than the model's positions.
        """
        return self.all(prompt)[0]

    def all(self, prompt: str) -> list[list[dict]]:
        """Return the answers for each [MASK] of a prompt, each with all of them masked."""
        ids = np.array([self.tokenizer.fast.encode(prompt.replace("[MASK]", self.mask)).ids], np.int32)
        most = self.model.backbone.max_sequence_length
        if ids.shape[1] > most:
            raise UserError(f'the prompt "{prompt}" has {ids.shape[1]} tokens; allowed: at most {most}.')
        positions = np.argwhere(ids[0] == self.tokenizer.special["mask"]).T.astype(np.int32)
        inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids), "mask_positions": positions}
        found = []
        for place, logits in zip(positions[0], self.model(inputs, training=False)[0], strict=True):
            scores = np.asarray(jax.nn.softmax(logits))
            best = np.argsort(-scores, kind="stable")[:TOP]
            found.append([self.answer(ids[0], int(place), int(token), float(scores[token])) for token in best])
        return found

    def answer(self, ids: np.ndarray, position: int, token: int, score: float) -> dict:
        """Return an answer, the prompt with this token at the position of the mask in it."""
        filled = np.where(np.arange(len(ids)) == position, token, ids)
        kept = [int(one) for one in filled if one != self.tokenizer.special["pad"]]
        texts = {"token_str": self.text([token], special=True), "sequence": self.text(kept, special=False)}
        return {"score": score, "token": token, **texts}

    def text(self, ids: list[int], special: bool) -> str:
        """Return the text of tokens, with special ones or without."""
        text = self.tokenizer.fast.decode(ids, skip_special_tokens=not special)
        return without_spaces(text) if self.spaces else text


def without_spaces(text: str) -> str:
    """Return a text as transformers does where a tokenizer says clean_up_tokenization_spaces."""
    for mark in (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(mark, mark.strip())
    return text
