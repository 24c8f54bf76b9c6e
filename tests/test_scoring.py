"""Models score texts as they would one by one, on both backends; what comes of a finished run."""

import json
import math
from pydoc_data import topics

import numpy as np
import pyarrow.parquet as pq
import pytest
import test_masked_folders
import warm
from tpulm.core.errors import UserError
from tpulm.evaluation.material import Item, Passage, write_items
from tpulm.evaluation.minimal_pairs import fetch_pairs
from tpulm.specs.scores import read_scores

given = test_masked_folders.given

SENTENCES = [
    "the value of a list",
    "return the object",
    "a method of the class is in the object or the list",
    "string",
    "the unknown words of a class and the method and the value and the object in a list of a function and more of them",
]

# By hand: one token at a time, in rows without padding, and the logarithms in NumPy.
MASKED = """
import json, sys
from pathlib import Path
import numpy as np
folder, engine, texts, length = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
from tpulm.evaluation.material import Passage
from tpulm.evaluation.rows import encode_passages, masked_rows
from tpulm.tokenization.tokenizer import TextTokenizer
if engine == "jax":
    from tpulm.training import runtime
    runtime.start(1)
    from tpulm.evaluation.jax_scoring import Scorer
    from tpulm.models.loading import load_masked
    from tpulm.records.masked_batches import masked_lm
    model, distribution = load_masked(folder, "mlm.runs.x", {"mesh": [1, 1]})
    def scored(rows, texts): return Scorer(model, distribution, masked_lm, 128, length)(rows, texts)
    def logits(ids, place):
        inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids), "mask_positions": np.array([[place]])}
        return np.asarray(model(inputs, training=False))[0, 0]
else:
    from tpulm.training import tensorflow_runtime as runtime
    runtime.start(1, 1, tpu=False)
    from tpulm.evaluation.tensorflow_scoring import score
    from tpulm.training.tensorflow_model import load_model
    model = load_model(folder)
    def scored(rows, texts): return score(model, rows, texts, 128, length)
    def logits(ids, place): return model(ids).logits.numpy()[0, place]
vocabulary = TextTokenizer.load(folder / "tokenizer.json", folder / "special_tokens_map.json")
encoded = encode_passages(vocabulary, [Passage.of(text) for text in texts])
found = scored(masked_rows(encoded, vocabulary, length), len(texts))
by_hand = np.zeros(len(texts))
room = length - 2
for number, one in enumerate(encoded):
    for start in range(0, len(one.ids), room):
        ids = one.ids[start : start + room]
        for place, token in enumerate(ids):
            row = [*vocabulary.before, *ids, *vocabulary.after]
            row[place + 1] = vocabulary.special["mask"]
            values = logits(np.array([row], np.int32), place + 1).astype(np.float64)
            by_hand[number] += np.log(np.exp(values - values.max()).sum()) + values.max() - values[token]
print("RESULT" + json.dumps({"found": found.tolist(), "by_hand": by_hand.tolist()}))
"""


def test_masked_models_score_as_by_hand_on_both_backends(given):
    arguments = json.dumps(SENTENCES), "16"
    results = {
        engine: warm.result(warm.run(engine, MASKED, str(given), engine, *arguments))
        for engine in ("jax", "tensorflow")
    }
    for result in results.values():
        assert result["found"] == pytest.approx(result["by_hand"], abs=1e-4)
    assert results["jax"]["found"] == pytest.approx(results["tensorflow"]["found"], abs=1e-4)


MINICONS = """
import json, sys
from minicons import scorer
job = json.loads(sys.argv[1])
model = scorer.MaskedLMScorer(job["folder"], "cpu")
scores = model.sequence_score(job["texts"], reduction=lambda x: -x.sum(0).item(), PLL_metric="within_word_l2r")
print("RESULT" + json.dumps(scores))
"""


@pytest.mark.long
def test_masked_models_score_as_minicons_does(trained, openers):
    """A vocabulary of pieces, so that words have several tokens."""
    folder = trained / "results/mlm/tiny/model"
    texts = ["Return the first element of the list.", "If the argument is not found, an exception is raised."]
    program = MASKED[: MASKED.index("by_hand =")] + 'print("RESULT" + json.dumps(found.tolist()))'
    ours = warm.result(warm.run("tensorflow", program, str(folder), "tensorflow", json.dumps(texts), "128"))
    theirs = openers.result("minicons", MINICONS, {"folder": str(folder), "texts": texts})
    assert ours == pytest.approx(theirs, abs=1e-4)


# A model of the run `trained`, as it is and with the values of each of its arrays shuffled.
CAUSAL = """
import json, sys
import numpy as np
preset, texts, length, pairs = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
from tpulm.training import runtime
runtime.start(1)
from tpulm.specs.training_step import ModelSpec
from pathlib import Path
from tpulm.evaluation.jax_scoring import CausalScorer
from tpulm.tokenization.conversion import convert
from tpulm.tokenization.tokenizer import TextTokenizer
from tpulm.evaluation.material import Passage, read_items
from tpulm.models import causal
from tpulm.models.building import open_model
recipe = {"preset": preset, "mesh": [1, 1], "precision": "float32"}
model, distribution = open_model(ModelSpec.of("base", "base.x", recipe), causal)
recipe |= {"sequence_length": length, "batch_size": 4, "microbatches": 1}
texts = [Passage.of(text) for text in texts]
tokenizer = TextTokenizer(convert(Path(preset)))
score = CausalScorer(model, distribution, recipe, tokenizer, texts)
found, by_hand, windows = score(), [], 0
for one in score.encoded:
    tokens, cost, done = [score.tokenizer.special["bos"], *one.ids], 0.0, 1
    while done < len(tokens):
        end = min(done + length, len(tokens))
        read = tokens[max(0, end - length - 1) : end - 1]
        row = np.array([read + [0] * (length - len(read))], np.int32)  # filled up behind what they see: one shape
        values = np.asarray(model({"token_ids": row, "padding_mask": np.ones_like(row)}), np.float64)[0]
        values = values[len(read) - (end - done) : len(read)]
        top = values.max(-1, keepdims=True)
        shares = values - top - np.log(np.exp(values - top).sum(-1, keepdims=True))
        cost -= sum(shares[place, token] for place, token in enumerate(tokens[done:end]))
        done, windows = end, windows + 1
    by_hand.append(cost)
made = [item.passages for item in read_items(pairs)]
score = CausalScorer(model, distribution, recipe, tokenizer, [one for pair in made for one in pair])
right = []
for seed in range(4):
    dice = np.random.default_rng(seed)
    for variable in model.variables:
        variable.assign(dice.permutation(np.asarray(variable).ravel()).reshape(variable.shape))
    costs = score()
    right += [bool(costs[good] < costs[bad]) for good, bad in made]
result = {"found": [found[text] for text in texts], "by_hand": by_hand, "windows": windows}
print("RESULT" + json.dumps(result | {"right": right}))
"""


def pair(item, kind, good, bad):
    return Item("mine", "", kind, item, (Passage.of(good), Passage.of(bad)))


@pytest.fixture(scope="module")
def causal(trained, tmp_path_factory):
    texts = [*SENTENCES, " ".join(SENTENCES * 3), "x"]
    pairs = tmp_path_factory.mktemp("pairs") / "swapped.parquet"
    words = " ".join(topics.topics[topic] for topic in sorted(topics.topics)).split()
    goods = [words[start : start + 8] for start in range(0, 800, 8)]
    bads = [[*good[:3], good[4], good[3], *good[5:]] for good in goods]
    both = [(" ".join(good), " ".join(bad)) for good, bad in zip(goods, bads, strict=True) if good != bad]
    write_items(pairs, [pair(str(number), "swapped", *two) for number, two in enumerate(both)])
    done = warm.run("jax", CAUSAL, str(trained / "results/base/small/preset"), json.dumps(texts), "64", str(pairs))
    return warm.result(done) | {"texts": texts}


def test_causal_models_score_as_by_hand(causal):
    assert causal["found"] == pytest.approx(causal["by_hand"], rel=1e-5, abs=1e-4)
    assert causal["windows"] > len(causal["texts"])  # some are longer than the model reads


def test_shuffled_weights_are_at_chance(causal):
    right = causal["right"]
    # One model has preferences: pairs that share words are not independent.
    assert abs(np.mean(right) - 0.5) < 6 * math.sqrt(0.25 / len(right)) and len(right) > 200


TRANSFORMERS = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
job = json.loads(sys.argv[1])
tokenizer, model = AutoTokenizer.from_pretrained(job["folder"]), AutoModelForCausalLM.from_pretrained(job["folder"])
scores = []
for text in job["texts"]:
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]])
    with torch.no_grad():
        shares = torch.log_softmax(model(ids).logits[0, :-1].double(), -1)
    scores.append(-shares.gather(1, ids[0, 1:, None]).sum().item())
print("RESULT" + json.dumps(scores))
"""


@pytest.mark.long
def test_causal_models_score_as_transformers_does(trained, openers, causal):
    short = [place for place, text in enumerate(causal["texts"]) if len(text) < 60]
    job = {"folder": str(trained / "results/transformers/base/small"), "texts": [causal["texts"][n] for n in short]}
    theirs = openers.result("transformers 5", TRANSFORMERS, job)
    assert [causal["found"][place] for place in short] == pytest.approx(theirs, abs=1e-3, rel=1e-5)


def test_pairs_of_a_dataset_with_several_configurations(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    header = ["---", "configs:"]
    for number, name in enumerate(("one", "two")):
        row = {"sentence_good": f"Good {number}.", "sentence_bad": f"Bad {number}.", "field": name}
        (folder / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
        header += [f"- config_name: {name}", f"  data_files: {name}.jsonl"]
    (folder / "README.md").write_text("\n".join([*header, "---", ""]))
    recipe = {"dataset": str(folder), "split": "train", "phenomenon": "field"}
    both = [pair("0", "one", "Good 0.", "Bad 0."), pair("1", "two", "Good 1.", "Bad 1.")]
    assert list(fetch_pairs("mine", recipe, [])) == both
    assert list(fetch_pairs("mine", recipe | {"name": "two"}, [])) == [pair("0", "two", "Good 1.", "Bad 1.")]
    with pytest.raises(UserError, match="which could not be downloaded"):
        list(fetch_pairs("mine", recipe | {"dataset": str(tmp_path / "nothing")}, []))


MODELS = {"mlm/tiny": "masked", "base/small": "causal", "finetune/python": "causal"}


def test_runs_have_scores_of_the_same_items(trained):
    folder, read = trained / "results/evaluation", {}
    for model, kind in MODELS.items():
        head, scores = read_scores(folder / model / "scores.json")
        assert head == {"model": model, "kind": kind}
        names = [score.name for score in scores]
        assert len(names) == len(set(names)) >= 2
        beside = {"unigram", "5-gram"} | ({"base model"} if model == "finetune/python" else set())
        rows = pq.read_table(folder / model / "items.parquet").to_pylist()
        for score in scores:
            assert set(score.baselines) == beside and 0 <= score.in_training_text <= score.items
            assert score.low is score.high is None if score.items < 20 else score.low <= score.value <= score.high
            values = [row["value"] for row in rows if row["score"] == score.name]
            assert len(values) == score.items and np.mean(values) == pytest.approx(score.value)
        measured = {score.on for score in scores if score.group == "text"}
        # A base model also on the text for finetuning, so that `compare` has both.
        texts = ["corpus"] if model == "mlm/tiny" else ["corpus", "finetune-text"]
        assert measured == {f"{text} {split}" for text in texts for split in ("validation", "test")}
        read[model] = {row["item"] for row in rows if row["score"].endswith("corpus test")}
    assert read["mlm/tiny"] <= read["base/small"] == read["finetune/python"]
