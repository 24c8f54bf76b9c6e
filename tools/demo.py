"""Open a page to type into trained models, side by side. Can be used while the workflow runs.

    python tools/demo.py
    python tools/demo.py tiny finetune/python
    python tools/demo.py base/small base/small/400
    python tools/demo.py -d experiments/sums

Without names, the page has all finished models of the config, and the last checkpoint of unfinished runs. /STEP
after a name selects another checkpoint. Masked models fill in each [MASK], or show how probable a text is. Causal
models continue the prompt token by token; those trained on conversations answer messages. Models of tasks predict
labels. The page shows how probable each token was, which others were probable, and how each tokenizer splits a text.
The tool prints an address with a secret token, for this machine only, and opens it in the desktop's browser, if there
is one. Ctrl-C ends it. It takes no lock, and writes nothing below the results. Models run on the CPU, beside a training
on the accelerator, unless JAX_PLATFORMS and CUDA_VISIBLE_DEVICES say otherwise. From another machine:
ssh -L PORT:127.0.0.1:PORT HOST.
"""

import argparse
import contextlib
import json
import os
import queue
import sys
import threading
import time
import traceback
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from tpulm.core.errors import UserError
    from tpulm.core.experiments import add_directory, enter
    from tpulm.core.local_server import LARGEST, Answer, serve
    from tpulm.demo.choice import Choice, Prompt, choices
except ModuleNotFoundError as error:
    sys.exit(f"error: this Python has no {error.name}; activate the environment: `. .venv/bin/activate`.")

PAGE, STYLE = ROOT / "report/demo", ROOT / "report/page/page.css"
# The prompts of each kind where the config has none, and its keys for them.
PROMPTS = {
    "masked": ["Return the [MASK] of the list."], "causal": ["def "], "chat": [""], "labels": [""],
    "tokens": ["Return the name of the file."],
}  # fmt: skip
KEYS = {"masked": "fill_mask", "causal": "generate"}


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


class Request:
    """A prompt for a model, and what is said of it, until nobody reads it any more."""

    def __init__(self, choice: Choice, prompt: Prompt, settings: dict[str, Any]):
        """Take what was asked."""
        self.choice, self.prompt, self.settings = choice, prompt, settings
        self.said, self.gone = queue.SimpleQueue[dict | None](), False

    def tell(self, line: dict) -> bool:
        """Say a line; return whether somebody still reads."""
        self.said.put(line)
        return not self.gone

    def answer(self) -> None:
        """Ask the model."""
        began = time.monotonic()
        try:
            self.choice.opened.answer(self.prompt, self.settings, self.tell)
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

    models: dict[str, Choice]
    prompts: dict[str, list[str]]
    title: str
    waiting: queue.SimpleQueue[Request] = field(default_factory=queue.SimpleQueue)

    @cached_property
    def page(self) -> str:
        """The page."""
        environment = Environment(loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined)
        kinds = {kind: [name for name, choice in self.models.items() if kind in choice.kinds] for kind in PROMPTS}
        adapters = any(choice.adapter for choice in self.models.values())
        tasks = {name: choice for name, choice in self.models.items() if choice.examples}
        return environment.get_template("demo.html").render(
            title=self.title, kinds={kind: names for kind, names in kinds.items() if names}, prompts=self.prompts,
            style=STYLE.read_text(encoding="utf-8") + (PAGE / "demo.css").read_text(encoding="utf-8"),
            script=(PAGE / "demo.js").read_text(encoding="utf-8"), numbers=NUMBERS, largest=LARGEST,
            adapters=adapters, tasks=tasks,
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
    """Return what was asked for. Raises UserError."""
    found = choices(asked.run, asked.configfile, asked.results)
    for run, error in found.left_out.items():
        print(f"note: {run} is left out: {error}", file=sys.stderr)
    place, config = next(iter(found.places.items()))
    given = config.get("prompts", {})
    prompts = PROMPTS | {kind: given[key] for kind, key in KEYS.items() if given.get(key)}
    return Demo(found.named, prompts, config.get("title") or place.resolve().parent.name)


def main() -> None:
    """Serve the page until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    help_ = "runs: a name, STAGE/RUN if the name is ambiguous, or a folder; before the options"
    parser.add_argument("run", nargs="*", help=help_)
    parser.add_argument("--configfile", type=Path, nargs="+", help="as for snakemake")
    parser.add_argument("--results", type=Path, help="where the models are; default: the results of the config")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; default: a free port")
    add_directory(parser)
    asked = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    try:
        enter(asked)
        demo = demo_of(asked)
        server, address = serve(demo.respond, asked.port)
    except UserError as error:
        sys.exit(f"error: {error}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(address, flush=True)
    print(f"It has {', '.join(demo.models)}. Ctrl-C ends it.", flush=True)
    if sys.platform != "linux" or {"DISPLAY", "WAYLAND_DISPLAY"} & {*os.environ}:  # elsewhere, it may be one of text
        with contextlib.suppress(webbrowser.Error):
            webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):
        demo.work()
    server.shutdown()


if __name__ == "__main__":
    main()
