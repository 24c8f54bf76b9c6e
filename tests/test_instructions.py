"""Instruction data from files to records, through Snakemake."""

import json
import re
import subprocess

import numpy as np
import pytest
from conftest import ROOT, write_yaml
from ruamel.yaml import YAML
from tpulm.config.outline import Outline
from tpulm.config.reading import complete
from tpulm.corpus.chat_templates import GEMMA_TEMPLATE
from tpulm.corpus.files import read_files
from tpulm.corpus.rows import Form
from tpulm.records.reader import Records
from tpulm.tokenization.tokenizer import TextTokenizer

RUN = {
    "base": "small", "sequence_length": 160, "steps": 2, "checkpoint_every": 2, "batch_size": 2, "learning_rate": 1e-3,
}  # fmt: skip
SIZES = {
    "num_layers": 1, "num_query_heads": 1, "num_key_value_heads": 1, "hidden_dim": 8, "intermediate_dim": 8,
    "head_dim": 8,
}  # fmt: skip
CONFIG = {
    "corpus": {"source": "files", "files": ["talks.jsonl"], "messages": "talk", "chat_template": "turns.jinja"},
    "base": {"small": {**{key: RUN[key] for key in RUN if key != "base"}, "model": SIZES, "vocab_size": 320}},
    "finetune": {
        "text": {
            "chat_template": "gemma",
            "sources": {
                "chats": {"source": "files", "files": ["talks.jsonl"], "messages": "talk"},
                "asked": {"source": "files", "files": ["asked.jsonl"], "template": "Q: {q}\nA:", "response": " {a}"},
            },
        },
        "runs": {"one": RUN | {"method": "full"}},
    },
}
TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.fixture
def configured(fresh):
    """A workflow with conversations, and questions that are answered."""
    rows = [(f"what is {a} and {b}", f"it is {a + b} of course") for a in range(20) for b in range(20)]
    talks = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in rows]
    talks[::2] = [talk + talk for talk in talks[::2]]
    (fresh / "talks.jsonl").write_text("".join(json.dumps({"talk": talk}) + "\n" for talk in talks))
    (fresh / "asked.jsonl").write_text("".join(json.dumps({"q": q, "a": a}) + "\n" for q, a in rows))
    (fresh / "turns.jinja").write_text(TURNS)
    write_yaml(fresh / "config.yaml", CONFIG)
    fresh.steady = True
    return fresh


def learned(workflow, folder):
    """Return what is learned of the records of a set, as text: runs of tokens that count."""
    tokenizer = TextTokenizer.load(workflow / "results/base/small/tokenizer.json")
    records = Records(workflow / f"results/tokens/small/{folder}/manifest.json", "train")
    found = records.features(np.arange(len(records)), ["input_ids", "loss_mask"])
    parts = set()
    for ids, mask in zip(found["input_ids"], found["loss_mask"], strict=True):
        for run in np.split(np.where(mask, ids, -1), 1 + np.flatnonzero(np.diff(mask))):
            if run[0] >= 0:
                parts.add(tokenizer.decode(run.tolist()) + "<eos>" * int(run[-1] == tokenizer.special["eos"]))
    return parts


def test_conversations_and_answers_become_records(configured):
    configured("tfrecords", "corpus", "--cores", "2")
    parts = learned(configured, "finetune-text/pad-160")
    ended = [part for part in parts if part.endswith("<eos>")]
    assert any(part.startswith(" it is") and part.endswith("course<eos>") for part in ended)
    assert any(part.startswith("it is") and part.endswith("course<end_of_turn><eos>") for part in ended)
    assert all("it is".startswith(part.lstrip()[:5]) for part in parts)  # some are cut off
    turns = learned(configured, "corpus/concat-160")
    # The template has no marks: what it adds to the prompt is learned, here with the role.
    whole = [part for part in turns if part.startswith("assistant: it is ") and part.endswith("course<eos>")]
    assert whole and not any("what" in part for part in turns)
    manifest = json.loads((configured / "results/tokens/small/finetune-text/pad-160/manifest.json").read_text())
    assert manifest["responses"] and 0 < manifest["splits"]["train"]["loss_tokens"]
    splits = json.loads((configured / "results/finetune-text/corpus.json").read_text())["splits"]
    assert all(split["responses"]["documents"] == split["documents"] for split in splits.values())

    # Another template reads and writes again what is made with it.
    (configured / "turns.jinja").write_text(TURNS.replace(": ", "> "))
    printed = configured("tfrecords", "-n").stdout
    assert "would run  fetch_chat_template " in printed and not re.search(r"would run  \w+ finetune-text", printed)


@pytest.mark.long
def test_models_are_exported_with_the_template_of_their_text(configured):
    configured("transformers", "--cores", "2")
    folders = configured / "results/transformers"
    assert (folders / "base/small/chat_template.jinja").read_text().endswith(TURNS)
    assert (folders / "finetune/one/chat_template.jinja").read_text().endswith(GEMMA_TEMPLATE)


@pytest.mark.unit
def test_the_example_of_the_guide(tmp_path):
    block = (ROOT / "docs/guides/instruction-data.md").read_text().split("```sh\n")[1].split("```")[0]
    data, rest = block.split("cat > experiments/sums/config.yaml <<'END'\n")
    config, run = rest.split("END\n")
    subprocess.run(data, shell=True, check=True, cwd=tmp_path)
    completed = complete(YAML(typ="safe", pure=True).load(config), "sums.yaml")
    text = completed["finetune"]["text"]
    form = Form("finetune.text", text)
    rows = [row for batch in read_files([str(tmp_path / "sums.jsonl")], "line", form) for row in batch]
    assert len(rows) == 2500 and len({text for text, _ in rows}) == 2500
    text, [(start, stop)] = rows[51]
    assert (text, text[start:stop]) == ("Question: What is 1 + 1?\nAnswer: 2", " 2")
    assert run == "snakemake -d experiments/sums\n"
    assert [run.records.responses for run in Outline(completed).runs.values()] == [False, True, True]
