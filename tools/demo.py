"""A page to type into trained models, side by side. Can be used while the workflow runs.

    python tools/demo.py
    python tools/demo.py tiny finetune/python
    python tools/demo.py --configfile sums.yaml

Without names, of all finished models of the config. Masked models fill in each [MASK]; causal models continue the
prompt token by token, all from the same random numbers. The page shows how probable each token was, what else the model
might have said, and how its tokenizer cuts the prompt. Prints an address of this machine alone, with a token in it that
nobody can guess; Ctrl-C ends it. Nothing is written below the results, and no lock is taken. Models run on the CPU,
beside a training that has the accelerator, unless JAX_PLATFORMS and CUDA_VISIBLE_DEVICES say otherwise. From another
machine: ssh -L PORT:127.0.0.1:PORT HOST.
"""

import argparse
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from tpulm.config.finished_models import Folders, chosen, folders_of, models, place_of, results_and_config
    from tpulm.core.errors import UserError
    from tpulm.core.files import read_json
    from tpulm.core.local_server import Answer, Respond, serve
    from tpulm.specs.masked_sizes import opens
except ModuleNotFoundError as error:
    sys.exit(f"error: this Python has no {error.name}; activate the environment: `. .venv/bin/activate`.")

PAGE, STYLE = ROOT / "report/demo", ROOT / "report/page/page.css"
PROMPTS = {"masked": "Return the [MASK] of the list.", "causal": "def "}  # where the config has none
LONGEST, MOST = 1024, 256  # tokens of a prompt, and of what follows it
# What a request has, and the types and limits of its numbers.
NUMBERS = {
    "length": (int, 1, MOST),
    "temperature": (float, 0, 5),
    "top_p": (float, 0.01, 1),
    "seed": (int, 0, 2**31 - 1),
}


class Masked:
    """A masked model, opened at its first prompt."""

    kind = "masked"

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

    def answers(self, prompt: str, settings: Mapping[str, Any]) -> Iterator[dict]:
        """Yield the tokens of the prompt, and what the model says for each mask."""
        if "[MASK]" not in prompt:
            raise UserError("a masked model needs a prompt with [MASK].")
        tokens = self.fill.tokenizer.encode(prompt.replace("[MASK]", self.fill.mask)).tokens
        answers = self.fill.all(prompt)
        yield {"tokens": tokens}
        yield {"masks": [[[answer["token_str"], answer["score"]] for answer in mask] for mask in answers]}


class Causal:
    """A causal model, opened at its first prompt; with LoRA weights, it shares a base model with others."""

    kind = "causal"

    def __init__(self, folders: Folders, shared: dict):
        """Take where it is, and the models that are open, by what they need."""
        self.folders, self.shared = folders, shared

    @cached_property
    def adapter(self) -> dict | None:
        """How LoRA is enabled; None without an adapter."""
        return read_json(self.folders.adapter / "adapter.lora.json") if self.folders.adapter else None

    @cached_property
    def opened(self) -> tuple[Any, Any, dict]:
        """What continues prompts, the tokenizer, and the LoRA weights by their paths."""
        from tpulm.models.causal import load_preset
        from tpulm.models.streaming import Streaming
        from tpulm.tokenization.causal import load_tokenizer

        key = (self.folders.model, json.dumps(self.adapter))
        if key not in self.shared:
            model = load_preset(self.folders.model)
            if self.adapter:
                model.backbone.enable_lora(**self.adapter)
            self.shared[key] = Streaming(model), load_tokenizer(str(self.folders.model), lambda: None)
        stream, tokenizer = self.shared[key]
        backbone = stream.model.backbone
        if not self.folders.adapter:
            return stream, tokenizer, {}
        backbone.load_lora_weights(str(self.folders.adapter / "adapter.lora.h5"))
        own = {variable.path: variable for variable in backbone.trainable_variables}
        return stream, tokenizer, {path: variable.numpy() for path, variable in own.items()}

    def answers(self, prompt: str, settings: Mapping[str, Any]) -> Iterator[dict]:
        """Yield the tokens of the prompt, and each token that follows."""
        stream, tokenizer, lora = self.opened
        for variable in stream.model.backbone.trainable_variables if lora else []:
            variable.assign(lora[variable.path])
        bos = tokenizer.special["bos"]
        ids = [*([] if bos is None else [bos]), *tokenizer.encode([prompt])[0]]
        if len(ids) > LONGEST:
            raise UserError(f"the prompt has {len(ids):,} tokens; allowed: at most {LONGEST:,}.")
        yield {"tokens": [tokenizer.piece(token) for token in ids]}
        made: list[int] = []
        text = tokenizer.decode(ids)
        for token in stream(ids, **settings):
            made.append(token.token)
            longer = tokenizer.decode(ids + made)
            yield {
                "text": longer[len(text) :] if longer.startswith(text) else "",
                "probability": token.probability,
                "candidates": [[tokenizer.piece(one), probability] for one, probability in token.candidates],
            }
            text = longer if longer.startswith(text) else text


@dataclass
class Demo:
    """The models of a page, the prompts that it begins with, and who runs: one at a time."""

    models: dict[str, Masked | Causal]
    prompts: dict[str, str]
    title: str

    def __post_init__(self) -> None:
        """Make what lets one run at a time."""
        self.lock = threading.Lock()

    @cached_property
    def page(self) -> str:
        """The page."""
        environment = Environment(loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined)
        kinds = {kind: [name for name, model in self.models.items() if model.kind == kind] for kind in PROMPTS}
        return environment.get_template("demo.html").render(
            title=self.title, kinds={kind: names for kind, names in kinds.items() if names}, prompts=self.prompts,
            style=STYLE.read_text(encoding="utf-8") + (PAGE / "demo.css").read_text(encoding="utf-8"),
            script=(PAGE / "demo.js").read_text(encoding="utf-8"), most=MOST,
        )  # fmt: skip

    def respond(self) -> Respond:
        """Return what answers: the page, and prompts at /run."""

        def answer(path: str, query: str, sent: bytes | None) -> Answer | None:
            if path == "" and sent is None:
                return Answer("text/html; charset=utf-8", [self.page])
            if path == "run" and sent is not None:
                return Answer("application/x-ndjson", self.lines(sent))
            return None

        return answer

    def lines(self, sent: bytes) -> Iterator[str]:
        """Yield what a model answers, a line of JSON each; a last one says how long it took, or what was wrong."""
        try:
            model, prompt, settings = self.asked(sent)
            with self.lock:
                began = time.monotonic()
                for found in model.answers(prompt, settings):
                    yield json.dumps(found) + "\n"
                yield json.dumps({"seconds": time.monotonic() - began}) + "\n"
        except UserError as error:
            yield json.dumps({"error": str(error)}) + "\n"

    def asked(self, sent: bytes) -> tuple[Masked | Causal, str, dict[str, Any]]:
        """Return the model, the prompt and the settings of a request. Raises UserError for what they cannot be."""
        try:
            found = json.loads(sent)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or found.get("model") not in self.models:
            raise UserError(f"allowed: JSON with a model of {', '.join(self.models)}.")
        prompt = found.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            raise UserError("the prompt is empty.")
        settings = {}
        for name, (kind, low, high) in NUMBERS.items():
            value = found.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise UserError(f"{name} is {json.dumps(value)[:50]}; allowed: {low} to {high}.")
            settings[name] = kind(value)
        return self.models[found["model"]], prompt.encode("utf-8", "replace").decode(), settings


def demo_of(asked: argparse.Namespace) -> Demo:
    """Return the models that were asked for. Raises UserError."""
    places = [place_of(run, asked.configfile, asked.results) for run in asked.run]
    if not places:
        results, config = results_and_config(asked.configfile, asked.results)
        places = [(results, model, config) for model in models(results)]
    if not places:
        raise UserError(f"there is no trained model in {results}.")
    shared: dict = {}
    found: dict[str, Masked | Causal] = {}
    for results, run, config in places:
        stage, name = chosen(run, results)
        try:
            folders = folders_of(stage, name, results, config)
            found[f"{stage}/{name}"] = Masked(folders) if stage == "mlm" else Causal(folders, shared)
        except UserError as error:
            if asked.run:
                raise
            print(f"note: {stage}/{name} is left out: {error}", file=sys.stderr)
    given = places[0][2].get("prompts", {})
    keys = {"masked": "fill_mask", "causal": "generate"}
    prompts = {kind: (given.get(key) or [PROMPTS[kind]])[0] for kind, key in keys.items()}
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
        server, address = serve(demo.respond(), asked.port)
    except UserError as error:
        sys.exit(f"error: {error}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(address, flush=True)
    print(f"Models: {', '.join(demo.models)}. Ctrl-C ends it.", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        with demo.lock:  # the page is there meanwhile
            from tpulm.training import runtime

            runtime.start(os.cpu_count() or 1)
        threading.Event().wait()
    server.shutdown()


if __name__ == "__main__":
    main()
