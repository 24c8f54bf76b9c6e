"""Choose how a published model is finetuned on rows: its size, what of an accelerator it takes, steps and rates."""

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tpulm.config.checks import check_preset
from tpulm.config.model_sizes import STORED, UNKNOWN, ModelSize, base_backbone, base_size, preset_parameters
from tpulm.core.accelerators import GIB
from tpulm.core.errors import UserError, first_line
from tpulm.core.files import read_json
from tpulm.corpus.parts import clean
from tpulm.specs.causal_families import BYPASSING, TARGETS
from tpulm.specs.published_models import name_of_preset
from tpulm.specs.texts import GEMMA, PLAIN, chat_template_of
from tpulm.tokenization.conversion import convert, sentencepiece_file

from newconfig.columns import Tuning
from newconfig.hub import HUB, newest_model
from newconfig.sample import Text
from newconfig.sizes import Machine, machine_of

INSTRUCT = re.compile(r"(^|[^a-z])(instruct|it|chat)([^a-z]|$)")
BATCH, EPOCHS, FEWEST_STEPS, MOST_EPOCHS = 16, 3, 100, 20
SMALL, EPOCHS_OF_SMALL = 100_000_000, 8  # parameters of a model that knows little before it is finetuned
SEGMENT = 1000  # steps, at most, that an interrupted job loses
LONGEST = 4096  # tokens of a record, at most
USABLE = 0.85  # share of the memory of a device for weights and activations; the program takes some of it
RANKS = (16, 8, 4)


@dataclass(frozen=True)
class Base:
    """A published model: keys of the config that name it, and what is known of it before it is fetched.

    keys    preset and, on a hub, revision
    name    in the config
    folder  with its config and tokenizer; None for a preset that is fetched later
    """

    keys: Mapping[str, str]
    name: str
    folder: Path | None
    notes: list[str]

    @property
    def place(self) -> dict[str, str]:
        """Where its sizes are read: the folder or the preset."""
        return {"preset": str(self.folder or self.keys["preset"])}

    @property
    def bypassing(self) -> bool:
        """Whether LoRA can change its attention only, and its weights cannot be int8."""
        return base_backbone(self.place)[0] in BYPASSING

    @property
    def targets(self) -> list[str]:
        """The matrices that get adapters."""
        return [target for target in TARGETS if not (self.bypassing and target == "ffn")]

    def size(self, rank: int) -> ModelSize:
        """Return its size, with adapters."""
        return base_size(self.place, {"rank": rank, "targets": self.targets})

    @property
    def template(self) -> str:
        """Its chat template, as the config names one."""
        return chat_template_of(self.place)["chat_template"]

    @property
    def instructed(self) -> bool:
        """Whether it answers messages: it has a chat template of its own, or a name of such models."""
        return self.template not in (GEMMA, PLAIN) or bool(INSTRUCT.search(self.name))

    def tuning(self) -> Tuning:
        """Return what it makes of rows: conversations, if it answers messages and its chat template is known."""
        if self.template == PLAIN:
            self.notes.append(
                f"the chat template of {self.name}, if it has one, is not known, so rows become prompts and responses "
                "without its markers; messages and chat_template of finetune.text name it"
            )
        return Tuning(self.instructed and self.template != PLAIN, self.template)

    def tokens(self) -> tuple[Callable[[str], int], str]:
        """Return what counts the tokens of a text, and how it does so, in words."""
        file = (self.folder or Path()) / "tokenizer.json"
        if self.folder and sentencepiece_file(self.folder):
            tokenizer = convert(self.folder)
        elif file.is_file() and "class_name" not in content_of(file):
            tokenizer = opened(file)
        else:  # Gemma's pieces of English have 4 bytes
            return lambda text: -(-len(text.encode()) // 3) + 2, "3 bytes a token, because its tokenizer is not here"
        return lambda text: len(tokenizer.encode(text).ids), "by its tokenizer"


def content_of(file: Path) -> dict[str, Any]:
    """Return the content of a tokenizer.json. Raises UserError for another file, such as a pointer of Git LFS."""
    try:
        return dict(read_json(file))
    except (ValueError, TypeError):
        raise UserError(f"{file} is no JSON of a tokenizer; with Git LFS, `git lfs pull` fetches it.") from None


def opened(file: Path) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json. Raises UserError for one that the library cannot read."""
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no type of its own
        raise UserError(f"{file} cannot be read by the library tokenizers ({first_line(error)}).") from None


def find_base(model: str) -> Base:
    """Return the model that the command line names. Raises UserError for an unknown one."""
    notes, keys, folder = list[str](), {"preset": model}, Path(model)
    if model.startswith(HUB):
        if not re.fullmatch(rf"{HUB}[\w.-]+/[\w.-]+", model):
            raise UserError(f"--finetune is {model}; allowed: {HUB}OWNER/NAME.")
        folder, keys["revision"] = newest_model(model)
        notes.append(f"{model} is pinned to its newest revision, {keys['revision']}")
    else:
        check_preset("--finetune", model)
    text = f"{name_of_preset(model)}_text"
    if text in preset_parameters() and not os.path.isdir(model):
        raise UserError(f"--finetune is {model}, which also reads images; allowed: {text}, its part for text.")
    here = (folder / "config.json").is_file()
    path = re.sub(r"(/preset|/model|/\d+)+/?$", "", os.path.abspath(model) if here else model)
    name = re.sub("[^a-z0-9_-]+", "-", Path(path).name.lower()).strip("-_")[:64]
    base = Base(keys, name, folder if here else None, notes)
    if base_backbone(base.place) is UNKNOWN:
        raise UserError(
            f"--finetune is {model}, a model of a family or of sizes that are not known here; allowed: Gemma, GPT-2, "
            "Llama, Mistral, Qwen or SmolLM3."
        )
    return base


def run_of(base: Base, text: Text, rows: float, accelerator: str | None) -> dict[str, Any]:
    """Return the values of the template for a run; rows  of the training split. Raises UserError if it does not fit."""
    machine = machine_of(accelerator) if accelerator else None
    count, how = base.tokens()
    lengths = sorted(map(count, text.sample))
    step = 128 if accelerator else 32  # the kernel of attention takes multiples of 128
    length = min(LONGEST, -(-lengths[int(0.99 * (len(lengths) - 1))] // step) * step)
    cut = sum(one > length for one in lengths) / len(lengths)
    answers = sorted(map(count, text.responses or [one[: len(one) // 2] for one in text.sample]))
    answer = min(512, max(32, -(-answers[int(0.95 * (len(answers) - 1))] // 16) * 16))
    size = base.size(RANKS[0])
    fit = {"rank": RANKS[0], "batch": BATCH, "mesh": [1, 1], "precision": "float32"}
    fit |= dict.fromkeys(("stored", "remat", "parts"), "")
    if machine:
        fit |= fitting(base, length, machine)
    per_epoch = max(1.0, rows / fit["batch"])
    wanted = EPOCHS_OF_SMALL if size.parameters < SMALL else EPOCHS if rows < 50_000 else 1
    epochs = max(wanted, min(MOST_EPOCHS, math.ceil(FEWEST_STEPS / per_epoch)))
    segments = min(4, epochs) * math.ceil(per_epoch / SEGMENT)
    every = max(2, round(epochs * per_epoch / segments))
    steps = every * segments
    # The rate of the sources; of narrower models more, as Llamas need it.
    rate = 1e-4 if size.parameters > 13.5e9 else 2e-4 * max(1.0, 2000 / size.hidden) ** 0.781
    devices = (
        f"   # {machine.devices} device{'s'[: machine.devices != 1]} of {machine.memory / GIB:.0f} GiB"
        if machine
        else ""
    )
    return fit | {
        "base": base.name,
        "size": f"{size.parameters:,} parameters",
        "targets": ", ".join(base.targets),
        "length": length,
        "fitting": f"{1 - cut:.1%} of the rows fit, {how}",
        "answer": answer,
        "steps": f"{steps}   # about {steps / per_epoch:,.1f} epochs of {rows:,.0f} rows",
        "every": every,
        "warmup": max(1, round(0.03 * steps)),
        "decay": max(1, steps // 3),
        "rate": f"{rate:.1e}",
        "mesh": f"{fit['mesh']}{devices}",
        "merge": "true" if size.parameters < 10e9 else "",
        "threads": "" if accelerator else min(256, os.cpu_count() or 1),
        "resources": f'{{accelerator: "{accelerator}", hosts: {machine.hosts}}}' if machine else "",
        "plan": f"{{topologies: [{accelerator}]}}" if machine and machine.plans else "",
    }


def fitting(base: Base, length: int, machine: Machine) -> dict[str, Any]:
    """Return the first settings that fit a device, in the order of what they cost. Raises UserError if none do."""
    shards = [number for number in range(1, machine.devices + 1) if machine.devices % number == 0]
    shards.sort(key=lambda number: sent_bytes(base.size(RANKS[0]), machine.devices // number, number, BATCH * length))
    need = 0.0
    precisions = ("bfloat16",) if base.bypassing else ("bfloat16", "int8")
    for rank, stored, shard, remat in product(RANKS, precisions, shards, (False, True)):
        axis = machine.devices // shard
        each = -(-BATCH // axis)  # records of a batch on a device
        for parts in (number for number in range(1, each + 1) if each % number == 0):
            need = needed(base, base.size(rank), stored, shard, remat, length, each // parts)
            if need < USABLE * machine.memory:
                fit = {"rank": rank, "batch": axis * each, "mesh": [axis, shard], "precision": "bfloat16"}
                return fit | {"stored": "int8" if stored == "int8" else "", "remat": "true" if remat else "",
                              "parts": parts if parts > 1 else ""}  # fmt: skip
    raise UserError(
        f"--finetune is {base.keys['preset']}, which does not fit the accelerator: with rank {RANKS[-1]}, one record "
        f"at once and {stored} weights over all devices, a device needs about {need / GIB:.0f} GiB of "
        f"{machine.memory / GIB:.0f}; allowed: a smaller model, or more or larger devices."
    )


def sent_bytes(size: ModelSize, replicas: int, shards: int, tokens: int) -> float:
    """Return about how many bytes a device sends in a step on a mesh [replicas, shards]; tokens  of the global batch.

    The layout maps divide weights over both axes: those of a shard are gathered twice, forward and back. Shards sum the
    activations of each layer four times (Shoeybi et al. 2019); plans of the TPU compiler do so in float32.
    """
    gathered = 2 * STORED["bfloat16"] * size.parameters / shards * (replicas - 1) / replicas
    summed = 4 * 2 * STORED["float32"] * size.layers * size.hidden * tokens / replicas * (shards - 1) / shards
    return gathered + summed


def needed(base: Base, size: ModelSize, stored: str, shards: int, remat: bool, length: int, records: int) -> float:
    """Return about how many bytes a device needs to tune a model on so many records of a length at once.

    The weights; of the adapters also gradients and two moments; the activations in bfloat16, with `remat` of one layer
    and the inputs of all; a part of the logits with their gradients. Plans of the TPU compiler need less.
    """
    family, sizes = base_backbone(base.place)
    inner = sizes["intermediate_dim"] // (2 if family == "GemmaBackbone" else 1)
    width = sizes.get("head_dim") or size.hidden // size.heads
    attention = 2 * (size.heads + sizes["num_key_value_heads"]) * width + 3 * size.heads * length
    layer = 2 * (8 * size.hidden + 3 * inner + attention) / shards
    layers = layer + 2 * size.hidden * size.layers if remat else layer * size.layers
    logits = 12 * min(size.vocabulary / shards, 32_768)
    weights = STORED[stored] * size.parameters + (2 * size.table if stored == "int8" else 0)
    return (weights + 16 * size.adapters) / shards + records * length * (layers + logits)


def held_out_prompts(text: Text, most: int = 3) -> list[str]:
    """Return the prompts of rows that are held out for the test split: those of the lowest keys (corpus/splits.py)."""
    pairs = [one if isinstance(one, tuple) else (one, [(len(one) // 3, 0)]) for one in text.read]
    recipe = {"seed": 0, "min_characters": 0}
    keys = clean([document for document, _ in pairs], recipe, Counter(), Counter())["key"].to_pylist()
    by_key = sorted(zip(keys, pairs, strict=True), key=lambda one: one[0])
    lowest = dict.fromkeys(text[: spans[0][0]].rstrip(" ") for _, (text, spans) in by_key[: 5 * most])
    prompts = list(filter(None, lowest))
    return sorted(prompts, key=lambda prompt: len(prompt) >= 1000)[:most]  # short ones first
