"""Load exported masked models on JAX from their Hugging Face folders, and fill in masked tokens of prompts."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import jax
import keras
import numpy as np
from scipy.special import softmax

from tpulm.core.errors import UserError
from tpulm.core.files import read_json
from tpulm.models import masked_models
from tpulm.models.building import open_model
from tpulm.models.sharding import Sharded
from tpulm.models.variables import values_of
from tpulm.specs.training_step import ModelSpec
from tpulm.tokenization.tokenizer import TextTokenizer

TOP = 5  # answers to a mask
LENGTH_STEP = 32  # prompts are padded to multiples of it, so that few lengths are compiled


def load_masked(folder: Path, where: str, recipe: Mapping) -> tuple[keras.Model, Sharded]:
    """Return the float32 model of a folder and its sharding over JAX's devices.

    where    the config key of its run; recipe   of the run: mesh; optionally layout, packing, determinism

    Raises UserError if the mesh does not fit the devices.
    """
    model, distribution = open_model(
        ModelSpec.of("mlm", where, {**recipe, **masked_models.folder_recipe(folder)}), masked_models
    )
    masked_models.load_folder(model, folder / "model.safetensors")
    return model, distribution


class FillMask:
    """Predicts the masked token of a prompt, as the fill-mask pipeline of transformers does."""

    def __init__(self, folder: Path, opened: tuple[keras.Model, Sharded] | None = None):
        """Open the model and the tokenizer of a folder, on one device.

        opened  the model and its sharding, if the folder has only the tokenizer
        """
        self.tokenizer = TextTokenizer.load(folder / "tokenizer.json", folder / "special_tokens_map.json")
        self.mask = self.tokenizer.piece(self.tokenizer.special["mask"])
        self.spaces = read_json(folder / "tokenizer_config.json").get("clean_up_tokenization_spaces", False)
        self.model, self.sharded = opened or load_masked(folder, str(folder), {"mesh": [1, 1]})
        self.predict = jax.jit(partial(self.model.stateless_call, training=False))

    def __call__(self, prompt: str) -> list[dict]:
        """Return the five most likely tokens for the [MASK] of a prompt: score, token, token_str, sequence.

        Raises UserError for a prompt that is longer than the model's positions.
        """
        return self.all(prompt)[0]

    def all(self, prompt: str) -> list[list[dict]]:
        """Return the answers for each [MASK] of a prompt, all of which stay masked."""
        ids = np.array(self.tokenizer.fast.encode(prompt.replace("[MASK]", self.mask)).ids, np.int32)
        most = self.model.backbone.max_sequence_length
        if len(ids) > most:
            raise UserError(f'the prompt "{prompt}" has {len(ids)} tokens; allowed: at most {most}.')
        positions = np.flatnonzero(ids == self.tokenizer.special["mask"]).astype(np.int32)
        padding = (0, min(most, -(-len(ids) // LENGTH_STEP) * LENGTH_STEP) - len(ids))
        inputs = {
            "token_ids": np.pad(ids, padding, constant_values=self.tokenizer.special["pad"])[None],
            "padding_mask": np.pad(np.ones_like(ids), padding)[None],
            "mask_positions": positions[None],
        }
        logits, _ = self.predict(*values_of(self.model), inputs)
        answers = []
        for position, scores in zip(positions, softmax(np.asarray(logits[0]), axis=-1), strict=True):
            best = np.argsort(-scores, kind="stable")[:TOP]
            answers.append([self.answer(ids, int(position), int(token), float(scores[token])) for token in best])
        return answers

    def answer(self, ids: np.ndarray, position: int, token: int, score: float) -> dict:
        """Return an answer, whose sequence is the prompt with `token` at the position of the mask."""
        filled = np.where(np.arange(len(ids)) == position, token, ids)
        unpadded = [int(id_) for id_ in filled if id_ != self.tokenizer.special["pad"]]
        texts = {"token_str": self.text([token], special=True), "sequence": self.text(unpadded, special=False)}
        return {"score": score, "token": token, **texts}

    def text(self, ids: list[int], special: bool) -> str:
        """Return the text of tokens, with special tokens or without."""
        text = self.tokenizer.fast.decode(ids, skip_special_tokens=not special)
        return without_spaces(text) if self.spaces else text


def without_spaces(text: str) -> str:
    """Return a text without spaces before marks, as transformers does for clean_up_tokenization_spaces."""
    for mark in (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(mark, mark.strip())
    return text
