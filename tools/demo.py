"""A page to type into trained models, side by side. Can be used while the workflow runs.

    python tools/demo.py
    python tools/demo.py tiny finetune/python
    python tools/demo.py --configfile sums.yaml

Without names, of all finished models of the config. Masked models fill in each [MASK]; causal models continue the
prompt token by token, and those that were trained on conversations answer messages. The page shows how probable each
token was, what else the model might have said, and how its tokenizer cuts the prompt. Prints an address of this machine
alone, with a token in it that nobody can guess; Ctrl-C ends it. Nothing is written below the results, and no lock is
taken. Models run on the CPU, beside a training that has the accelerator, unless JAX_PLATFORMS and CUDA_VISIBLE_DEVICES
say otherwise. From another machine: ssh -L PORT:127.0.0.1:PORT HOST.
"""

import argparse
import contextlib
import json
import math
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from tpulm.config.finished_models import Folders, chosen, folders_of, models, place_of, results_and_config
    from tpulm.core.errors import UserError
    from tpulm.core.files import read_json
    from tpulm.core.local_server import LARGEST, Answer, serve
    from tpulm.corpus.rows import ChatTemplate
    from tpulm.specs.masked_sizes import opens
except ModuleNotFoundError as error:
    sys.exit(f"error: this Python has no {error.name}; activate the environment: `. .venv/bin/activate`.")

PAGE, STYLE = ROOT / "report/demo", ROOT / "report/page/page.css"
# The prompts of each kind where the config has none, and its keys for them.
PROMPTS = {"masked": ["Return the [MASK] of the list."], "causal": ["def "], "chat": [""]}
KEYS = {"masked": "fill_mask", "causal": "generate"}
LONGEST = 1024  # tokens of a prompt


class Number(NamedTuple):
    """A number of a request: as the page calls it, its type, its limits, and what it is without a choice."""

    title: str
    kind: type
    low: float
    high: float
    value: float


NUMBERS = {
    "length": Number("Tokens", int, 0, 256, 48),
    "temperature": Number("Temperature", float, 0, 5, 0.8),
    "top_p": Number("Top p", float, 0.01, 1, 0.95),
    "seed": Number("Seed", int, 0, 2**31 - 1, 0),
    "adapter": Number("Strength of adapters", float, 0, 1, 1),
}
Prompt = str | list[dict]  # a text, or the messages of a conversation
Tell = Callable[[dict], bool]  # of a line for the page; whether somebody still reads


class Masked:
    """A masked model, opened at its first prompt."""

    kinds = ("masked",)

    def __init__(self, folders: Folders):
        """Take where it is. Raises UserError where it opens in TensorFlow only."""
        if not opens(read_json(folders.model / "config.json")):
            raise UserError(f"{folders.model} opens in TensorFlow only; allowed here: models that JAX opens.")
        self.folder = folders.model

    @cached_property
    def fill(self) -> Any:
        """What predicts masked tokens."""
        from tpulm.models.loading import FillMask

        return FillMask(self.folder)

    def answer(self, prompt: Prompt, settings: Mapping[str, Any], tell: Tell) -> None:
        """Tell the tokens of the prompt, and what the model says for each mask. Raises UserError."""
        if not isinstance(prompt, str) or "[MASK]" not in prompt:
            raise UserError("a masked model needs a prompt with [MASK].")
        answers = self.fill.all(prompt)
        tell({"tokens": self.fill.tokenizer.encode(prompt.replace("[MASK]", self.fill.mask)).tokens})
        tell({"masks": [[[answer["token_str"], answer["score"]] for answer in mask] for mask in answers]})


class Opened:
    """A causal model in memory, with its tokenizer; a base model and its adapters are one."""

    def __init__(self, folder: Path):
        """Open a preset folder."""
        from tpulm.models.causal import load_preset
        from tpulm.tokenization.causal import load_tokenizer

        self.model = load_preset(folder)
        self.tokenizer = load_tokenizer(str(folder), lambda: None)
        self.lora: dict | None = None
        self.start()

    def start(self) -> None:
        """Make what continues prompts."""
        from tpulm.models.streaming import Streaming

        self.stream = Streaming(self.model, self.tokenizer.size)

    def takes(self, lora: dict | None) -> bool:
        """Return whether it can be a model with these settings of LoRA, after those that it has had."""
        return lora is None or self.lora in (None, lora)

    def be(self, adapter: Path | None, lora: dict | None, strength: float) -> None:
        """Be the base model, or that with an adapter, B of which is multiplied by its strength."""
        if lora and self.lora is None:
            self.model.backbone.enable_lora(**lora)
            self.lora = lora
            self.start()
        if adapter:
            self.model.backbone.load_lora_weights(str(adapter / "adapter.lora.h5"))
        if self.lora:
            for variable in self.model.backbone.trainable_variables:
                if variable.path.endswith("lora_kernel_b"):
                    variable.assign((strength if adapter else 0) * variable)

    def shown(self, token: int) -> str:
        """Return a token as it stands in a text."""
        plain = getattr(self.tokenizer, "behind", None) is None
        return self.tokenizer.piece(token).replace("\u2581", " ") if plain else self.tokenizer.decode([token])


class Causal:
    """A causal model, opened at its first prompt."""

    def __init__(self, folders: Folders, shared: dict[Path, list[Opened]]):
        """Take where it is, and the models that are open, by their folders. Raises UserError for a chat template."""
        self.folders, self.shared = folders, shared
        self.chat = ChatTemplate(read_json(folders.chat)) if folders.chat else None
        self.kinds = ("causal", "chat") if self.chat else ("causal",)

    @cached_property
    def lora(self) -> dict | None:
        """How LoRA is enabled; None without an adapter."""
        return read_json(self.folders.adapter / "adapter.lora.json") if self.folders.adapter else None

    def opened(self, strength: float) -> Opened:
        """Return the model, with its adapter at this strength."""
        there = self.shared.setdefault(self.folders.model, [])
        opened = next((one for one in there if one.takes(self.lora)), None)
        if opened is None:
            there.append(opened := Opened(self.folders.model))
        opened.be(self.folders.adapter, self.lora, strength)
        return opened

    def written(self, prompt: Prompt) -> tuple[str, str]:
        """Return the text to continue, and what ends its continuation, empty for a text. Raises UserError."""
        if isinstance(prompt, str):
            return prompt, ""
        if self.chat is None:
            raise UserError("this model was trained on no conversations; allowed: a prompt.")
        return self.chat.prompt("messages", prompt), self.chat.described().get("ending", "")

    def answer(self, prompt: Prompt, settings: Mapping[str, Any], tell: Tell) -> None:
        """Tell the tokens of the prompt, and each token that follows; for a length of 0, how probable the prompt is.

        Raises UserError.
        """
        from tpulm.models.streaming import Reply
        from tpulm.tokenization.causal import check_control_tokens

        text, ending = self.written(prompt)
        sampling = {key: value for key, value in settings.items() if key != "adapter"}
        opened = self.opened(settings["adapter"])
        tokenizer = opened.tokenizer
        bos = tokenizer.special["bos"]
        if not isinstance(prompt, str):
            control = [tokenizer.piece(one) for one in (bos, tokenizer.special["eos"]) if one is not None]
            if found := [piece for piece in control if any(piece in message["content"] for message in prompt)]:
                raise UserError(f"a message has {found[0]}, a special token of the model; allowed: text without it.")
            list(check_control_tokens([[text]], tokenizer))
        ids = [*([] if bos is None else [bos]), *tokenizer.encode([text])[0]]
        positions = getattr(opened.model.backbone, "max_sequence_length", None)
        most = min(LONGEST, positions - settings["length"]) if positions else LONGEST
        if len(ids) > most:
            raise UserError(f"the prompt has {len(ids):,} tokens; allowed: at most {most:,}.")
        tell({"tokens": [opened.shown(token) for token in ids]})
        reply = Reply(tokenizer, ids, ending)

        def heard(token: Any) -> bool:
            candidates = [[opened.shown(one), probability] for one, probability in token.candidates]
            said = {"text": reply.add(token.token), "probability": token.probability, "candidates": candidates}
            return tell(said) and not reply.ended

        if settings["length"]:
            opened.stream(ids, heard, **sampling)
            tell({"rest": reply.rest()})
        elif len(ids) > 1:
            found = opened.stream.score(ids)
            first = "" if bos is not None else tokenizer.decode(ids[:1])  # nothing comes before it
            bits = -sum(found) / math.log(2) / max(1, len(text.encode()) - len(first.encode()))
            tell({"scored": [None, *map(math.exp, found)], "bits_per_byte": bits})


class Request:
    """A prompt for a model, and what is said of it, until nobody reads it any more."""

    def __init__(self, model: Masked | Causal, prompt: Prompt, settings: dict[str, Any]):
        """Take what was asked."""
        self.model, self.prompt, self.settings = model, prompt, settings
        self.said, self.gone = queue.SimpleQueue[dict | None](), False

    def tell(self, line: dict) -> bool:
        """Say a line; return whether somebody still reads."""
        self.said.put(line)
        return not self.gone

    def answer(self) -> None:
        """Ask the model."""
        began = time.monotonic()
        try:
            self.model.answer(self.prompt, self.settings, self.tell)
            self.tell({"seconds": time.monotonic() - began})
        except UserError as error:
            self.tell({"error": str(error)})
        except Exception as error:
            traceback.print_exc()
            self.tell({"error": f"the model has failed: {type(error).__name__}: {str(error)[:300]}"})
        self.said.put(None)

    def lines(self) -> Iterator[str]:
        """Yield what is said, a line of JSON each."""
        try:
            for line in iter(self.said.get, None):
                yield json.dumps(line) + "\n"
        finally:
            self.gone = True


@dataclass
class Demo:
    """The models of a page, prompts for each kind, and the requests that wait: one is answered at a time."""

    models: dict[str, Masked | Causal]
    prompts: dict[str, list[str]]
    title: str
    waiting: queue.SimpleQueue[Request] = field(default_factory=queue.SimpleQueue)

    @cached_property
    def page(self) -> str:
        """The page."""
        environment = Environment(loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined)
        kinds = {kind: [name for name, model in self.models.items() if kind in model.kinds] for kind in PROMPTS}
        adapters = any(isinstance(model, Causal) and model.folders.adapter for model in self.models.values())
        return environment.get_template("demo.html").render(
            title=self.title, kinds={kind: names for kind, names in kinds.items() if names}, prompts=self.prompts,
            style=STYLE.read_text(encoding="utf-8") + (PAGE / "demo.css").read_text(encoding="utf-8"),
            script=(PAGE / "demo.js").read_text(encoding="utf-8"), numbers=NUMBERS, adapters=adapters, largest=LARGEST,
        )  # fmt: skip

    def respond(self, path: str, query: str, sent: bytes | None) -> Answer | None:
        """Answer with the page, and to prompts at /run."""
        if path == "" and sent is None:
            return Answer("text/html; charset=utf-8", [self.page])
        if path != "run" or sent is None:
            return None
        try:
            request = self.asked(sent)
        except UserError as error:
            return Answer("application/x-ndjson", [json.dumps({"error": str(error)}) + "\n"])
        self.waiting.put(request)
        return Answer("application/x-ndjson", request.lines())

    def asked(self, sent: bytes) -> Request:
        """Return what was asked. Raises UserError for what cannot be."""
        try:
            found = json.loads(sent)
        except (ValueError, RecursionError):
            found = None
        model = found.get("model") if isinstance(found, dict) else None
        if not isinstance(model, str) or model not in self.models:
            raise UserError(f"allowed: JSON with a model of {', '.join(self.models)}.")
        prompt = found.get("prompt")
        if not (isinstance(prompt, str) and prompt.strip()) and not (isinstance(prompt, list) and prompt):
            raise UserError("the prompt is empty.")
        settings = {}
        for name, number in NUMBERS.items():
            value = found.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not number.low <= value <= number.high:
                raise UserError(f"{name} is {json.dumps(value)[:50]}; allowed: {number.low} to {number.high}.")
            settings[name] = number.kind(value)
        whole = json.loads(json.dumps(prompt, ensure_ascii=False).encode("utf-8", "replace"))  # no half of a character
        return Request(self.models[model], whole, settings)

    def work(self) -> None:
        """Answer requests, for ever, in one thread: some settings of Keras are a thread's own."""
        from tpulm.training import runtime

        runtime.start(os.cpu_count() or 1)
        while True:
            request = self.waiting.get()
            if not request.gone:
                request.answer()


def demo_of(asked: argparse.Namespace) -> Demo:
    """Return the models that were asked for. Raises UserError."""
    places = [place_of(run, asked.configfile, asked.results) for run in asked.run]
    if not places:
        results, config = results_and_config(asked.configfile, asked.results)
        places = [(results, model, config) for model in models(results)]
        if not places:
            raise UserError(f"there is no trained model in {results}.")
    shared: dict[Path, list[Opened]] = {}
    found: dict[str, Masked | Causal] = {}
    left_out: dict[str, UserError] = {}
    for results, run, config in places:
        try:
            stage, name = chosen(run, results)
            folders = folders_of(stage, name, results, config)
            label = f"{stage}/{name}" if f"{stage}/{name}" not in found else f"{results}/{stage}/{name}"
            found[label] = Masked(folders) if stage == "mlm" else Causal(folders, shared)
        except UserError as error:
            left_out[run] = error
    if not found:
        raise next(iter(left_out.values()))
    for run, error in left_out.items():
        print(f"note: {run} is left out: {error}", file=sys.stderr)
    given = places[0][2].get("prompts", {})
    prompts = PROMPTS | {kind: given[key] for kind, key in KEYS.items() if given.get(key)}
    return Demo(found, prompts, places[0][0].resolve().parent.name)


def main() -> None:
    """Serve the page until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="*", help="runs: a name, STAGE/RUN if the name is ambiguous, or a folder")
    parser.add_argument("--configfile", type=Path, nargs="+", help="as for snakemake")
    parser.add_argument("--results", type=Path, help="where the models are; default: the results of the config")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; default: a free port")
    asked = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    try:
        demo = demo_of(asked)
        server, address = serve(demo.respond, asked.port)
    except UserError as error:
        sys.exit(f"error: {error}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(address, flush=True)
    print(f"Models: {', '.join(demo.models)}. Ctrl-C ends it.", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        demo.work()
    server.shutdown()


if __name__ == "__main__":
    main()
