"""Serve a trained causal model to other programs, with the requests of OpenAI's API.

    python3 -m venv serving && serving/bin/pip install "transformers[serving]"
    python tools/serve.py base/small
    python tools/serve.py finetune/python --environment vllm --port 8080

The server is vLLM if the environment has it, otherwise `transformers serve` of transformers 5. It serves the folder of
the model below results/transformers, which `snakemake transformers` makes. vLLM also serves an adapter, as
finetune/RUN, beside its base model. The tool prints each kind of request as a command, with its first answer. Ctrl-C
ends it. The server answers this machine only, unless --host says otherwise.
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

try:
    from tpulm.config.finished_models import choose_model, folders_of, models, place_of
    from tpulm.core.errors import UserError
    from tpulm.core.experiments import add_directory, enter
    from tpulm.core.files import read_json
except ModuleNotFoundError as error:
    sys.exit(f"error: this Python has no {error.name}; activate the environment: `. .venv/bin/activate`.")

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # values of vLLM's --max-lora-rank
START, END = 600.0, 20.0  # seconds that a server may take to answer, and to end
PROMPT, TOKENS = "def ", 16  # of the first answer, where the config has no prompt
ENDED_BY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # of this machine, no other one is asked


@dataclass(frozen=True)
class Served:
    """What is served.

    name     of the model, STAGE/RUN
    folder   of the model, as transformers opens it; of an adapter, that of its base model
    adapter  the folder of an adapter of PEFT; None for a whole model
    prompt   of the first answer
    again    the command that makes the folder
    """

    name: str
    folder: Path
    adapter: Path | None
    prompt: str
    again: str

    @property
    def talks(self) -> bool:
        """Whether the folder has a chat template: its model was trained on conversations."""
        return (self.folder / "chat_template.jinja").is_file()

    def vllm(self) -> list[str]:
        """Return the arguments of `vllm serve`. Raises UserError for an adapter of a rank that vLLM does not take."""
        # Without --dtype, vLLM would take float16 for weights in float32.
        found = [str(self.folder), "--dtype", str(read_json(self.folder / "config.json")["dtype"])]
        if self.adapter is None:
            return [*found, "--served-model-name", self.name]
        rank = read_json(self.adapter / "adapter_config.json")["r"]
        if rank > RANKS[-1]:
            raise UserError(f"{self.name} has a rank of {rank} in PEFT; vLLM takes {RANKS[-1]} or less. {merged(self)}")
        found += ["--served-model-name", f"base/{self.folder.name}"]
        found += ["--enable-lora", "--max-lora-rank", str(min(size for size in RANKS if size >= rank))]
        return [*found, "--lora-modules", json.dumps({"name": self.name, "path": str(self.adapter)})]


def merged(model: Served) -> str:
    """Return how an adapter becomes a whole model."""
    return f"Set `merge: true` in its run of the config, and run `{model.again}`."


def served(asked: argparse.Namespace) -> tuple[Served, bool]:
    """Return the model that was asked for, and whether it was trained on conversations. Raises UserError."""
    # The folder below results/transformers is one of the run, too.
    run = re.sub(r"(^|/)transformers/((base|finetune)/[^/]+/?)$", r"\1\2", asked.run)
    results, run, config = place_of(run, asked.configfile, asked.results)
    stage, name = choose_model(run, models(results), results)
    if stage == "mlm":
        raise UserError(f"{stage}/{name} is a masked model; allowed: a base model or a finetuned one.")
    folders = folders_of(stage, name, results, config)
    folder = results / "transformers" / folders.model.parent.relative_to(results)
    adapter = folders.adapter and folders.adapter / "adapter"
    own = bool(config) and Path("results").resolve() == results.resolve()
    files = [str(file) for file in asked.configfile or ([] if own else ["CONFIG"])]  # where it is not known which
    here = ["-d", str(asked.directory)] if asked.directory else []
    again = shlex.join(["snakemake", *here, "transformers", *(["--configfile", *files] if files else [])])
    for file in filter(None, (folder / "config.json", adapter and adapter / "adapter_config.json")):
        if not file.is_file():
            raise UserError(f"there is no {file}; make it with `{again}`.")
    prompts = config.get("prompts", {}).get("generate") or [PROMPT]
    return Served(f"{stage}/{name}", folder, adapter, prompts[0], again), folders.chat is not None


def command_of(asked: argparse.Namespace) -> tuple[Served, list[str], str]:
    """Return the model that was asked for, the command that serves it, and its name there. Raises UserError."""
    model, talks = served(asked)
    programs = asked.environment / "bin"
    place = ["--host", asked.host, "--port", str(asked.port)]
    if model.adapter and talks:
        raise UserError(
            f"{model.name} is an adapter that was trained on conversations; only a whole model has their chat "
            f"template. {merged(model)}"
        )
    if (programs / "vllm").is_file():
        return model, [str(programs / "vllm"), "serve", *model.vllm(), *place], model.name
    if not (programs / "transformers").is_file():
        raise UserError(
            f"{asked.environment} has no program that serves models; make such an environment with `python3 -m venv "
            f'{asked.environment}` and `{programs}/pip install "transformers[serving]"`, or install vllm there.'
        )
    if model.adapter:
        raise UserError(f"{model.name} is an adapter, which only vLLM serves. {merged(model)}")
    return model, [str(programs / "transformers"), "serve", str(model.folder), *place], str(model.folder)


def check_free(host: str, port: int) -> None:
    """Raise UserError where a server cannot listen at an address, before it has loaded a model to find that out."""
    if not 0 < port < 1 << 16:
        raise UserError(f"--port is {port}; allowed: 1 to 65535.")
    try:
        with socket.socket() as place:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind((host, port))
    except OSError as error:
        raise UserError(f"--host {host} --port {port} is not available: {error}.") from None


def environment_of(folder: Path, cache: str) -> dict[str, str]:
    """Return the variables of a virtual environment's programs, as if it was activated in place of this one.

    cache  of the Hugging Face Hub for it: transformers lists its models, and fails where there is none
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    path = f"{folder.absolute() / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return kept | {"PATH": path, "VIRTUAL_ENV": str(folder.absolute()), "HF_HUB_CACHE": cache}


@contextlib.contextmanager
def running(command: list[str], environment: dict[str, str], address: str) -> Iterator[subprocess.Popen]:
    """Run a server while the context is open, from when it answers on. Raises UserError where it does not."""
    try:
        # In a group of its own, so that Ctrl-C reaches this program, which ends the server and what that has started.
        server = subprocess.Popen(command, env=environment, stdout=sys.stderr, start_new_session=True)
    except OSError as error:
        raise UserError(f"`{shlex.join(command)}` cannot run: {error}.") from None
    try:
        end = time.monotonic() + START
        while True:
            if (code := server.poll()) is not None:
                raise UserError(f"the server has ended with {code}; it was `{shlex.join(command)}`.")
            if answers(f"{address}/health"):
                break
            if time.monotonic() > end:
                raise UserError(f"the server has not answered within {START:.0f} s; it was `{shlex.join(command)}`.")
            time.sleep(0.2)
        yield server
    finally:
        for one in ENDED_BY:  # who is impatient must not leave the server behind
            signal.signal(one, signal.SIG_IGN)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(server.pid, sign)
                server.wait(END)


def answers(address: str) -> bool:
    """Return whether a server answers at an address."""
    try:
        with NO_PROXY.open(address, timeout=5) as response:
            return response.status == 200
    except (OSError, http.client.HTTPException):
        return False


def answer_of(address: str, request: dict) -> str:
    """Return the text that answers a request. Raises UserError where there is none."""
    sent = urllib.request.Request(address, json.dumps(request).encode(), {"Content-Type": "application/json"})
    try:
        with NO_PROXY.open(sent, timeout=START) as response:
            choice = json.load(response)["choices"][0]
            return str(choice["message"]["content"] if "messages" in request else choice["text"])
    except urllib.error.HTTPError as error:
        raise UserError(f"{address} answers with {error.code}: {error.read(500).decode(errors='replace')}") from None
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{address} does not answer as OpenAI's API does: {error!r}.") from None


def first_answers(model: Served, name: str, address: str) -> Iterator[str]:
    """Yield what a person should see of a server: the first answer of each kind, and the command that asks for it.

    Raises UserError where it does not answer.
    """
    requests: dict[str, dict] = {"completions": {"prompt": model.prompt}}
    if model.talks:
        requests["chat/completions"] = {"messages": [{"role": "user", "content": "Hello"}]}
    for path, content in requests.items():
        request = {"model": name} | content | {"max_tokens": TOKENS, "temperature": 0}
        yield f"{model.name} answers: {answer_of(f'{address}/v1/{path}', request)!r}"
        body = json.dumps(request).replace("'", r"\u0027")
        yield f"curl --noproxy '*' {address}/v1/{path} -H 'Content-Type: application/json' -d '{body}'"


def main() -> None:
    """Serve until the user ends it, or the server does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run: its name, STAGE/RUN if the name is ambiguous, or its folder")
    parser.add_argument("--environment", type=Path, default=Path("serving"), help="virtual environment of the server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--configfile", type=Path, nargs="+", help="as for snakemake")
    parser.add_argument("--results", type=Path, help="where the models are; default: the results of the config")
    add_directory(parser)
    asked = parser.parse_args()
    for one in ENDED_BY:
        if one != signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(one, signal.default_int_handler)
    try:
        enter(asked)
        model, command, name = command_of(asked)
        check_free(asked.host, asked.port)
        address = f"http://{'127.0.0.1' if asked.host == '0.0.0.0' else asked.host}:{asked.port}"
        with (
            tempfile.TemporaryDirectory() as cache,
            running(command, environment_of(asked.environment, cache), address) as server,
        ):
            for line in first_answers(model, name, address):
                print(line, flush=True)
            raise UserError(f"the server has ended with {server.wait()}.")
    except UserError as error:
        sys.exit(f"error: {error}")
    except BrokenPipeError:  # nobody reads what it prints
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
