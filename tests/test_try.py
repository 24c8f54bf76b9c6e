"""Models that are asked by hand, beside the workflow."""

import fcntl
import json
import os
import pty
import runpy
import subprocess
import sys

import pytest
import warm
from conftest import ROOT
from tpulm.config.finished_models import base_of
from tpulm.core.files import fingerprints, write_json
from tpulm.core.folder_lock import LOCK
from tpulm.specs.masked_sizes import opens

PROGRAM = ROOT / "tools/try.py"
# The program in a process that has imported a library, with its arguments.
BESIDE = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
assert sys.modules.get("tensorflow") is None
"""


def ask(folder, *arguments, code=0, typed=""):
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, input=typed, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.mark.unit
def test_every_answer_is_seen_on_one_line():
    visible = runpy.run_path(str(PROGRAM))["visible"]
    shown = {"list": "list", " the": " the", "\n\nArgs:": "'\\n\\nArgs:'", "  ": "'  '"}
    assert {token: visible(token) for token in shown} == shown


@pytest.mark.unit
def test_a_model_that_is_not_there_is_named_with_those_that_are(tmp_path):
    said = ask(tmp_path, "tiny", code=1)
    assert said.startswith("error: there is no trained model in results") and "--configfile" in said
    for file in ("mlm/tiny/model/model.safetensors", "finetune/tiny/adapter.lora.h5", "base/small/preset/config.json"):
        (tmp_path / "results" / file).parent.mkdir(parents=True)
        (tmp_path / "results" / file).touch()
    assert "big, " in (said := ask(tmp_path, "big", code=1)) and "base/small, finetune/tiny, mlm/tiny" in said
    assert "tiny, " in (said := ask(tmp_path, "tiny", code=1)) and "allowed: finetune/tiny, mlm/tiny" in said
    (tmp_path / "config.yaml").write_text("corpus: {source: python-docs}\n")
    (tmp_path / "one").mkdir()
    (tmp_path / "one/config.yaml").write_text("corpus: {source: python-docs}\n")
    said = ask(tmp_path, "big", "-d", "one", code=1)
    assert f"no trained model in {tmp_path}/one/results; snakemake -d {tmp_path}/one trains them." in said
    said = ask(tmp_path, "finetune.runs.tiny", code=1)
    assert "base model of results/finetune/tiny is not known" in said and said.count("\n") == 1
    # What Snakemake kept of the run says it.
    write_json(tmp_path / "results/history/finetune/tiny.json", [{"recipe": {"base": "small"}}])
    assert base_of("tiny", tmp_path / "results", {}) == "small"
    assert base_of("tiny", tmp_path / "results", {"finetune": {"runs": {"tiny": {"base": "large"}}}}) == "large"


@pytest.mark.unit
def test_without_the_environment_there_is_a_sentence():
    for tool in ("try", "demo", "serve", "new_config", "watch"):
        done = subprocess.run(
            [sys.executable, "-S", "-I", ROOT / f"tools/{tool}.py", "x"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1 and done.stderr.startswith("error: ") and "activate" in done.stderr, tool


@pytest.mark.parametrize(
    ("run", "prompt", "lines"),
    [
        # Trained by TensorFlow, which it takes none of.
        ("mlm.runs.tiny", "Return the [MASK] of the list.", 5),
        ("small", "def ", 2),
        ("finetune/python", "def ", 2),
    ],
)
def test_a_model_answers_while_a_workflow_has_the_folder(trained, run, prompt, lines):
    before = fingerprints(trained / "results")
    with open(trained / LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # as long as a workflow runs
        done = warm.run("jax", BESIDE, str(PROGRAM), run, "--prompt", prompt, "--seed", "1", folder=trained.folder)
    answers = done.stdout.splitlines()
    if "[MASK]" in prompt:
        kept = json.loads((trained / "results/mlm/tiny/fill_mask.json").read_text())
        first = next(row for row in kept if row["prompt"] == prompt)["answers"][0]
        assert len(answers) == lines and answers[0].startswith(f"{first['score']:6.1%}  ")
    else:
        assert done.stdout.count(prompt) >= lines and "\n---\n" in done.stdout
    assert fingerprints(trained / "results") == before


def test_a_prompt_without_a_mask_is_an_error(trained):
    said = "one [MASK].\n"
    whole = "Return the [MASK] of the list."
    printed = ask(trained.folder, "mlm/tiny", "--prompt", "no mask", "--prompt", whole, code=1)
    assert "error: " in printed and said in printed and printed.count("%") == 5
    assert said in ask(trained.folder, "mlm/tiny", typed="no mask\n", code=1)
    folder = str(trained.folder / "results/mlm/tiny")
    piped = ask(trained.folder.parent, folder, typed=f"Of several lines.\n{whole}\n")
    assert piped.count("%") == 5 and "error" not in piped
    try:
        terminal, end = pty.openpty()
    except OSError as error:
        pytest.skip(f"no terminal here: {error}")
    os.write(terminal, b"no mask\nReturn the [MASK]\\\nof the list.\n\n")
    command = [sys.executable, PROGRAM, "mlm/tiny"]
    done = subprocess.run(command, cwd=trained.folder, capture_output=True, text=True, stdin=end, check=True)
    assert said in done.stderr and done.stdout.count("%") == 5  # one that is typed can be typed again


@pytest.mark.unit
def test_what_jax_cannot_open_is_opened_by_tensorflow():
    whole = {"model_type": "roberta", "hidden_act": "gelu", "type_vocab_size": 2, "layer_norm_eps": 1e-12}
    assert opens(whole) and not opens(whole | {"hidden_act": "relu"}) and not opens(whole | {"model_type": "bert"})
