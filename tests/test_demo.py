"""The page to type into models, and the server that it shares with the look at a run."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
import warm
from conftest import ROOT
from test_report import browser, needs_browser, opened  # noqa: F401 (a fixture)
from tpulm.core.files import fingerprints
from tpulm.core.local_server import LARGEST, Answer, serve

JSON = {"Content-Type": "application/json"}
CAUSAL = {"length": 12, "temperature": 0, "top_p": 1, "seed": 0}


def ask(address, sent=None, headers=None, method=None):
    """Return status and text of an answer."""
    request = urllib.request.Request(address, data=sent, headers=headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


@pytest.mark.unit
def test_only_the_page_of_this_machine_is_answered():
    server, address = serve(lambda path, query, sent: Answer(parts=[path, "?", query, str(sent)]), 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = urlsplit(address).port
    assert ask(f"{address}a/b?c=d") == (200, "a/b?c=dNone")
    assert ask(address, b"{}", JSON)[1] == "?b'{}'"
    assert ask(address, headers={"Host": f"localhost:{port + 1}"})[0] == 200  # the end of a tunnel
    for status, given in (
        (404, ask(address[:-2] + "/")),
        (404, ask(address[:-1])),  # from there, the page would not find what it asks for
        (404, ask(f"http://127.0.0.1:{port}/")),
        (404, ask(address, headers={"Host": f"elsewhere.example:{port}"})),
        (415, ask(address, b"{}", {"Content-Type": "text/plain"})),
        (415, ask(address, b"{}", {"Content-Type": "application/x-www-form-urlencoded"})),
        (413, ask(address, b" " * (LARGEST + 1), JSON)),
        (413, ask(address, b" " * 20 * LARGEST, JSON)),
        (501, ask(address, method="PUT")),
        (501, ask(address, method="DELETE")),
    ):
        assert given[0] == status
    with socket.create_connection(("127.0.0.1", port)) as odd:
        odd.sendall(b"\x00\xff\x16\x03 /\r\n\r\n")
        assert b"Error code: 40" in b"".join(iter(lambda: odd.recv(4096), b""))
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    assert ask(address)[0] == 200
    for one in silent:
        one.close()
    server.shutdown()


@pytest.fixture(scope="module")
def demo(trained):
    """The address of a page of all models of a run, and what its results were before."""
    before = fingerprints(trained / "results")
    pipes = {"stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, ROOT / "tools/demo.py"], cwd=trained.folder, **pipes)
    yield process.stdout.readline().strip()
    process.terminate()
    process.wait()
    assert fingerprints(trained / "results") == before


def said(demo, model, prompt, **settings):
    """Return what a model answers, a dict for each line."""
    request = CAUSAL | {"model": model, "prompt": prompt} | settings
    status, text = ask(f"{demo}run", json.dumps(request).encode(), JSON)
    assert status == 200
    return [json.loads(line) for line in text.splitlines()]


def text_of(lines):
    """Return the text that was generated."""
    return "".join(line.get("text", "") for line in lines)


def test_masks_are_filled_in_as_by_the_workflow(demo, trained):
    kept = json.loads((trained / "results/mlm/tiny/fill_mask.json").read_text())
    for row in kept:
        tokens, masks, end = said(demo, "mlm/tiny", row["prompt"])
        assert len(tokens["tokens"]) > 5 and "seconds" in end
        (answers,) = masks["masks"]
        assert answers[0][1] == pytest.approx(row["answers"][0]["score"], rel=1e-4)
    assert len(said(demo, "mlm/tiny", "[MASK] of [MASK] and [MASK]")[1]["masks"]) == 3


def test_characters_of_several_tokens_come_whole(demo):
    """Of bytes, as the vocabulary has few: what follows such a character is there, too."""
    for seed in range(3):
        lines = said(demo, "base/small", "Return é 😀 of ", temperature=3, seed=seed, length=64)
        made = [line for line in lines if "probability" in line]
        assert text_of(made).strip()
        assert sum(len(line["text"]) for line in made[len(made) // 2 :]) > 0


def test_a_model_that_fails_is_told(demo, trained, tmp_path):
    shutil.copytree(trained / "results/base/small/preset", tmp_path / "results/base/broken/preset")
    (tmp_path / "results/base/broken/preset/tokenizer.json").write_text("{}")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, ROOT / "tools/demo.py", "broken"], cwd=tmp_path, **pipes)
    (line,) = said(process.stdout.readline().strip(), "base/broken", "a")
    process.terminate()
    assert line["error"].startswith("the model has failed: ") and "Traceback" in process.communicate()[1]


# What a model continues a prompt with by keras-hub's own greedy sampler.
GREEDY = """
import json, sys
from tpulm.training import runtime
runtime.start(1)
from tpulm.models.causal import load_preset
from tpulm.models.sampling import Generator
recipe = {"sampler": "greedy", "max_length": int(sys.argv[3]), "samples": 1}
print("RESULT" + json.dumps(Generator(load_preset(sys.argv[1]), recipe, 1)([sys.argv[2]])[0][0]))
"""


def test_prompts_are_continued_token_by_token(demo, trained):
    prompt = "Return the "
    first, *tokens, _ = said(demo, "base/small", prompt)
    assert 0 < len(tokens) <= CAUSAL["length"]
    for token in tokens:
        assert token["probability"] == pytest.approx(token["candidates"][0][1])  # greedy: the likeliest
        assert [p for _, p in token["candidates"]] == sorted((p for _, p in token["candidates"]), reverse=True)
    length = str(len(first["tokens"]) + len(tokens))
    expected = warm.result(warm.run("jax", GREEDY, str(trained / "results/base/small/preset"), prompt, length))
    assert expected.strip() and text_of(tokens).strip() == expected.strip()
    assert len(said(demo, "base/small", prompt, length=1)) == 3  # the prompt, a token, the end
    drawn = [text_of(said(demo, "base/small", prompt, temperature=1.5, seed=seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert text_of(said(demo, "base/small", prompt, temperature=1.5, top_p=0.01)) == text_of(tokens)
    tuned = [said(demo, "finetune/python", prompt) for _ in range(2)]
    assert text_of(tuned[0]) == text_of(tuned[1])
    assert [one["probability"] for one in tuned[0][1:-1]] != [one["probability"] for one in tokens]


@pytest.mark.parametrize(
    ("model", "prompt", "settings", "wrong"),
    [
        ("mlm/tiny", "no mask", {}, "[MASK]"),
        ("mlm/tiny", "[MASK] " * 1000, {}, "tokens; allowed: at most"),
        ("base/small", "a " * 50_000, {}, "tokens; allowed: at most"),
        ("base/small", " ", {}, "empty"),
        ("base/small", "a", {"length": 0}, "length is 0; allowed: 1 to"),
        ("base/small", "a", {"length": 10**9}, "length is"),
        ("base/small", "a", {"temperature": "hot"}, 'temperature is "hot"'),
        ("base/small", "a", {"top_p": float("nan")}, "top_p is NaN"),
        ("base/small", "a", {"seed": True}, "seed is true"),
        ("../etc", "a", {}, "allowed: JSON with a model of base/small"),
        ("base/small", ["a"], {}, "empty"),
    ],
)
def test_what_cannot_be_asked_is_a_sentence(demo, model, prompt, settings, wrong):
    (line,) = said(demo, model, prompt, **settings)
    assert wrong in line["error"]


def test_odd_prompts_harm_nothing(demo):
    for prompt in ("<script>alert(1)</script>", "\x00\x1b[2J\x07", "\ud800 half", "é\u202e\U0001f468\u200d\U0001f469"):
        assert "seconds" in said(demo, "base/small", prompt)[-1]
        assert "seconds" in said(demo, "mlm/tiny", prompt + " [MASK]")[-1]
    assert "allowed: JSON" in ask(f"{demo}run", b"[" * 100_000, JSON)[1]
    # A reader that goes away leaves nothing to the next one; those that come together wait for each other.
    address = urlsplit(demo)
    body = json.dumps(CAUSAL | {"model": "base/small", "prompt": "a", "length": 200}).encode()
    with socket.create_connection((address.hostname, address.port)) as gone:
        head = f"POST {address.path}run HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        gone.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        gone.recv(10)
    alone = text_of(said(demo, "base/small", "Return"))
    with ThreadPoolExecutor(8) as many:
        assert {text_of(lines) for lines in many.map(lambda _: said(demo, "base/small", "Return"), range(8))} == {alone}


@needs_browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_models_are_side_by_side_in_a_browser(demo, browser, width, scheme):  # noqa: F811
    complaints: list[str] = []
    page = opened(browser, demo, width, scheme, complaints)
    form = page.locator("form[data-kind=causal]")
    form.locator("textarea").fill("<b>def</b> ")
    form.locator("textarea").press("Control+Enter")
    done = form.locator(".reply:not([aria-busy])")
    done.nth(1).wait_for(timeout=60_000)
    assert done.locator("h3").all_inner_texts()[0].startswith("base/small")
    assert "<b>def</b>" in done.first.inner_text() and done.first.locator("b").count() == 0
    done.first.locator(".token").first.focus()
    assert done.first.locator("li").count() > 2
    form = page.locator("form[data-kind=masked]")
    form.locator("button").click()
    form.locator(".reply:not([aria-busy]) li").nth(4).wait_for(timeout=60_000)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert complaints == []


def test_models_are_named_or_there_is_a_sentence(trained, tmp_path):
    def start(folder, *arguments):
        command = [sys.executable, ROOT / "tools/demo.py", *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ)

    done = start(trained.folder, "big")
    assert done.returncode == 1 and done.stderr.startswith("error: the run is big, ")
    done = start(tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("error: there is no trained model in results")
