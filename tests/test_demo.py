"""The page to type into models, and the server that it shares with the look at a run."""

import json
import math
import os
import runpy
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
import warm
from conftest import ROOT
from sentencepiece import SentencePieceProcessor
from test_report import browser, needs_browser, opened  # noqa: F401 (a fixture)
from tokenizers import Tokenizer
from tpulm.config.finished_models import choose_model
from tpulm.core.errors import UserError
from tpulm.core.files import fingerprints, write_json
from tpulm.core.local_server import LARGEST, Answer, serve
from tpulm.demo.choice import choices

MASKED = "Return the [MASK] of the list."  # one prompt for all tests: each length compiles programs
JSON = {"Content-Type": "application/json"}
CAUSAL = {"length": 12, "temperature": 0, "top_p": 1, "seed": 0, "adapter": 1}


def ask(address, sent=None, headers=None, method=None):
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


@contextmanager
def started(folder, *arguments, **environment):
    """Give the address of a page, which is answered meanwhile."""
    command = [sys.executable, ROOT / "tools/demo.py", *arguments]
    pipes = {"stdout": subprocess.PIPE, "text": True, "env": os.environ | warm.QUICK | environment}
    process = subprocess.Popen(command, cwd=folder, **pipes)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


TURNS = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }} <end>\n{% endfor %}"
TURNS += "{% if add_generation_prompt %}assistant: {% endif %}"


@pytest.fixture(scope="module")
def demo(trained, tmp_path_factory):
    """The address of a page of the models of a run, whose results it leaves as they are.

    Beside them is base/talks: one that was trained on conversations, as far as the page can tell.
    """
    before, folder = fingerprints(trained / "results"), tmp_path_factory.mktemp("demo")
    (folder / "results").symlink_to(trained / "results")
    for place in ("base", "corpus"):
        (folder / "chat/results" / place).mkdir(parents=True)
    (folder / "chat/results/base/talks").symlink_to(trained / "results/base/small")
    found = {"where": "c", "template": TURNS, "bos_token": "<bos>", "eos_token": "<eos>", "special": None}
    write_json(folder / "chat/results/corpus/chat_template.json", found)
    names = "results/base/small", "results/finetune/python", "results/mlm/tiny", "chat/results/base/talks"
    (program := folder / "browser").write_text(f'#!/bin/sh\necho "$1" > {folder}/opened\n')  # of a desktop
    program.chmod(0o755)
    with started(folder, *names, DISPLAY=":99", BROWSER=str(program)) as address:
        yield address
    assert (folder / "opened").read_text() == f"{address}\n"
    assert fingerprints(trained / "results") == before


def said(demo, model, prompt, **settings):
    """Return what a model answers, a dict for each line."""
    request = CAUSAL | {"model": model, "prompt": prompt} | settings
    status, text = ask(f"{demo}run", json.dumps(request).encode(), JSON)
    assert status == 200
    return [json.loads(line) for line in text.splitlines()]


def text_of(lines):
    return "".join(line.get("text", "") + line.get("rest", "") for line in lines)


def probabilities(lines):
    return [line["probability"] for line in lines if "probability" in line]


def test_masks_are_filled_in_as_by_the_workflow(demo, trained):
    kept = json.loads((trained / "results/mlm/tiny/fill_mask.json").read_text())
    row = next(row for row in kept if row["prompt"] == MASKED)
    tokens, masks, end = said(demo, "mlm/tiny", MASKED)
    assert len(tokens["tokens"]) > 5 and "seconds" in end
    (answers,) = masks["masks"]
    assert answers[0][1] == pytest.approx(row["answers"][0]["score"], rel=1e-4)
    assert len(said(demo, "mlm/tiny", "[MASK] of [MASK] and [MASK]")[1]["masks"]) == 3


def test_characters_of_several_tokens_come_whole(demo):
    """Of bytes, as the vocabulary has few: what follows such a character is there, too."""
    lines = said(demo, "base/small", "Return é 😀 of ", temperature=3, seed=0, length=24)
    made = [line for line in lines if "probability" in line]
    assert text_of(made).strip()
    assert sum(len(line["text"]) for line in made[len(made) // 2 :]) > 0


# By keras-hub alone: how its greedy sampler continues a prompt, and, by a softmax, how probable tokens of a text are.
THEIRS = """
import json, sys
from tpulm.training import runtime
runtime.start(1)
import numpy as np
from tpulm.models.preset_folders import load_preset
from tpulm.models.sampling import Generator
model = load_preset(sys.argv[1])
tokenizer = model.preprocessor.tokenizer
ids = np.array([[tokenizer.start_token_id, *tokenizer(sys.argv[4])]])
logits = np.asarray(model({"token_ids": ids, "padding_mask": np.ones_like(ids)}), np.float64)[0, :-1]
likely = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
scored = likely[np.arange(len(likely)), ids[0, 1:]].tolist()
recipe = {"sampler": "greedy", "max_length": int(sys.argv[3]), "samples": 1}
print("RESULT" + json.dumps([Generator(model, recipe, 1)([sys.argv[2]])[0][0].text, scored]))
"""


def test_prompts_are_continued_token_by_token_and_scored(demo, trained):
    prompt, text = "Return the ", "Return the name of the file: é"
    first, *tokens, _, _ = said(demo, "base/small", prompt)
    assert 0 < len(tokens) <= CAUSAL["length"]
    for token in tokens:
        assert token["probability"] == pytest.approx(token["candidates"][0][1])  # greedy: the likeliest
        assert [p for _, p in token["candidates"]] == sorted((p for _, p in token["candidates"]), reverse=True)
    length = str(len(first["tokens"]) + len(tokens))
    preset = str(trained / "results/base/small/preset")
    expected, likely = warm.result(warm.run("jax", THEIRS, preset, prompt, length, text))
    assert expected.strip() and text_of(tokens).strip() == expected.strip()
    assert len(said(demo, "base/small", prompt, length=1)) == 4  # the prompt, a token, what was held back, the end
    drawn = [text_of(said(demo, "base/small", prompt, temperature=1.5, seed=seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert text_of(said(demo, "base/small", prompt, temperature=1.5, top_p=0.01)) == text_of(tokens)
    tuned = [said(demo, "finetune/python", prompt) for _ in range(2)]
    assert text_of(tuned[0]) == text_of(tuned[1])
    assert probabilities(tuned[0]) != probabilities(tokens)
    without = said(demo, "finetune/python", prompt, adapter=0)
    assert text_of(without) == text_of(tokens) and probabilities(without) == pytest.approx(probabilities(tokens))
    cut, scored, _ = said(demo, "base/small", text, length=0)
    assert scored["scored"] == [None, *(pytest.approx(share, rel=1e-4) for share in likely)]
    assert len(cut["tokens"]) == len(scored["scored"])
    bits = -sum(math.log2(share) for share in likely) / len(text.encode())
    assert scored["bits_per_byte"] == pytest.approx(bits, rel=1e-5)


def test_a_text_without_a_mask_is_scored_as_by_the_workflow(demo, trained):
    """With a rare character, which costs more than its token."""
    kept = pq.read_table(trained / "results/evaluation/mlm/tiny/items.parquet").to_pylist()
    # Each as it counts in the mean: by its share of the bytes.
    values = {row["item"]: row["value"] for row in kept if row["score"].endswith("per_byte: corpus validation")}
    texts = pq.read_table(trained / "results/evaluation/texts/corpus.parquet").to_pylist()
    scored_there = {row["item"]: row["passages"][0]["text"] for row in texts if row["item"] in values}
    size = sum(len(text.encode()) for text in scored_there.values()) / len(scored_there)
    item, text = min(scored_there.items(), key=lambda one: len(one[1]))
    cut, scored, _ = said(demo, "mlm/tiny", text)
    assert len(cut["tokens"]) == len(scored["scored"]) and scored["pseudo"]
    assert scored["bits_per_byte"] == pytest.approx(values[item] * size / len(text.encode()), rel=1e-4)
    rare, plain = (said(demo, "mlm/tiny", one)[1]["bits_per_byte"] for one in ("a \U0001f468", "a b"))
    assert rare > plain


def test_tokenizers_cut_a_text(demo, trained):
    tokenizer = Tokenizer.from_file(str(trained / "results/tokenizer/tokenizer.json"))
    text = "Return the name of  the file: é"
    cut, _ = said(demo, "tokenizer of masked models", text)
    assert cut["ids"] == tokenizer.encode(text, add_special_tokens=False).ids and cut["words"] == 7
    assert "".join(cut["tokens"]).split() == text.split()
    assert len(cut["tokens"]) == len(cut["ids"]) and cut["unknown"] == cut["ids"][-1] == tokenizer.token_to_id("<unk>")
    cut, _ = said(demo, "vocabulary of base/small", text)
    processor = SentencePieceProcessor(model_file=str(trained / "results/base/small/vocabulary.spm"))
    assert cut["ids"] == processor.encode(text)


def test_what_there_is_to_type_into(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = Path("results")
    shutil.copytree(trained / "results/tokenizer", results / "tokenizer")
    assert set(choices([], None, None).named) == {"tokenizer of masked models"}
    shutil.rmtree(results / "tokenizer")
    shutil.copytree(trained / "results/base/small/checkpoints", results / "base/small/checkpoints")
    shutil.copytree(results / "base/small/checkpoints/00000010", results / "base/small/checkpoints/00000010-copy")
    assert set(choices([], None, None).named) == {"base/small/20"}  # nothing has finished
    state = results / "base/small/checkpoints/00000010/state.json"
    kept = state.read_bytes()
    state.write_bytes(kept + b" ")  # made anew, with another recipe: the one of step 20 does not follow from it
    for name in ([], ["small"], ["base.small"]):
        assert set(choices(name, None, None).named) == {"base/small/10"}
    state.write_bytes(kept)
    (results / "base/2024").mkdir()
    (results / "base/2024/preset").symlink_to(trained / "results/base/small/preset")
    assert "base/2024" in choices(["base/2024", "results/base/2024"], None, None).named
    for name in ("results/base/small/20", "results/base/small/checkpoints/00000020", "base/small/20/"):
        assert "base/small/20" in choices([name], None, None).named
    # A finetuning run starts from its base model, whatever was merged since.
    shutil.copytree(trained / "results/finetune/python/checkpoints", results / "finetune/python/checkpoints")
    (results / "finetune/python/model").symlink_to(trained / "results/base/small/preset")
    write_json(results / "history/finetune/python.json", [{"recipe": {"base": "2024"}}])
    opening = choices(["python/10"], None, None).named["finetune/python/10"].opening
    assert opening.args[0].model == results / "base/2024/preset"
    # Of several places, each has its own.
    shutil.copytree(results, "other/results", symlinks=True)
    both = choices(["results/base/2024", "other/results/base/2024"], None, None).named
    own = {"base/2024", "vocabulary of base/2024"}
    assert set(both) == own | {f"other/results: {name}" for name in own}
    for name, wrong in (("base/small/15", "step 15; allowed: 10, 20"), ("tiny/x", "not a trained model")):
        with pytest.raises(UserError, match=wrong):
            choices([name], None, None)


# What models answer to prompts, as the page asks them.
ANSWERS = """
import json, sys
from tpulm.training import runtime
runtime.start(1)
from tpulm.demo.choice import choices
settings, asked = json.loads(sys.argv[1])
found, said = choices(list(asked), None, None).named, []
for name, prompt in asked.items():
    said.append([])
    found[name].opened.answer(prompt, settings, lambda line: said[-1].append(line) or True)
print("RESULT" + json.dumps(said))
"""


def test_checkpoints_of_runs_that_still_train(demo, trained, tmp_path):
    """At the last one, which is the best, they are the models that the workflow exports."""
    for run in ("mlm/tiny", "base/small", "finetune/python"):
        shutil.copytree(trained / "results" / run / "checkpoints", tmp_path / "results" / run / "checkpoints")
    shutil.copy(trained / "results/base/small/vocabulary.spm", tmp_path / "results/base/small")
    shutil.copytree(trained / "results/base/small/preset", tmp_path / "results/base/other/preset")
    for name in ("tokenizer", "tfrecords"):
        (tmp_path / "results" / name).symlink_to(trained / "results" / name)
    write_json(tmp_path / "results/history/finetune/python.json", [{"recipe": {"base": "other"}}])
    last = {"base/small/20", "finetune/python/10", "mlm/tiny/20"}
    assert last | {"base/other", "vocabulary of base/other"} <= set(choices([], None, tmp_path / "results").named)
    prompts = {"base/small/10": "Return the ", "finetune/python/10": "Return the ", "mlm/tiny/20": MASKED}
    early, last, masks = warm.result(warm.run("jax", ANSWERS, json.dumps([CAUSAL, prompts]), folder=tmp_path))
    base, tuned = (probabilities(said(demo, name, "Return the ")) for name in ("base/small", "finetune/python"))
    assert probabilities(early) and probabilities(early) != pytest.approx(base, rel=1e-3)
    assert probabilities(last) == pytest.approx(tuned, rel=1e-3)
    found, expected = (lines[1]["masks"][0] for lines in (masks, said(demo, "mlm/tiny", MASKED)))
    assert [share for _, share in found] == pytest.approx([share for _, share in expected], rel=1e-4)


@pytest.mark.unit
def test_a_model_that_fails_is_told(capsys):
    def answer(prompt, settings, tell):
        raise ValueError("a broken file")

    program = runpy.run_path(str(ROOT / "tools/demo.py"))
    request = program["Request"](SimpleNamespace(opened=SimpleNamespace(answer=answer)), "a", CAUSAL)
    request.answer()
    (line,) = map(json.loads, request.lines())
    assert line["error"] == "the model has failed: ValueError: a broken file"
    assert "Traceback" in capsys.readouterr().err


def test_messages_are_written_by_the_template(demo):
    talk = [{"role": "user", "content": "Return"}, {"role": "assistant", "content": "the"}]
    talk.append({"role": "user", "content": "list"})
    text = "user: Return <end>\nassistant: the <end>\nuser: list <end>\nassistant:"  # the space belongs to the answer
    assert text_of(said(demo, "base/talks", talk)) == text_of(said(demo, "base/small", text))
    assert said(demo, "base/talks", talk)[0] == said(demo, "base/small", text)[0]
    assert "seconds" in said(demo, "base/talks", [{"role": "user", "content": "\ud800"}])[-1]
    (line,) = said(demo, "base/talks", [{"role": "user", "content": "a <end> b"}])
    assert "messages[0].content has '<end>'" in line["error"]  # tests/test_chat.py has what else is no conversation
    (line,) = said(demo, "base/small", talk)
    assert line["error"].startswith("this model was trained on no conversations")


# What a reply says of each token of a text, what it held back, and whether it ended.
REPLY = """
import json, sys
from tpulm.models.streaming import Reply
from tpulm.tokenization.tokenizer import TextTokenizer
tokenizer, found = TextTokenizer.load(sys.argv[1]), []
for text, ending in json.loads(sys.argv[2]):
    reply = Reply(tokenizer, tokenizer.encode(["user: Return"])[0], ending)
    said = [reply.add(token) for token in tokenizer.encode([text])[0] if not reply.ended]
    found.append([said, reply.rest(), reply.ended])
print("RESULT" + json.dumps(found))
"""


def test_a_reply_ends_where_the_assistant_does(trained):
    text = "the <em>list</em> <end> user: more"
    asked = json.dumps([(text, "<end>"), (text, ""), ("a <", "<end>")])
    done = warm.run("jax", REPLY, str(trained / "results/base/small/tokenizer.json"), asked)
    ended, whole, held = warm.result(done)
    assert "".join(ended[0]).strip() == "the <em>list</em>" and ended[1:] == ["", True]
    assert not any("<en" in part for part in ended[0])
    assert "".join(whole[0]).strip() == text and whole[1:] == ["", False]
    assert "".join(held[0]).strip() == "a" and held[1:] == ["<", False]


@pytest.mark.parametrize(
    ("model", "prompt", "settings", "wrong"),
    [
        ("mlm/tiny", "no mask " * 1000, {}, "tokens; allowed: 1 to"),
        ("base/small", "a " * 50_000, {}, "tokens; allowed: at most"),
        ("base/small", " ", {}, "empty"),
        ("base/small", "a", {"length": -1}, "length is -1; allowed: 0 to"),
        ("base/small", "a", {"adapter": 2}, "adapter is 2; allowed: 0 to 1"),
        ("mlm/tiny", [{"role": "user", "content": "[MASK]"}], {}, "[MASK]"),
        ("base/small", "a", {"temperature": "hot"}, 'temperature is "hot"'),
        ("base/small", "a", {"top_p": float("nan")}, "top_p is NaN"),
        ("base/small", "a", {"seed": True}, "seed is true"),
        ("../etc", "a", {}, "allowed: JSON with a model of base/small"),
        ("vocabulary of base/small", ["a", "b"], {}, "a tokenizer needs a text"),
    ],
)
def test_what_cannot_be_asked_is_a_sentence(demo, model, prompt, settings, wrong):
    (line,) = said(demo, model, prompt, **settings)
    assert wrong in line["error"]


def test_odd_prompts_harm_nothing(demo):
    odd = "<script>alert(1)</script>", "\x00\x1b[2J\x07", "\ud800 half", "é\u202e\U0001f468\u200d\U0001f469"
    for prompt in odd:
        assert "seconds" in said(demo, "base/small", prompt)[-1]
    assert "seconds" in said(demo, "mlm/tiny", f"{''.join(odd)} [MASK]")[-1]
    assert "allowed: JSON" in ask(f"{demo}run", b"[" * 100_000, JSON)[1]
    # A reader that goes away leaves nothing to the next one; those that come together wait for each other.
    address = urlsplit(demo)
    body = json.dumps(CAUSAL | {"model": "base/small", "prompt": "a", "length": 48}).encode()
    with socket.create_connection((address.hostname, address.port)) as gone:
        head = f"POST {address.path}run HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        gone.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        gone.recv(10)
    alone = text_of(said(demo, "base/small", "Return"))
    with ThreadPoolExecutor(4) as many:
        assert {text_of(lines) for lines in many.map(lambda _: said(demo, "base/small", "Return"), range(4))} == {alone}


@needs_browser
def test_a_conversation_goes_on_in_a_browser(demo, browser):  # noqa: F811
    complaints: list[str] = []
    page = opened(browser, demo, 1280, "light", complaints)
    form = page.locator("form[data-kind=chat]")
    form.locator("[name=system]").fill("Be brief.")
    for number, message in enumerate(("Return <b>", "the list"), 1):
        form.locator("[name=prompt]").fill(message)
        form.locator("[name=prompt]").press("Control+Enter")
        form.locator(".reply:not([aria-busy])").wait_for(timeout=60_000)
        assert form.locator(".turn.user").count() == number
    turns = form.locator(".turn").all_inner_texts()
    assert turns[0] == "system Be brief." and turns[1] == "user Return <b>" and turns[2].startswith("assistant")
    form.locator(".again").click()
    assert form.locator(".reply").count() == 0
    assert complaints == []


@needs_browser
def test_models_are_side_by_side_in_a_browser(demo, browser):  # noqa: F811
    complaints: list[str] = []
    page = opened(browser, demo, 390, "dark", complaints)
    form = page.locator("form[data-kind=causal]")
    form.locator("textarea").fill("<b>def</b> ")
    form.locator("textarea").press("Control+Enter")
    done = form.locator(".reply:not([aria-busy])")
    done.nth(1).wait_for(timeout=60_000)
    assert done.locator("h3").all_inner_texts()[0].startswith("base/small")
    assert "<b>def</b>" in done.first.inner_text() and done.first.locator("b").count() == 0
    done.first.locator(".token").first.focus()
    assert done.first.locator("li").count() > 2
    done.first.locator("summary").click()
    done.first.locator("details small").first.wait_for(timeout=60_000)
    assert "bits per byte" in done.first.locator("summary").inner_text()
    form = page.locator("form[data-kind=masked]")
    form.locator("button").click()
    form.locator(".reply:not([aria-busy]) li").nth(4).wait_for(timeout=60_000)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert complaints == []


@pytest.mark.unit
def test_models_are_named_or_there_is_a_sentence(tmp_path):
    """tests/test_try.py has the names of models that are not there."""
    command = [sys.executable, ROOT / "tools/demo.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("error: there is no trained model in results")
    (tmp_path / "results/mlm/tiny/snapshots").mkdir(parents=True)  # it has no checkpoint yet
    with pytest.raises(UserError, match=r"^the run is tiny, which is not finished .*; run `snakemake .*mlm`\.$"):
        choose_model("tiny", [], tmp_path / "results")
    write_json(tmp_path / "results/mlm/tiny/model/model.safetensors", {})
    with pytest.raises(UserError, match=r"^the run is tiny, which is not a trained model "):
        choose_model("tiny", [], tmp_path / "results")  # of those with checkpoints
