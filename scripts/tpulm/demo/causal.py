"""A causal model that continues prompts, answers messages, and scores them.

Needs tpulm.training.runtime.start first.
"""

import math
from functools import cached_property
from pathlib import Path
from typing import Any

import keras_hub

from tpulm.config.finished_models import Folders
from tpulm.core.errors import UserError
from tpulm.core.files import read_json
from tpulm.corpus.rows import ChatTemplate
from tpulm.demo.choice import Prompt, Settings, Tell
from tpulm.models.preset_folders import load_preset
from tpulm.models.streaming import Reply, Streaming, Token
from tpulm.tokenization.conversion import convert
from tpulm.tokenization.tokenizer import TextTokenizer, check_control_tokens

LONGEST = 1024  # tokens of a prompt


class Opened:
    """A causal model in memory, with its tokenizer; a base model and its adapters are one."""

    def __init__(self, model: keras_hub.models.CausalLM, vocabulary: Path):
        """Take a model; vocabulary  its file, or the preset folder that has it."""
        self.model, self.tokenizer = model, TextTokenizer(convert(vocabulary))
        self.lora: dict | None = None
        self.stream = Streaming(self.model, self.tokenizer.size)

    def takes(self, lora: dict | None) -> bool:
        """Return whether it can be a model with these settings of LoRA, after those that it has had."""
        return lora is None or self.lora in (None, lora)

    def be(self, adapter: Path | None, lora: dict | None, strength: float) -> None:
        """Be the base model, or that with an adapter, B of which is multiplied by its strength."""
        if lora and self.lora is None:
            self.model.backbone.enable_lora(**lora)
            self.lora = lora
            self.stream = Streaming(self.model, self.tokenizer.size)
        if adapter:
            self.model.backbone.load_lora_weights(str(adapter / "adapter.lora.h5"))
        if self.lora:
            for variable in self.model.backbone.trainable_variables:
                if variable.path.endswith("lora_kernel_b"):
                    variable.assign((strength if adapter else 0) * variable)


class Causal:
    """A causal model."""

    def __init__(self, folders: Folders, shared: dict[Path, list], model: keras_hub.models.CausalLM | None = None):
        """Take where it is, and the models that are open, by their folders.

        model  its own, where `folders` has only the vocabulary. Raises UserError for a chat template.
        """
        self.folders, self.shared = folders, shared
        self.chat = ChatTemplate(read_json(folders.chat)) if folders.chat else None
        if model is not None:
            shared[folders.model] = [Opened(model, folders.model)]

    @cached_property
    def lora(self) -> dict | None:
        """How LoRA is enabled; None without an adapter."""
        return read_json(self.folders.adapter / "adapter.lora.json") if self.folders.adapter else None

    def opened(self, strength: float) -> Opened:
        """Return the model, with its adapter at this strength."""
        there = self.shared.setdefault(self.folders.model, [])
        opened = next((one for one in there if one.takes(self.lora)), None)
        if opened is None:
            there.append(opened := Opened(load_preset(self.folders.model), self.folders.model))
        opened.be(self.folders.adapter, self.lora, strength)
        return opened

    def written(self, prompt: Prompt) -> tuple[str, str]:
        """Return the text to continue, and what ends its continuation, empty for a text. Raises UserError."""
        if isinstance(prompt, str):
            return prompt, ""
        if self.chat is None:
            raise UserError("this model was trained on no conversations; allowed: a prompt.")
        return self.chat.prompt("messages", prompt), self.chat.described().get("ending", "")

    def answer(self, prompt: Prompt, settings: Settings, tell: Tell) -> None:
        """Send the tokens of the prompt, and each token that follows; for a length of 0, how probable the prompt is."""
        text, ending = self.written(prompt)
        opened = self.opened(settings["adapter"])
        ids = self.encoded(opened, text, None if isinstance(prompt, str) else prompt)
        positions = getattr(opened.model.backbone, "max_sequence_length", None)
        most = min(LONGEST, positions - settings["length"]) if positions else LONGEST
        if len(ids) > most:
            raise UserError(f"the prompt has {len(ids):,} tokens; allowed: at most {most:,}.")
        tell({"tokens": [opened.tokenizer.shown(token) for token in ids]})
        if settings["length"]:
            self.go_on(opened, Reply(opened.tokenizer, ids, ending), settings, tell)
        elif len(ids) > 1:
            self.score(opened, ids, text, tell)

    def encoded(self, opened: Opened, text: str, messages: list | None) -> list[int]:
        """Return the ids of a text. Raises UserError where one of its messages has a special token."""
        tokenizer = opened.tokenizer
        bos = tokenizer.special["bos"]
        if messages is not None:
            control = [tokenizer.piece(one) for one in (bos, tokenizer.special["eos"]) if one is not None]
            if found := [piece for piece in control if any(piece in message["content"] for message in messages)]:
                raise UserError(f"a message has {found[0]}, a special token of the model; allowed: text without it.")
            list(check_control_tokens([[text]], tokenizer))
        return [*([] if bos is None else [bos]), *tokenizer.encode([text])[0]]

    def go_on(self, opened: Opened, reply: Reply, settings: Settings, tell: Tell) -> None:
        """Send each token of a reply as it comes."""

        def heard(token: Token) -> bool:
            candidates = [[opened.tokenizer.shown(one), probability] for one, probability in token.candidates]
            said: dict[str, Any] = {"text": reply.add(token.token), "probability": token.probability}
            return tell(said | {"candidates": candidates}) and not reply.ended

        sampling = {key: value for key, value in settings.items() if key != "adapter"}
        opened.stream(list(reply.ids), heard, **sampling)
        tell({"rest": reply.rest()})

    def score(self, opened: Opened, ids: list[int], text: str, tell: Tell) -> None:
        """Send how probable each token of a text is, and its bits per byte."""
        found = opened.stream.score(ids)
        first = (
            "" if opened.tokenizer.special["bos"] is not None else opened.tokenizer.decode(ids[:1])
        )  # nothing before it
        bits = -sum(found) / math.log(2) / max(1, len(text.encode()) - len(first.encode()))
        tell({"scored": [None, *map(math.exp, found)], "bits_per_byte": bits})
