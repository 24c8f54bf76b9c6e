"""Models that are served to other programs."""

import ast
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT
from kills import wait_for
from one_node_slurm import free_port
from tpulm.core.files import write_json

PROGRAM = ROOT / "tools/serve.py"
# A server with the command lines of vLLM and transformers: it answers with its own, and has a child that must end, too.
SERVER = """#!{python}
import json, os, signal, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
{first}
child = subprocess.Popen(["sleep", "600"])
open("pids", "w").write(f"{{os.getpid()}} {{child.pid}}")
print("a message of the server", flush=True)
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = json.dumps([sys.argv[1:-4], asked, self.path, os.environ["VIRTUAL_ENV"]])
        body = json.dumps({{"choices": [{{"text": text, "message": {{"content": text}}}}]}})
        self.send_response({status})
        self.end_headers()
        self.wfile.write(body.encode())
HTTPServer((sys.argv[-3], int(sys.argv[-1])), Handler).serve_forever()
"""


@pytest.fixture
def port():
    return str(free_port())


@pytest.fixture
def folder(tmp_path):
    """A folder with a base model, an adapter of it and a masked model, as far as the program looks at them."""
    results = tmp_path / "results"
    for file in ("mlm/tiny/model/a.safetensors", "finetune/python/adapter.lora.h5", "base/small/preset/config.json"):
        (results / file).parent.mkdir(parents=True)
        (results / file).touch()
    write_json(results / "transformers/base/small/config.json", {"dtype": "float32"})
    write_json(results / "finetune/python/adapter/adapter_config.json", {"r": 33})
    write_json(results / "history/finetune/python.json", [{"recipe": {"base": "small"}}])
    return tmp_path


def served_by(folder, name, first="", status=200):
    program = folder / f"serving/bin/{name}"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(SERVER.format(python=sys.executable, first=first, status=status))
    program.chmod(0o755)


def started(folder, *arguments):
    environment = os.environ | {"http_proxy": "http://127.0.0.1:9"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = ["env", "--default-signal=HUP", sys.executable, PROGRAM, *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


def said(folder, *arguments):
    """Return the one sentence that it ends with."""
    output, errors = (done := started(folder, *arguments)).communicate(timeout=60)
    assert done.returncode == 1 and output == "" and "Traceback" not in errors
    assert errors.splitlines()[-1].startswith("error: "), errors
    return errors.splitlines()[-1]


def end_of_server(folder):
    """Wait until all processes of a server have ended; a child that is killed may live on for a moment."""
    for process in (folder / "pids").read_text().split():
        status = Path(f"/proc/{process}/stat")
        wait_for(lambda status=status: not status.exists() or ") Z " in status.read_text())


@pytest.mark.unit
def test_what_cannot_be_served_is_a_sentence(folder, port):
    assert "mlm/tiny" in said(folder, "mlm/tiny")
    assert 'pip install "transformers[serving]"' in said(folder, "small")
    served_by(folder, "transformers")
    assert "`merge: true`" in said(folder, "python")
    assert "--port is 0" in said(folder, "small", "--port", "0")
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(port)))
        other.listen()
        assert f"--port {port}" in said(folder, "small", "--port", port)
    (folder / "mine.yaml").write_text("corpus: {source: python-docs}\n")
    (folder / "results/transformers/base/small/config.json").unlink()
    assert "`snakemake transformers --configfile mine.yaml`" in said(folder, "small", "--configfile", "mine.yaml")


@pytest.mark.unit
def test_a_server_that_fails_is_told(folder, port):
    served_by(folder, "transformers", first="sys.exit(7)")
    assert "has ended with 7" in said(folder, "small", "--port", port)
    served_by(folder, "transformers", status=500)
    assert "500" in said(folder, "small", "--port", port)
    end_of_server(folder)
    (folder / "serving/bin/transformers").chmod(0o600)
    assert "cannot run" in said(folder, "small", "--port", port)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("sign", "first"),
    [
        (signal.SIGINT, ""), (signal.SIGTERM, ""), (signal.SIGHUP, ""), (signal.SIGQUIT, ""),
        pytest.param(signal.SIGINT, "signal.signal(signal.SIGTERM, signal.SIG_IGN)", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_the_server_ends_with_the_program(folder, port, sign, first):
    """Also where the user presses Ctrl-C again, and a server that only a kill ends."""
    served_by(folder, "transformers", first=first)
    process = started(folder, "small", "--port", port)
    assert process.stdout.readline().startswith("base/small answers: ")
    process.send_signal(sign)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    end_of_server(folder)


@pytest.mark.unit
def test_vllm_serves_an_adapter_beside_its_base_model(folder, port):
    served_by(folder, "vllm")
    process = started(folder, "python", "--port", port)
    try:
        answer, command = process.stdout.readline(), process.stdout.readline()
    finally:
        process.send_signal(signal.SIGINT)
    arguments, request, path, environment = json.loads(ast.literal_eval(answer.partition(": ")[2]))
    modules = json.dumps({"name": "finetune/python", "path": "results/finetune/python/adapter"})
    options = "serve results/transformers/base/small --dtype float32 --served-model-name base/small --enable-lora"
    assert arguments == [*options.split(), "--max-lora-rank", "64", "--lora-modules", modules]
    assert path == "/v1/completions" and environment == str(folder / "serving")
    assert request == {"model": "finetune/python", "prompt": "def ", "max_tokens": 16, "temperature": 0}
    assert json.loads(shlex.split(command)[-1]) == request
    process.wait(60)

    adapter = folder / "results/finetune/python/adapter/adapter_config.json"
    write_json(adapter, {"r": 513})
    assert "513" in said(folder, "python")
    adapter.unlink()
    assert "adapter_config.json" in said(folder, "python")


@pytest.mark.unit
def test_conversations_need_their_template(folder, port):
    served_by(folder, "vllm")
    write_json(folder / "results/finetune-text/chat_template.json", {})
    (folder / "results/finetune/python/history.csv").touch()
    assert "was trained on conversations" in said(folder, "python")
    (folder / "results/transformers/base/small/chat_template.jinja").touch()
    process = started(folder, "results/transformers/base/small/", "--port", port)
    try:
        lines = [process.stdout.readline() for _ in range(4)]
    finally:
        process.send_signal(signal.SIGINT)
    assert "/v1/chat/completions" in lines[2] and json.loads(shlex.split(lines[3])[-1])["messages"]
    process.wait(60)


@pytest.mark.long
def test_transformers_serves_a_model(trained, openers, port):
    """What it answers with: tests/test_transformers.py compares the logits."""
    environment = openers.python("transformers 5").parents[1]
    process = started(trained.folder, "base/small", "--environment", environment, "--port", port)
    try:
        answer, command = process.stdout.readline(), process.stdout.readline()
        asked = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True)
        text = json.loads(asked.stdout)["choices"][0]["text"]
        assert text and repr(text) in answer
    finally:
        process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
