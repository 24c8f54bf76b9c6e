"""Serve a trained causal model to other programs, with the requests of OpenAI's API.

    python3 -m venv serving && serving/bin/pip install "transformers[serving]"
    python tools/serve.py base/small
    python tools/serve.py finetune/python --environment vllm --port 8080

The server is vLLM, where the environment has it, otherwise `transformers serve` of transformers 5. It serves the folder
of the model below results/transformers, which `snakemake transformers` makes; vLLM also serves adapters, by the name of
their run, beside their base model. Prints the first answer of each model, and how to ask for more; Ctrl-C ends it. The
server answers this machine only, unless --host says otherwise.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

try:
    from tpulm.config.finished_models import base_of, chosen, models, place_of
    from tpulm.core.errors import UserError
    from tpulm.core.files import read_json
except ModuleNotFoundError as error:
    sys.exit(f"error: this Python has no {error.name}; activate the environment: `. .venv/bin/activate`.")

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # values of vLLM's --max-lora-rank
START, END = 600.0, 20.0  # seconds that a server may take to answer, and to end
PROMPT, TOKENS = "def ", 16  # of the first answer, where the config has no prompt


@dataclass(frozen=True)
class Served:
    """What is served.

    name     STAGE/RUN, by which the model is asked for
    folder   of the model, as transformers opens it; of an adapter, that of its base model
    adapter  the folder of an adapter of PEFT; None for a whole model
    prompt   of the first answer
    """

    name: str
    folder: Path
    adapter: Path | None
    prompt: str

    @property
    def talks(self) -> bool:
        """Whether the model has a chat template: it was trained on conversations."""
        return (self.folder / "chat_template.jinja").is_file()

    def vllm(self) -> list[str]:
        """Return the arguments of `vllm serve`. Raises UserError for an adapter of a rank that vLLM does not take."""
        found = [str(self.folder), "--dtype", str(read_json(self.folder / "config.json")["dtype"])]
        if self.adapter is None:
            return [*found, "--served-model-name", self.name]
        config = read_json(self.adapter / "adapter_config.json")
        rank = max([config["r"], *config.get("rank_pattern", {}).values()])
        if rank > RANKS[-1]:
            raise UserError(
                f"{self.name} has a rank of {rank} as an adapter of PEFT; vLLM takes {RANKS[-1]} or less. Set "
                f"finetune.runs.{self.name.partition('/')[2]}.merge to true, and run `snakemake transformers`."
            )
        found += ["--enable-lora", "--lora-modules", f"{self.name}={self.adapter}"]
        return [*found, "--max-lora-rank", str(min(size for size in RANKS if size >= rank))]


def served(asked: argparse.Namespace) -> Served:
    """Return the model that was asked for. Raises UserError."""
    results, run, config = place_of(asked.run, asked.configfile, asked.results)
    stage, name = chosen(run, [model for model in models(results) if not model.startswith("mlm/")], results)
    folder, adapter = results / "transformers" / stage / name, results / "finetune" / name / "adapter"
    whole = stage == "base" or (results / "finetune" / name / "model").is_dir()
    if not whole:
        folder = results / "transformers/base" / base_of(name, results, config)
    if not (folder / "config.json").is_file():
        raise UserError(f"there is no {folder}; make it with `snakemake transformers`.")
    prompts = config.get("prompts", {}).get("generate") or [PROMPT]
    return Served(f"{stage}/{name}", folder, None if whole else adapter, prompts[0])


def command_of(model: Served, asked: argparse.Namespace) -> tuple[list[str], str]:
    """Return the command that serves a model, and the name by which its server knows it. Raises UserError."""
    programs = asked.environment / "bin"
    place = ["--host", asked.host, "--port", str(asked.port)]
    if (programs / "vllm").is_file():
        return [str(programs / "vllm"), "serve", *model.vllm(), *place], model.name
    if not (programs / "transformers").is_file():
        raise UserError(
            f"{asked.environment} has no program that serves models; make such an environment with `python3 -m venv "
            f'{asked.environment}` and `{programs}/pip install "transformers[serving]"`, or install vllm there.'
        )
    if model.adapter:
        raise UserError(
            f"{model.name} is an adapter, which transformers does not serve; allowed: an environment with vllm, or "
            f"finetune.runs.{model.name.partition('/')[2]}.merge: true in the config, and `snakemake transformers`."
        )
    return [str(programs / "transformers"), "serve", str(model.folder), *place], str(model.folder)


def check_free(host: str, port: int) -> None:
    """Raise UserError where a server cannot listen at an address, before it has loaded a model to find that out."""
    try:
        with socket.socket() as place:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind((host, port))
    except (OSError, OverflowError) as error:
        raise UserError(f"--host {host} --port {port} is not available: {error}.") from None


@contextlib.contextmanager
def running(command: list[str], cache: Path, address: str) -> Iterator[subprocess.Popen]:
    """Run a server while the context is open, from when it answers on. Raises UserError where it ends before.

    cache  of the Hugging Face Hub for it: transformers lists its models, and fails where there is none
    """
    failed = f"the server has not started; its own messages are above. It was: {' '.join(command)}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # In a group of its own, so that Ctrl-C reaches this program, which ends the server and what that has started.
        server = subprocess.Popen(command, env=os.environ | {"HF_HUB_CACHE": str(cache)}, start_new_session=True)
    except OSError as error:
        raise UserError(f"{failed} ({error})") from None
    try:
        end = time.monotonic() + START
        while not answers(f"{address}/health"):
            if server.poll() is not None or time.monotonic() > end:
                raise UserError(failed)
            time.sleep(0.2)
        yield server
    finally:
        for sign, seconds in ((signal.SIGTERM, END), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(server.pid, sign)
                server.wait(seconds)


def answers(address: str) -> bool:
    """Return whether a server answers at an address."""
    try:
        with urllib.request.urlopen(address, timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


def asked_of(address: str, **request: object) -> dict:
    """Return the answer to a request. Raises UserError where it is none."""
    body = urllib.request.Request(address, json.dumps(request).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(body, timeout=START) as response:
            return json.load(response)["choices"][0]
    except urllib.error.HTTPError as error:
        raise UserError(f"{address} answers with {error.code}: {error.read(500).decode(errors='replace')}") from None
    except (OSError, ValueError, LookupError) as error:
        raise UserError(f"{address} does not answer as OpenAI's API does: {error!r}.") from None


def first_answers(model: Served, name: str, address: str) -> list[str]:
    """Return what a person should see of a server: the first answer of each kind, and the command that asks for it.

    Raises UserError where it does not answer.
    """
    requests: dict[str, dict] = {"completions": {"prompt": model.prompt}}
    if model.talks:
        requests["chat/completions"] = {"messages": [{"role": "user", "content": "Hello"}]}
    lines = []
    for path, content in requests.items():
        request = {"model": name} | content | {"max_tokens": TOKENS, "temperature": 0}
        choice = asked_of(f"{address}/v1/{path}", **request)
        text = choice["text"] if path == "completions" else choice["message"]["content"]
        body = json.dumps(request).replace("'", r"\u0027")
        lines += [
            f"{model.name} answers: {text!r}",
            f"curl {address}/v1/{path} -H 'Content-Type: application/json' -d '{body}'",
        ]
    return lines


def main() -> None:
    """Serve until the user ends it, or the server does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run: its name, STAGE/RUN if the name is ambiguous, or its folder")
    parser.add_argument("--environment", type=Path, default=Path("serving"), help="virtual environment of the server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--configfile", type=Path, nargs="+", help="as for snakemake")
    parser.add_argument("--results", type=Path, help="where the models are; default: the results of the config")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        model = served(asked)
        command, name = command_of(model, asked)
        address = f"http://{'127.0.0.1' if asked.host == '0.0.0.0' else asked.host}:{asked.port}"
        check_free(asked.host, asked.port)
        with running(command, asked.environment / "hub", address) as server:
            print("\n".join(first_answers(model, name, address)), flush=True)
            raise UserError(f"the server has ended, with {server.wait()}; its own messages are above.")
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
