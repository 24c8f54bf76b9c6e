"""Tasks with labels: what is read of them, how it is split and encoded, what is said of predictions."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, evaluations_of, task_runs_of
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from tpulm.config.outline import Outline
from tpulm.config.reading import read_config, read_yaml
from tpulm.config.tasks import every_task
from tpulm.core.errors import UserError
from tpulm.corpus.examples import Fields, hold_out, key_of, labels_of, module_examples
from tpulm.corpus.files import read_files
from tpulm.corpus.parts import clean
from tpulm.evaluation.task_scores import BASELINES, interval, measured, metrics_of, scores_of_task
from tpulm.records.labelled_batches import encode_examples, evaluation_batches, training_batch
from tpulm.specs.artifacts import SPLITS

pytestmark = pytest.mark.unit
WHERE = "evaluation.tasks.x"
TRAINING = {
    "steps": 4, "checkpoint_every": 2, "batch_size": 4, "learning_rates": [1e-3], "sequence_length": 16,
    "seeds": [0, 1],
}  # fmt: skip


def config_of(tmp_path, task, **sections):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(read_yaml(ROOT / "config.yaml") | {"evaluation": {"tasks": {"x": task}}} | sections))
    return read_config([path], {})


FILES = {"source": "files", "files": ["a.jsonl"]} | TRAINING
OTHER = {"mlm": {"runs": {"tiny": {
    "backend": "tensorflow", "model": {"architecture": "bert", "hidden_size": 16, "num_attention_heads": 2},
    "steps": 2, "checkpoint_every": 1, "batch_size": 4, "learning_rate": 1e-3,
}}}}  # fmt: skip


def test_models_that_jax_cannot_open_are_left_out_where_none_is_named(tmp_path):
    config = config_of(tmp_path, FILES, **OTHER)
    assert evaluations_of(config).tasks == {} and task_runs_of(config) == []
    [task] = every_task(Outline(config)).values()
    assert f"{WHERE} " in task.left_out and "mlm.runs.tiny" in task.left_out


def test_a_model_has_a_chain_for_each_rate_and_seed_and_kind_of_weights(tmp_path):
    config = config_of(tmp_path, FILES | {"learning_rates": [1e-3, 3e-4]})
    chains = task_runs_of(config)
    assert [chain.folder.rpartition("/")[2] for chain in chains] == [
        f"{weights}-rate-{rate}-seed-{seed}"
        for weights in ("pretrained", "random")
        for rate in ("0.001", "0.0003")
        for seed in (0, 1)
    ]
    assert chains[0].folder.startswith("<results>/evaluation/tasks/x/mlm/tiny/")
    # Random weights do not depend on those of the model, and no chain reads them after its first segment.
    assert "<results>/mlm/tiny/model/model.safetensors" in chains[0].init_at(2)
    for chain, step in ((chains[0], 4), (chains[-1], 2)):
        assert "<results>/mlm/tiny/model/model.safetensors" not in chain.init_at(step)
    assert chains[0].segment(2)["seed"] == 0 and chains[-1].segment(4)["schedule"] == {"knots": [[2, 3e-4], [4, 3e-4]]}


def test_chains_start_from_another_task(tmp_path):
    def config(**changes):
        runs = read_yaml(ROOT / "config.yaml")["mlm"]["runs"]
        others = {"y": FILES, "z": FILES | {"learning_rates": [1e-3, 1e-4]}, "w": FILES | {"models": ["mlm/two"]}}
        sections = {"evaluation": {"tasks": {"x": FILES | changes, **others}}}
        return config_of(tmp_path, FILES, mlm={"runs": runs | {"two": runs["tiny"]}}, **sections)

    chains = [chain for chain in task_runs_of(config(init="y")) if (chain.task, chain.name) == ("x", "tiny")]
    best = "<results>/evaluation/tasks/y/mlm/tiny/pretrained-rate-0.001-seed-0/checkpoints/00000004/best.safetensors"
    assert [(Path(chain.folder).name[:6], chain.start) for chain in chains] == [
        ("pretra", [best]), ("pretra", [best]), ("random", []), ("random", []),
    ]  # fmt: skip
    for name, said in (("x", "y, z, w"), ("z", "2 learning_rates"), ("w", "mlm.runs.tiny")):
        with pytest.raises(UserError, match=rf"{WHERE}\.init is {name}.*{said}"):
            config(init=name)


def test_chains_start_from_a_checkpoint(tmp_path):
    recipe, place = FILES | {"seeds": [0], "checkpoints": "all"}, "<results>/evaluation/tasks/{}/mlm/tiny"
    tasks = {"x": recipe | {"init": "y"}, "y": recipe}
    outline = Outline(config_of(tmp_path, FILES, evaluation={"tasks": tasks}))
    run = outline.runs["mlm/tiny"]
    first, random = every_task(outline)["x"].runs(run.at(10), run)
    # Random weights are those of no checkpoint; a chain of another task that it starts from is of the same checkpoint.
    chain = "00000010/pretrained-rate-0.001-seed-0"
    assert [one.folder.removeprefix(place.format("x")) for one in (first, random)] == [
        f"/{chain}", "/random-rate-0.001-seed-0",
    ]  # fmt: skip
    assert first.identity == {"path": "mlm/tiny", "step": 10} and random.identity == {"path": "mlm/tiny"}
    assert first.start == [f"{place}/{chain}/checkpoints/00000004/best.safetensors".format("y")]
    tasks["y"] = recipe | {"checkpoints": "last"}
    with pytest.raises(UserError, match=rf"{WHERE}\.checkpoints is all.*{WHERE}\.init is y.* last"):
        config_of(tmp_path, FILES, evaluation={"tasks": tasks})


def test_two_tasks_have_two_titles(tmp_path):
    with pytest.raises(UserError, match=r'evaluation\.tasks\.y\.title is "y", .*evaluation\.tasks\.x'):
        config_of(tmp_path, FILES, evaluation={"tasks": {"x": FILES | {"title": "y"}, "y": FILES}})


def test_an_example_has_the_place_of_its_document():
    """So that text which is held out of a corpus is held out of a task."""
    texts = ["one  two\tthree", "Ä b c d"]
    batch = clean(texts, {"seed": 7, "min_characters": 0}, Counter(empty=0, short=0), Counter())
    assert [key.hex() for key in batch["key"].to_pylist()] == [key_of((text, None, "a"), 7) for text in texts]
    assert key_of(("a", "b", "x"), 0) != key_of(("a b", None, "x"), 0)


def test_splits_are_disjoint_and_the_shares_asked_for():
    examples = [(f"text {number % 90}", None, "ab"[number % 2]) for number in range(100)]  # some are twice in it
    splits = hold_out(WHERE, {"train": examples}, {"validation": 0.1, "test": 0.2, "seed": 0})
    texts = {split: {text for text, *_ in rows} for split, rows in splits.items()}
    assert {split: len(found) for split, found in texts.items()} == {"train": 63, "validation": 9, "test": 18}
    assert not texts["train"] & texts["test"] and not texts["validation"] & texts["test"]
    assert sum(map(len, splits.values())) == 100
    assert hold_out(WHERE, {"train": examples[::-1]}, {"validation": 0.1, "test": 0.2, "seed": 0})["test"] == [
        example for example in examples[::-1] if example[0] in texts["test"]
    ]
    given = {"train": examples, "validation": examples[:2], "test": examples[:3]}
    assert hold_out(WHERE, given, {}) == given
    with pytest.raises(UserError, match=f"^{WHERE}: .* split test"):
        hold_out(WHERE, given | {"test": []}, {})


def test_labels_are_in_order():
    rows = dict.fromkeys(SPLITS, [("a", None, label) for label in ("10", "9", "b", "-1")])
    assert labels_of(WHERE, rows, "class") == ["-1", "9", "10", "b"]
    assert labels_of(WHERE, rows, "number") == []
    with pytest.raises(UserError, match=f"^{WHERE}: the split test has the label c"):
        labels_of(WHERE, rows | {"test": [("a", None, "c")]}, "class")
    with pytest.raises(UserError, match=f"^{WHERE}: .* label 10"):
        labels_of(WHERE, dict.fromkeys(rows, rows["train"][:1]), "class")


def read(tmp_path, rows, name="a.jsonl", **recipe):
    recipe = {"predict": "class", "text": "text", "label": "label"} | recipe
    path = tmp_path / name
    path.write_text(rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows))
    return [one for batch in read_files([str(path)], "line", Fields(WHERE, recipe)) for one in batch]


def test_examples_are_read_from_files(tmp_path):
    assert read(tmp_path, [{"text": "a", "label": 1, "more": 2}]) == [("a", None, "1")]
    assert read(tmp_path, "text,label\na b,001\n", "a.csv") == [("a b", None, "001")]
    pair = {"predict": "number", "text_pair": "other"}
    assert read(tmp_path, [{"text": "a", "other": "b", "label": 1}], **pair) == [("a", "b", 1.0)]
    assert read(tmp_path, "other,text,label\nb,a,2.5\n", "a.csv", **pair) == [("a", "b", 2.5)]


@pytest.mark.parametrize(
    ("row", "recipe", "said"),
    [
        ({"text": "a"}, {}, r"line 1 .*label \(evaluation.tasks.x.label\); found: text"),
        ({"text": 5, "label": 1}, {}, r"line 1: text \(evaluation.tasks.x.text\) holds int '5'"),
        ({"text": "a", "label": None}, {}, r"label \(evaluation.tasks.x.label\) holds nothing"),
        ({"text": "a", "label": "b"}, {"predict": "number"}, r"label \(evaluation.tasks.x.label\) holds str 'b'"),
        ({"text": ["a"], "label": "b"}, {}, r"line 1: text \(evaluation.tasks.x.text\) holds list"),
        ({"text": "a", "label": "b"}, {"label": "text"}, "evaluation.tasks.x: two of text, label "),
    ],
)  # fmt: skip
def test_a_row_that_is_no_example_is_named(tmp_path, row, recipe, said):
    with pytest.raises(UserError, match=said):
        read(tmp_path, [row], **recipe)


def test_docstrings_belong_to_one_module():
    found = module_examples(WHERE, ["json", "random"])
    assert len(found) > 60 and {label for *_, label in found} == {"json", "random"}
    assert len({text for text, *_ in found}) == len(found)
    assert module_examples(WHERE, ["json", "jsonn", "random"]) == found  # what this Python lacks is left out
    with pytest.raises(UserError, match=rf"^{WHERE}\.modules has json "):
        module_examples(WHERE, ["json", "jsonn"])


@pytest.fixture(scope="module")
def tokenizer():
    pieces = ["[CLS]", "[SEP]", "[UNK]", "[PAD]", "a", "b", "c", "long", "##er", "##est"]
    found = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    found.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    return found


def test_texts_become_tokens_of_one_length(tokenizer):
    columns = {"text": ["a b", "a b c a b c"], "text_pair": ["c", "b"], "label": [1, 0]}
    arrays = encode_examples(tokenizer, columns, "class", 8, 3)
    assert arrays["input_ids"].tolist() == [[0, 4, 5, 1, 6, 1, 3, 3], [0, 4, 5, 6, 4, 1, 5, 1]]
    assert arrays["attention_mask"].sum(1).tolist() == [6, 8]
    assert arrays["labels"].tolist() == [1, 0] and arrays["labels"].dtype == np.int32
    numbers = encode_examples(tokenizer, {"text": ["a"], "label": [0.5]}, "number", 8, 3)
    assert numbers["labels"].dtype == np.float32 and numbers["weights"].tolist() == [1.0]


def test_batches_are_functions_of_the_step(tokenizer):
    columns = {"text": ["a"] * 70, "label": list(range(70))}
    arrays = encode_examples(tokenizer, columns, "class", 8, 3)
    recipe = {"batch_size": 35, "seed": 3}
    seen = [training_batch(arrays, recipe, step)["labels"].tolist() for step in range(4)]
    assert sorted(seen[0] + seen[1]) == sorted(seen[2] + seen[3]) == list(range(70)) and seen[0] != seen[2]
    assert training_batch(arrays, recipe, 1, slice(3, 5))["labels"].tolist() == seen[1][3:5]
    assert training_batch(arrays, recipe | {"seed": 4}, 0)["labels"].tolist() != seen[0]
    held_out = list(evaluation_batches(arrays))
    assert [len(batch["labels"]) for batch in held_out] == [64, 64]
    assert sum(batch["weights"].sum() for batch in held_out) == 70


def test_metrics_are_those_of_the_textbook():
    labels, predictions = np.array([1, 1, 0, 0, 1.0]), np.array([1, 0, 0, 1, 1.0])
    METRICS = metrics_of(2)
    assert METRICS["accuracy"](labels, predictions) == 0.6
    assert METRICS["f1"](labels, predictions) == pytest.approx(2 / 3)  # precision and recall are 2/3
    assert METRICS["matthews"](labels, predictions) == pytest.approx((2 * 1 - 1 * 1) / 6)
    three = metrics_of(3)["f1"]
    assert three(np.array([0, 1, 2.0]), np.array([0, 1, 1.0])) == pytest.approx((1 + 2 / 3 + 0) / 3)
    # The task says which F1 it is, not which labels a sample has.
    assert three(labels, predictions) == pytest.approx((2 / 3 + 1 / 2) / 2) != METRICS["f1"](labels, predictions)
    assert METRICS["f1"](np.zeros(3), np.zeros(3)) == 0.0 and three(np.zeros(3), np.zeros(3)) == 1.0
    assert METRICS["spearman"](np.array([1, 2, 3.0]), np.array([1, 4, 9.0])) == pytest.approx(1.0)
    assert METRICS["pearson"](np.array([1, 2, 3.0]), np.array([3, 2, 1.0])) == pytest.approx(-1.0)
    assert METRICS["pearson"](np.array([1, 2, 3.0]), np.ones(3)) == 0.0


def test_an_interval_is_that_of_the_normal_approximation():
    labels = np.ones(1000)
    right = np.where(np.arange(1000) < 700, 1.0, 0.0)
    accuracy = metrics_of(2)["accuracy"]
    low, high = interval(accuracy, labels, [right, right])
    half = 1.96 * (0.7 * 0.3 / 1000) ** 0.5
    assert low == pytest.approx(0.7 - half, abs=0.004) and high == pytest.approx(0.7 + half, abs=0.004)


def predictions_of(chains, labels):
    """Return the table of predictions of chains: weights, rate, seed, and how many are right on both splits."""
    rows = [
        (*chain, split, f"{number:06d}", label, label if number < right else 1 - label)
        for *chain, validation, test in chains
        for split, right in (("validation", validation), ("test", test))
        for number, label in enumerate(labels)
    ]
    return pd.DataFrame(rows, columns=["weights", "rate", "seed", "split", "item", "label", "prediction"])


CHAINS = [
    ("pretrained", 0.1, 0, 8, 5), ("pretrained", 0.1, 1, 6, 7),
    ("pretrained", 0.2, 0, 10, 9), ("pretrained", 0.2, 1, 3, 10),  # the best seed, and the best on test
    ("random", 0.1, 0, 5, 5), ("random", 0.1, 1, 5, 5), ("random", 0.2, 0, 6, 4), ("random", 0.2, 1, 5, 3),
]  # fmt: skip
LABELS = [0.0, 1.0] * 5
MAJORITY = pd.DataFrame(
    {"baseline": "majority", "item": [f"{n:06d}" for n in range(10)], "label": LABELS, "prediction": 0.0}
)
RECIPE = {"metrics": ["accuracy"], "title": "is it one", "predict": "class", "selected_on_test": False}


def test_the_rate_is_selected_by_its_mean_over_seeds_on_validation():
    predictions = predictions_of(CHAINS, LABELS)
    chains = measured(predictions, ["accuracy"], 2)
    selected = chains[chains["selected"]][["weights", "rate"]].drop_duplicates()
    assert list(map(tuple, selected.to_numpy())) == [("pretrained", 0.1), ("random", 0.2)]
    ((score, values),), _ = scores_of_task("one", RECIPE, predictions, MAJORITY, 2)
    assert (score.value, score.seeds, score.items, score.chance) == (0.6, [0.5, 0.7], 10, 0.5)
    assert score.baselines == {"most frequent label": 0.5, "same model from random weights": 0.35}
    assert score.low is score.high is None and score.higher_is_better and score.group == "task"
    assert list(values.values()) == [1, 1, 1, 1, 1, 0.5, 0.5, 0, 0, 0] and list(values) == list(MAJORITY["item"])
    ((score, _),), _ = scores_of_task("one", RECIPE | {"selected_on_test": True}, predictions, MAJORITY, 2)
    assert score.on == "is it one (development set, which also selects)"


def test_items_of_a_score_on_a_task():
    seen = {"000000", "000005", "000009", "000099"}
    ((score, _),), _ = scores_of_task("one", RECIPE, predictions_of(CHAINS, LABELS), MAJORITY, 2, seen)
    assert (score.value, score.items, score.in_training_text) == (0.6, 10, 3)
    ((unknown, _),), _ = scores_of_task("one", RECIPE, predictions_of(CHAINS, LABELS), MAJORITY, 2)
    assert unknown.in_training_text is None
    recipe = RECIPE | {"metrics": ["matthews"]}
    none = pd.DataFrame({"baseline": [], "item": [], "label": [], "prediction": []})
    ((score, values),), chains = scores_of_task("one", recipe, predictions_of(CHAINS[:2], LABELS), none, 2)
    assert (score.metric, score.chance, score.baselines) == ("matthews", 0.0, {})
    assert values == {} and len(chains) == 2


def test_baselines_learn_what_words_say():
    train = {"text": ["good film", "bad film", "good one", "bad one", "bad"] * 4, "label": [1, 0, 1, 0, 0] * 4}
    test = {"text": ["bad thing", "good thing"], "label": [0, 1]}
    assert BASELINES["bag_of_words"](train, test, "class") == [0, 1]
    assert BASELINES["majority"](train, test, "class") == [0, 0]
    numbers = train | {"label": [float(label) for label in train["label"]]}
    assert BASELINES["majority"](numbers, test, "number") == [pytest.approx(0.4)] * 2
    low, high = BASELINES["bag_of_words"](numbers, test, "number")
    assert low < 0.4 < high
    pair = {"text": ["x"] * 20, "text_pair": train["text"], "label": train["label"]}
    held_out = {"text": ["x", "x"], "text_pair": test["text"], "label": [0, 1]}
    assert BASELINES["bag_of_words"](pair, held_out, "class") == [0, 1]
