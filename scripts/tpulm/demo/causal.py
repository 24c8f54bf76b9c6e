"""Open a causal model that continues prompts, answers messages, and scores them."""

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

LONGEST = 1024  # limit of a prompt, in tokens


class Opened:
    """A causal model in memory with its tokenizer, shared by a base model and its adapters."""

    def __init__(self, model: keras_hub.models.CausalLM, vocabulary: Path):
        """Take a model; vocabulary  a file, or a preset folder."""
        self.model, self.tokenizer = model, TextTokenizer(convert(vocabulary))
        self.lora: dict | None = None
        self.stream = Streaming(self.model, self.tokenizer.size)

    def takes(self, lora: dict | None) -> bool:
        """Return whether it can have these settings of LoRA, which once enabled cannot change."""
        return lora is None or self.lora in (None, lora)

    def be(self, adapter: Path | None, lora: dict | None, strength: float) -> None:
        """Become the base model, or the base model with an adapter, whose B is multiplied by `strength`."""
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
    """A causal model of the demo."""

    def __init__(self, folders: Folders, shared: dict[Path, list], model: keras_hub.models.CausalLM | None = None):
        """Take its folders, and the open models by their folders. Raises UserError for an invalid chat template.

        model  the model, if `folders` has only the vocabulary
        """
        self.folders, self.shared = folders, shared
        self.chat = ChatTemplate(read_json(folders.chat)) if folders.chat else None
        if model is not None:
            shared[folders.model] = [Opened(model, folders.model)]

    @cached_property
    def lora(self) -> dict | None:
        """Settings of LoRA; None without an adapter."""
        return read_json(self.folders.adapter / "adapter.lora.json") if self.folders.adapter else None

    def opened(self, strength: float) -> Opened:
        """Return the model, with its adapter at this strength."""
        models = self.shared.setdefault(self.folders.model, [])
        opened = next((model for model in models if model.takes(self.lora)), None)
        if opened is None:
            models.append(opened := Opened(load_preset(self.folders.model), self.folders.model))
        opened.be(self.folders.adapter, self.lora, strength)
        return opened

    def written(self, prompt: Prompt) -> tuple[str, str]:
        """Return the text to continue, and the string that ends a reply to messages. Raises UserError."""
        if isinstance(prompt, str):
            return prompt, ""
        if self.chat is None:
            raise UserError("this model was trained on no conversations; allowed: a prompt.")
        return self.chat.prompt("messages", prompt), self.chat.described().get("ending", "")

    def answer(self, prompt: Prompt, settings: Settings, tell: Tell) -> None:
        """Send the tokens of the prompt, and each generated token; for length 0, the probabilities of the prompt."""
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
        """Return the ids of a text, <bos> first if there is one. Raises UserError for messages with special tokens."""
        tokenizer = opened.tokenizer
        bos = tokenizer.special["bos"]
        if messages is not None:
            control = [tokenizer.piece(token) for token in (bos, tokenizer.special["eos"]) if token is not None]
            if used := [piece for piece in control if any(piece in message["content"] for message in messages)]:
                raise UserError(f"a message has {used[0]}, a special token of the model; allowed: text without it.")
            list(check_control_tokens([[text]], tokenizer))
        return [*([] if bos is None else [bos]), *tokenizer.encode([text])[0]]

    def go_on(self, opened: Opened, reply: Reply, settings: Settings, tell: Tell) -> None:
        """Send each token of a reply when it is generated."""

        def heard(token: Token) -> bool:
            candidates = [[opened.tokenizer.shown(id_), probability] for id_, probability in token.candidates]
            part: dict[str, Any] = {"text": reply.add(token.token), "probability": token.probability}
            return tell(part | {"candidates": candidates}) and not reply.ended

        sampling = {key: value for key, value in settings.items() if key != "adapter"}
        opened.stream(list(reply.ids), heard, **sampling)
        tell({"rest": reply.rest()})

    def score(self, opened: Opened, ids: list[int], text: str, tell: Tell) -> None:
        """Send the probability of each token of a text, and its bits per byte."""
        log_likelihoods = opened.stream.score(ids)
        # Without <bos>, the first token has no probability.
        first = "" if opened.tokenizer.special["bos"] is not None else opened.tokenizer.decode(ids[:1])
        bits = -sum(log_likelihoods) / math.log(2) / max(1, len(text.encode()) - len(first.encode()))
        tell({"scored": [None, *map(math.exp, log_likelihoods)], "bits_per_byte": bits})
