"""Open a masked model that fills in masks, or scores a text without any."""

import math
from functools import cached_property
from pathlib import Path

import keras
import numpy as np

from tpulm.core.errors import UserError
from tpulm.demo.choice import Prompt, Settings, Tell
from tpulm.demo.tokens import shown_of
from tpulm.evaluation.jax_scoring import Scorer
from tpulm.evaluation.material import Passage
from tpulm.evaluation.rows import encode_passages, masked_rows, unknown_nats
from tpulm.models.loading import FillMask
from tpulm.models.sharding import Sharded
from tpulm.records.masked_batches import masked_lm

MASK = "[MASK]"  # in prompts, whatever the tokenizer's own mask is
READ = 4096  # tokens of a batch


class Masked:
    """A masked model of the demo."""

    def __init__(self, folder: Path, opened: tuple[keras.Model, Sharded] | None = None):
        """Open the model, see `FillMask`."""
        self.fill = FillMask(folder, opened)
        self.tokenizer = self.fill.tokenizer
        self.most = self.fill.model.backbone.max_sequence_length

    def answer(self, prompt: Prompt, settings: Settings, tell: Tell) -> None:
        """Send the tokens of the prompt, and the answers for each mask; without a mask, the probabilities of tokens."""
        if not isinstance(prompt, str):
            raise UserError("a masked model needs a text, with or without [MASK].")
        if MASK not in prompt:
            self.score(prompt, tell)
            return
        answers = self.fill.all(prompt)
        encoding = self.tokenizer.fast.encode(prompt.replace(MASK, self.fill.mask))
        tell({"tokens": shown_of(self.tokenizer, encoding)})
        shown = self.tokenizer.shown
        tell({"masks": [[[shown(answer["token"]), answer["score"]] for answer in mask] for mask in answers]})

    @cached_property
    def scorer(self) -> Scorer:
        """Scorer of the model."""
        return Scorer(self.fill.model, self.fill.sharded, masked_lm, READ, self.most)

    def score(self, text: str, tell: Tell) -> None:
        """Send the tokens of a text, their probabilities, and the pseudo bits per byte of evaluations."""
        (encoded,) = encode_passages(self.tokenizer, [Passage.of(text)])
        room = self.most - len(self.tokenizer.before) - len(self.tokenizer.after)
        if not 0 < len(encoded.ids) <= room:
            raise UserError(f"the text has {len(encoded.ids):,} tokens; allowed: 1 to {room:,}.")
        (encoding,) = self.tokenizer.encodings([text])
        tell({"tokens": shown_of(self.tokenizer, encoding)})
        rows = [
            row._replace(text=number) for number, row in enumerate(masked_rows([encoded], self.tokenizer, self.most))
        ]
        nats = self.scorer(rows, len(rows))
        bits = (nats.sum() + unknown_nats([encoded])[0]) / math.log(2) / len(text.encode())
        tell({"scored": np.exp(-nats).tolist(), "bits_per_byte": float(bits), "pseudo": True})
