"""Models that are asked by hand, beside the workflow."""

import fcntl
import json
import runpy
import subprocess
import sys

import pytest
import warm
from conftest import ROOT
from tpulm.config.finished_models import Folders, base_of
from tpulm.core.errors import UserError
from tpulm.core.files import fingerprints, write_json
from tpulm.core.folder_lock import LOCK

PROGRAM = ROOT / "tools/try.py"
# The program, once for each case, in one process that has imported JAX: arguments, and what is piped in or typed.
BESIDE = """
import contextlib, io, json, os, pty, runpy, sys
program, cases, found = sys.argv[1], json.loads(sys.argv[2]), []
for arguments, given, at_terminal in cases:
    sys.argv, sys.stdin = [program, *arguments], io.StringIO(given)
    if at_terminal:
        terminal, end = pty.openpty()
        os.write(terminal, given.encode())
        sys.stdin = os.fdopen(end)
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            runpy.run_path(program, run_name="__main__")
        except SystemExit as ended:
            code = ended.code
    found.append([int(code), said.getvalue(), errors.getvalue()])
assert sys.modules.get("tensorflow") is None
print("RESULT" + json.dumps(found))
"""
WHOLE = "Return the [MASK] of the list."


def ask(folder, *arguments):
    """Return the sentence that the program ends with."""
    done = subprocess.run([sys.executable, PROGRAM, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == "", done.stderr
    return done.stderr


@pytest.mark.unit
def test_an_answer_ends_at_the_marker_of_its_template():
    before = runpy.run_path(str(PROGRAM))["before"]
    answers = [("<end>", "One. <end>\nuser: Two"), ("<end>", "One."), ("", "One. <end>")]
    assert [before(*answer) for answer in answers] == ["One.", "One.", "One. <end>"]


@pytest.mark.unit
def test_a_message_gets_the_template_of_the_rows():
    template_of = runpy.run_path(str(PROGRAM))["template_of"]
    rows = {"source": "files", "template": "Q: {question}\n", "response": "{answer}"}
    for text in (rows, {"sources": {"one": rows}}):
        write, ending = template_of(Folders(ROOT), text)
        assert (write("When?"), ending) == ("Q: When?\n", "")
    for text in ({}, rows | {"template": "{question} {context}\n"}):
        with pytest.raises(UserError, match="not trained on questions and answers; allowed: "):
            template_of(Folders(ROOT), text)


@pytest.mark.unit
def test_a_model_that_is_not_there_is_named_with_those_that_are(tmp_path):
    said = ask(tmp_path, "tiny")
    assert said.startswith("error: there is no trained model in results") and "--configfile" in said
    for file in ("mlm/tiny/model/model.safetensors", "finetune/tiny/adapter.lora.h5", "base/small/preset/config.json"):
        (tmp_path / "results" / file).parent.mkdir(parents=True)
        (tmp_path / "results" / file).touch()
    assert "big, " in (said := ask(tmp_path, "big")) and "base/small, finetune/tiny, mlm/tiny" in said
    assert "tiny, " in (said := ask(tmp_path, "tiny")) and "allowed: finetune/tiny, mlm/tiny" in said
    (tmp_path / "config.yaml").write_text("corpus: {source: python-docs}\n")
    said = ask(tmp_path, "finetune.runs.tiny")
    assert said.startswith("error: ") and "results/finetune/tiny" in said and said.count("\n") == 1
    # What Snakemake kept of the run says it.
    write_json(tmp_path / "results/history/finetune/tiny.json", [{"recipe": {"base": "small"}}])
    assert base_of("tiny", tmp_path / "results", {}) == "small"
    assert base_of("tiny", tmp_path / "results", {"finetune": {"runs": {"tiny": {"base": "large"}}}}) == "large"


@pytest.mark.unit
def test_without_the_environment_there_is_a_sentence():
    for tool in ("try", "demo", "serve", "new_config", "watch"):
        command = [sys.executable, "-S", "-I", ROOT / f"tools/{tool}.py", "x"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr.startswith("error: ") and "activate" in done.stderr, tool


def test_models_answer_while_a_workflow_has_the_folder(trained, tmp_path):
    """The masked one, though TensorFlow has trained it, without TensorFlow; what is typed can be typed again.

    Another folder has the base model as one that was trained on conversations, as far as it can tell.
    """
    talks = tmp_path / "results/base/talks"
    talks.parent.mkdir(parents=True)
    talks.symlink_to(trained / "results/base/small")
    template = "{% for m in messages %}ask: {{ m.content }}{% endfor %}{% if add_generation_prompt %} say: {% endif %}"
    template = {"where": "c", "template": template, "bos_token": "<bos>", "eos_token": "<eos>", "special": None}
    write_json(tmp_path / "results/corpus/chat_template.json", template)
    before, mask = fingerprints(trained / "results"), "one [MASK].\n"
    cases = [
        (["mlm.runs.tiny", "--prompt", "no mask", "--prompt", WHOLE], "", False),
        ([str(trained / "results/mlm/tiny")], f"Of several lines.\n{WHOLE}\n", False),
        (["mlm/tiny"], "no mask\nReturn the [MASK]\\\nof the list.\n\n", True),
        (["finetune/python", "--prompt", "def ", "--seed", "1"], "", False),
        ([str(talks), "--prompt", "ask: Return the name say:", "--seed", "1"], "", False),
        ([str(talks), "--chat", "--seed", "1"], "Return the name", False),
    ]
    with open(trained / LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # as long as a workflow runs
        found = warm.result(warm.run("jax", BESIDE, str(PROGRAM), json.dumps(cases), folder=trained.folder))
    assert [code for code, *_ in found] == [1, 0, 0, 0, 0, 0]
    *found, (_, texts, _), (_, answers, _) = found
    texts = [text.removeprefix("ask: Return the name say:").strip() for text in texts.split("\n---\n")]
    assert [answer.strip() for answer in answers.split("\n---\n")] == texts and all(texts)
    assert "not trained on questions and answers; allowed: " in ask(trained.folder, "small", "--chat", "--prompt", "a")
    assert [said.count("%") for _, said, _ in found] == [5, 5, 5, 0]
    assert [errors.count(mask) for *_, errors in found] == [1, 0, 1, 0]
    assert found[3][1].count("def ") >= 2 and "\n---\n" in found[3][1]
    kept = json.loads((trained / "results/mlm/tiny/fill_mask.json").read_text())
    first = next(row for row in kept if row["prompt"] == WHOLE)["answers"][0]
    assert found[0][1].startswith(f"{first['score']:6.1%}  ")
    assert fingerprints(trained / "results") == before
