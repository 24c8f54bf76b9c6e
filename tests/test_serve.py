"""Models that are served to other programs."""

import json
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from argparse import Namespace

import pytest
import warm
from conftest import ROOT
from tpulm.core.files import write_json

PROGRAM = ROOT / "tools/serve.py"
PROMPTS = ["def ", "The ", "Return the ", "import os\n", "If the", "A list of", "class ", "self.", "This module", "0 "]
# The likeliest continuation of each prompt, as the workflow computes it, and the smallest distance to another token.
LIKELIEST = """
import json, sys
from tpulm.training import runtime
runtime.start(2)
import numpy as np
from tpulm.models.causal import load_preset
from tpulm.tokenization.causal import SentencePiece
preset, prompts, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
model, tokenizer = load_preset(preset), SentencePiece(f"{preset}/assets/tokenizer/vocabulary.spm")
found = []
for prompt in prompts:
    first = [tokenizer.special["bos"], *tokenizer.encode([prompt])[0]]
    ids, distances = list(first), []
    for _ in range(count):
        logits = model({"token_ids": np.array([ids]), "padding_mask": np.ones((1, len(ids)), int)})
        logits = np.array(logits[0, -1])
        best, second = np.argsort(logits)[:-3:-1]
        distances.append(float(logits[best] - logits[second]))
        ids.append(int(best))
    found.append([tokenizer.decode(ids), min(distances)])
print("RESULT" + json.dumps(found))
"""


def said(folder, *arguments):
    done = subprocess.run([sys.executable, PROGRAM, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.fixture
def results(tmp_path):
    """Results with a base model, an adapter of it and a masked model, as far as the program looks at them."""
    for file in (
        "mlm/tiny/model/model.safetensors",
        "finetune/python/adapter.lora.h5",
        "base/small/preset/config.json",
    ):
        (tmp_path / "results" / file).parent.mkdir(parents=True)
        (tmp_path / "results" / file).touch()
    write_json(tmp_path / "results/transformers/base/small/config.json", {"dtype": "float32"})
    write_json(tmp_path / "results/finetune/python/adapter/adapter_config.json", {"r": 20, "rank_pattern": {"q": 33}})
    write_json(tmp_path / "results/history/finetune/python.json", [{"recipe": {"base": "small"}}])
    return tmp_path / "results"


@pytest.mark.unit
def test_what_cannot_be_served_is_a_sentence(results):
    folder = results.parent
    assert "allowed: base/small, finetune/python" in said(folder, "mlm/tiny")
    assert 'pip install "transformers[serving]"' in said(folder, "small")
    (folder / "serving/bin").mkdir(parents=True)
    (folder / "serving/bin/transformers").touch()
    assert "finetune.runs.python.merge: true" in said(folder, "python")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert f"--port {port} " in said(folder, "small", "--port", port)
    assert "serving/bin/transformers serve " in said(folder, "small", "--port", port)  # which is no program
    (results / "transformers/base/small/config.json").unlink()
    assert "`snakemake transformers`" in said(folder, "small")


@pytest.mark.unit
def test_vllm_gets_an_adapter_beside_its_base_model(results, monkeypatch):
    monkeypatch.chdir(results.parent)
    program = runpy.run_path(str(PROGRAM))
    environment = results.parent / "vllm"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin/vllm").touch()
    asked = Namespace(
        run="python", configfile=None, results=None, environment=environment, host="127.0.0.1", port=8000
    )  # fmt: skip
    command, name = program["command_of"](program["served"](asked), asked)
    assert command[1:3] == ["serve", "results/transformers/base/small"] and name == "finetune/python"
    assert command[3:-4] == [
        "--dtype", "float32", "--enable-lora", "--lora-modules", "finetune/python=results/finetune/python/adapter",
        "--max-lora-rank", "64",
    ]  # fmt: skip
    write_json(results / "finetune/python/adapter/adapter_config.json", {"r": 513})
    with pytest.raises(Exception, match=r"rank of 513.* 512 or less.*finetune\.runs\.python\.merge"):
        program["command_of"](program["served"](asked), asked)


@pytest.mark.long
def test_transformers_serves_the_likeliest_tokens(trained, openers):
    """Where two logits are nearly the same, either may be chosen."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = openers.python("transformers 5").parents[1]
    command = [sys.executable, PROGRAM, "base/small", "--environment", environment, "--port", str(port)]
    preset = trained.folder / "results/base/small/preset"
    done = warm.run("jax", LIKELIEST, str(preset), json.dumps(PROMPTS), "8", folder=trained.folder)
    expected = json.loads(done.stdout.rpartition("RESULT")[2])
    assert sum(distance > 1e-3 for _, distance in expected) > 5
    server = subprocess.Popen(command, cwd=trained.folder, stdout=subprocess.PIPE, text=True)
    try:
        answer, command = (server.stdout.readline() for _ in range(2))
        asked = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True)
        assert repr(json.loads(asked.stdout)["choices"][0]["text"]) in answer
        request = {"model": "results/transformers/base/small", "max_tokens": 8, "temperature": 0}
        for prompt, (text, distance) in zip(PROMPTS, expected, strict=True):
            body = json.dumps(request | {"prompt": prompt}).encode()
            address = f"http://127.0.0.1:{port}/v1/completions"
            with urllib.request.urlopen(
                urllib.request.Request(address, body, {"Content-Type": "application/json"}), timeout=60
            ) as response:
                found = prompt + json.load(response)["choices"][0]["text"]
            assert found == text or distance < 1e-3, (found, text)
    finally:
        server.send_signal(signal.SIGINT)
    assert server.wait(30) == 130
