"""Tasks of lm-evaluation-harness on causal models: likelihoods, windows, generation, tasks from files."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import test_causal
import test_lora
from conftest import configured, open_vocabulary
from test_causal import prose
from test_task_training import quickly
from test_transformers import export
from tpulm.core.errors import UserError
from tpulm.specs.harness_tasks import HarnessTask
from tpulm.specs.scores import read_scores
from tpulm.specs.training_step import ModelSpec

jax_backend, preset, vocabulary = test_causal.jax_backend, test_lora.preset, test_lora.vocabulary
LENGTH = 24
PAIRS = [
    ("the value of", " function returns"),
    ("the", " value"),
    ("", "the list name"),
    ("object when list given name and ", "module"),
    ("the value of function returns object when list given name and or is module class string the value", " of"),
]
TEXTS = ["the value of function", " ".join(prose(4)), "list"]
TASK = """
task: choice
dataset_path: json
dataset_kwargs: {data_files: {test: data.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_target: right
doc_to_choice: choices
target_delimiter: ""
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
CONTINUING = """
include: task.yaml
task: continuing
output_type: generate_until
doc_to_choice: null
doc_to_target: "{{context}}"
generation_kwargs: {until: ["list", "."], max_gen_toks: 6}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""


def opened(preset, mesh=(1, 1)):
    from tpulm.evaluation.harness_model import KerasLM
    from tpulm.models import causal
    from tpulm.models.building import open_model

    recipe = {"mesh": mesh, "precision": "float32", "preset": str(preset)}
    model, distribution = open_model(ModelSpec.of("base", "base.small", recipe), causal)
    tokenizer = open_vocabulary(preset)
    return KerasLM(model, distribution, tokenizer.for_transformers(), tokenizer.special, LENGTH)


def log_probabilities(lm, ids):
    """Return those of each next token, computed for one row, which is filled up: float64 [tokens, vocabulary]."""
    rows = np.array([[*ids, *[0] * (LENGTH - len(ids))]], "int32")
    logits = np.asarray(lm.model({"token_ids": rows, "padding_mask": np.ones_like(rows)}))[0, : len(ids)]
    logits = logits.astype("float64")
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def directly(lm, context, continuation):
    """Return log-likelihood and whether it is the greedy one, of ids behind ids."""
    ids = [*context, *continuation][-(LENGTH + 1) :]
    found = log_probabilities(lm, ids[:-1])[-len(continuation) :]
    return found[range(len(continuation)), continuation].sum(), (found.argmax(-1) == continuation).all()


def asked(*pairs):
    return [SimpleNamespace(args=pair) for pair in pairs]


def test_likelihoods_are_those_of_each_row_alone(jax_backend, preset):
    lm, alone = opened(preset, (2, 4)), opened(preset)
    found = lm.loglikelihood(asked(*PAIRS), disable_tqdm=True)
    for (context, continuation), (likelihood, greedy) in zip(PAIRS, found, strict=True):
        if context:
            own = alone._encode_pair(context, continuation)
        else:
            own = [alone.prefix_token_id], alone.tok_encode(continuation, add_special_tokens=False)
        expected = directly(alone, *own)
        assert likelihood == pytest.approx(expected[0], abs=1e-4) and greedy == expected[1]


def test_long_texts_are_scored_in_windows_that_predict_each_token_once(jax_backend, preset):
    lm = opened(preset)
    found = lm.loglikelihood_rolling(asked(*((text,) for text in TEXTS)))
    for text, likelihood in zip(TEXTS, found, strict=True):
        ids, total = [lm.prefix_token_id, *lm.tok_encode(text)], 0.0
        for first in range(1, len(ids), LENGTH):  # of the tokens that a window predicts
            stop = min(first + LENGTH, len(ids))
            total += directly(lm, ids[max(0, stop - LENGTH - 1) : first], ids[first:stop])[0]
        assert likelihood == pytest.approx(total, abs=1e-4)
    assert len(lm.tok_encode(TEXTS[1])) > 2 * LENGTH


def test_generation_is_greedy_and_ends_where_the_task_says(jax_backend, preset):
    lm = opened(preset)
    contexts = ["the value", "list given name and or is module", "the value of function returns object when list"]
    found = lm.generate_until(asked(*((text, {"until": [], "max_gen_toks": 5}) for text in contexts)))
    for text, made in zip(contexts, found, strict=True):
        ids = lm.tok_encode(text)[-(LENGTH - 5) :]
        own = []
        for _ in range(5):
            own.append(int(log_probabilities(lm, ids + own)[-1].argmax()))
        ends = own.index(lm.eot_token_id) if lm.eot_token_id in own else len(own)
        assert made == lm.fast.decode(own[:ends])
    ended = lm.generate_until(asked((contexts[0], {"until": [found[0][2:4]], "max_gen_toks": 5})))
    assert found[0] and ended == [found[0][: found[0].index(found[0][2:4])]]
    sampled = {"do_sample": True, "temperature": 0.7, "top_k": 5, "until": [], "max_gen_toks": 5}
    again = [lm.generate_until(asked((contexts[0], sampled))) for _ in range(2)]
    assert again[0] == again[1]
    with pytest.raises(UserError, match="allowed: a larger max_length"):
        lm.generate_until(asked(("the", {"max_gen_toks": 24})))


def test_likelihoods_that_are_no_numbers_are_refused(jax_backend, preset, tmp_path):
    from tpulm.evaluation.harness import metrics

    lm = opened(preset)
    lm.name = "evaluation.harness.own: base/small"
    table = lm.model.backbone.token_embedding.embeddings
    table.assign(np.full(table.shape, np.nan, np.float32))
    written(tmp_path)
    for ask in (
        lambda: lm.generate_until(asked(("the value", {"until": [], "max_gen_toks": 5}))),
        lambda: scored(lm, tmp_path, limit=2),
    ):
        with pytest.raises(UserError, match="^evaluation.harness.own: base/small .*nan or inf"):
            ask()
    with pytest.raises(UserError, match="^evaluation.harness: perplexity of own is inf"):
        metrics({"alias": "own", "perplexity,none": float("inf")})


def written(folder, name="task.yaml", text=TASK):
    (folder / name).write_text(text)
    rows = [
        {"context": line, "choices": [" value", " of the list", " name"], "right": number % 3 and 1}
        for number, line in enumerate(prose(40))
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / name


def scored(lm, tmp_path, name="task.yaml", in_training=None, **recipe):
    from tpulm.evaluation.harness import harness_scores

    return harness_scores("own", None, answered(lm, tmp_path, name, **recipe), in_training)


def answered(lm, tmp_path, name="task.yaml", **recipe):
    from tpulm.evaluation.harness import results_of

    recipe = {"file": str(tmp_path / name), "examples": None, "limit": None} | recipe
    paths = {"data.jsonl": str(tmp_path / "data.jsonl")}
    return results_of(lm, "evaluation.harness.own", recipe, paths, str(tmp_path / "cache"))


@pytest.fixture
def offline(monkeypatch):
    """As under HF_HUB_OFFLINE, which the libraries read when they are imported, and when a session begins."""
    from huggingface_hub.utils import reset_sessions

    for library in ("huggingface_hub.constants", "datasets.config"):
        monkeypatch.setattr(f"{library}.HF_HUB_OFFLINE", True)
    reset_sessions()
    yield
    reset_sessions()


def manager(*names):
    """Return the harness's tasks of some of its folders: to read all tasks takes longer than all else here."""
    import lm_eval.tasks

    folders = [Path(lm_eval.tasks.__file__).with_name(name) for name in names]
    return lm_eval.tasks.TaskManager(include_path=folders, include_defaults=False)


def test_a_dataset_that_is_not_in_the_cache_is_named(offline, tmp_path, monkeypatch):
    from tpulm.evaluation import harness
    from tpulm.evaluation.harness import Silent, results_of

    monkeypatch.setattr(harness, "TaskManager", lambda: manager("arc"))
    recipe = {"task": "arc_easy", "revision": "0" * 40, "examples": 0, "limit": 1}
    with pytest.raises(UserError, match="^evaluation.harness.arc needs the dataset allenai/ai2_arc, which is not in "):
        results_of(Silent(), "evaluation.harness.arc", recipe, {}, str(tmp_path))


def test_a_task_from_a_file_is_scored_offline(jax_backend, preset, tmp_path, monkeypatch):
    from tpulm.evaluation.harness import Silent, items_of

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    written(tmp_path)
    lm = opened(preset)
    ((score, items),) = scored(lm, tmp_path)
    assert (score.group, score.metric, score.on, score.items) == ("harness", "acc", "own, 0 examples shown", 40)
    assert score.chance == pytest.approx(1 / 3) and score.baselines == {"always the commonest answer": 0.65}
    assert score.low <= score.value <= score.high and score.higher_is_better
    assert score.value == pytest.approx(np.mean(list(items.values()))) and list(items)[:2] == ["choice/0", "choice/1"]
    context, choices = prose(40)[0], [" value", " of the list", " name"]
    best = int(np.argmax([likelihood for likelihood, _ in lm.loglikelihood(asked(*((context, c) for c in choices)))]))
    assert items["choice/0"] == float(best == 0)
    # Those in training text are counted; a model is not needed to know the items.
    ((counted, _),) = scored(lm, tmp_path, in_training={"choice/1", "choice/3", "other/1"})
    assert counted == replace(score, in_training_text=2) and score.in_training_text is None
    assert items_of(answered(Silent(), tmp_path)) == {
        f"choice/{number}": "\n".join([line, *choices]) for number, line in enumerate(prose(40))
    }
    ((fewer, _),) = scored(lm, tmp_path, limit=10, examples=1)
    assert (fewer.items, fewer.on) == (10, "own, 1 example shown")
    written(tmp_path, "more.yaml", CONTINUING)
    ((generated, _),) = scored(lm, tmp_path, "more.yaml", limit=4)
    assert (generated.metric, generated.chance, generated.items) == ("exact_match", None, 4)


def test_a_guess_is_one_among_the_answers(jax_backend):
    from tpulm.evaluation.harness import guesses

    def guessed(metric, *samples, answers=2):
        made = [{"arguments": [("", "")] * answers, metric: value, "target": target} for value, target in samples]
        results = {"configs": {"one": {"output_type": "multiple_choice"}}}
        chance, baselines = guesses(results, ["one"], metric, made)
        return (chance, {name: values.tolist() for name, values in baselines.items()}), made, results

    assert guessed("acc", (1.0, 0), (0.0, 1), (0.0, 1))[0] == (0.5, {"always the commonest answer": [0, 1, 1]})
    # BLiMP, TruthfulQA: the first answer is always the right one. Winogrande: answers are sentences of their own.
    assert guessed("acc_norm", (1.0, 0), (0.0, 0))[0] == (0.5, {})
    assert guessed("acc", (1.0, "one end"), (0.0, "another"), (0.0, "a third"))[0] == (0.5, {})
    # The share of likelihood on true answers, of truthfulqa_mc2, is right or wrong of no item.
    assert guessed("acc", (0.625, 0), (0.25, 1))[0] == (None, {})
    # For acc_mutual_info, each answer is asked for twice.
    _, samples, results = guessed("acc", (1.0, 0), (0.0, 1), answers=8)
    twice = [sample | {"acc_mutual_info": 1.0} for sample in samples]
    assert guesses(results, ["one"], "acc", twice)[0] == 0.25
    assert guesses(results, ["one"], "acc_mutual_info", twice) == (None, {})


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TASK.replace("right", "!function utils.right"), "!function"),
        (TASK.replace("task: choice", "group: all"), "`task`"),
        (TASK.replace("dataset_path: json", "dataset_path: some/set"), "dataset_path is some/set; allowed: json, csv"),
        (TASK.replace("dataset_path: json", ""), "dataset_path is missing; allowed: json, csv"),
        ("[1]", "no keys"),
        ("{", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_task_is_named(tmp_path, text, message):
    path = written(tmp_path, text=text)
    task = HarnessTask("own", {"file": str(path)})
    with pytest.raises(UserError, match=f"^evaluation.harness.own.file is {re.escape(str(path))}, .*{message}"):
        print(task.files, task.data)


@pytest.mark.unit
def test_what_a_task_reads_are_its_files(tmp_path):
    written(tmp_path)
    path = written(tmp_path, "more.yaml", CONTINUING)
    task = HarnessTask("own", {"file": str(path)})
    assert set(task.files) == {str(path), str(tmp_path / "task.yaml")} and task.data == ["data.jsonl"]
    (tmp_path / "task.yaml").write_text("include: more.yaml\n")
    with pytest.raises(UserError, match=r"^evaluation.harness.own.file: .*more.yaml includes itself.$"):
        print(task.files)
    assert HarnessTask("piqa", {"limit": 3}).job_recipe == {"harness": {"name": "piqa", "task": "piqa", "limit": 3}}


def test_a_task_that_is_not_pinned_or_not_known_is_named(jax_backend):
    from tpulm.evaluation.harness import pin

    tasks = manager("piqa", "blimp")
    with pytest.raises(UserError, match="^evaluation.harness.a.task is nothing"):
        pin(tasks, "evaluation.harness.a", "nothing", None)
    with pytest.raises(UserError, match="^evaluation.harness.a.revision is missing; .*baber/piqa"):
        pin(tasks, "evaluation.harness.a", "piqa", None)
    pin(tasks, "evaluation.harness.a", "blimp", "a" * 40)
    entry = tasks.task_index["blimp_adjunct_island"]
    assert tasks._factory._load_full_config(entry)["dataset_kwargs"]["revision"] == "a" * 40


TASKS = {"last-word": {"file": "recipes/tasks/last-word.yaml", "limit": 4, "checkpoints": "all"}}
CHANGES = {"evaluation.harness": TASKS, "finetune.runs.python.keep_checkpoints": "last"}
HARNESS, KEPT = "results/evaluation/harness/last-word", "results/finetune/python/checkpoints/00000005"


def test_a_checkpoint_is_scored_before_it_is_let_go(built):
    config, final = configured(built, CHANGES), f"{HARNESS}/finetune/python/scores.json"
    quickly(built, "--cores", "2", final, f"{KEPT}/pruned.json", *config)
    assert not (built / f"{KEPT}/weights.safetensors").exists()
    said, last = read_scores(built / final)
    assert said["model"] == "finetune/python" and {score.in_training_text is None for score in last} == {False}
    found = sorted((score.metric, score.items, score.step) for score in last)
    assert found == [("acc", 4, None), ("perplexity", 4, None)]
    for text in ("corpus", "finetune-text"):
        assert list(json.loads((built / f"{HARNESS}/overlap/{text}.json").read_text())["found"]) == ["last-word"]
    told, at_five = read_scores(built / f"{HARNESS}/finetune/python/00000005/scores.json")
    assert told["model"] == "finetune/python" and {score.step for score in at_five} == {5}
    assert [score.name for score in at_five] == [score.name for score in last]
    listed = built("-n", "results/figures/checkpoints/finetune/python.svg", *config).stdout
    assert "train_finetune" not in listed and "run_harness last-word finetune/python/00000010" in listed
    assert "00000005" not in listed


def test_compare_says_which_differences_are_real(built):
    printed = built("--cores", "2", "compare").stdout
    assert "\nfinetune/python compared with base/small" in printed and "results/compare/models.csv" in printed
    rows = list(csv.DictReader((built / "results/compare/models.csv").open()))
    assert {row["verdict"] for row in rows} <= {"better", "worse", "cannot tell"} and len(rows) > 3
    built("verify", "--cores", "2")  # tables of text, with empty cells


REFERENCE = """
import json, sys
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

job = json.loads(sys.argv[1])
lm = HFLM(pretrained=job["folder"], device="cpu", dtype="float32", max_length=job["length"], batch_size=3)

def asked(kind, arguments):
    return [Instance(request_type=kind, doc={}, arguments=tuple(one), idx=0) for one in arguments]

found = {
    "pairs": lm.loglikelihood(asked("loglikelihood", job["pairs"])),
    "texts": lm.loglikelihood_rolling(asked("loglikelihood_rolling", [[text] for text in job["texts"]])),
    "generated": lm.generate_until(asked("generate_until", [[c, job["generation"]] for c in job["contexts"]])),
}
print("RESULT" + json.dumps(found))
"""


@pytest.mark.long
def test_scores_are_those_of_the_harness_on_transformers(jax_backend, openers, preset, tmp_path):
    export(preset, tmp_path / "folder")
    lm = opened(preset)
    generation = {"until": ["list"], "max_gen_toks": 6, "do_sample": False}
    contexts = ["the value", "list given name and or is module class string the value of function"]
    job = {"folder": str(tmp_path / "folder"), "length": LENGTH, "pairs": PAIRS, "texts": TEXTS}
    found = openers.result("harness", REFERENCE, job | {"generation": generation, "contexts": contexts})
    ours = lm.loglikelihood(asked(*PAIRS))
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in found["pairs"]]
    np.testing.assert_allclose([one for one, _ in ours], [one for one, _ in found["pairs"]], atol=1e-4)
    np.testing.assert_allclose(lm.loglikelihood_rolling(asked(*((text,) for text in TEXTS))), found["texts"], atol=1e-4)
    assert lm.generate_until(asked(*((text, generation) for text in contexts))) == found["generated"]
