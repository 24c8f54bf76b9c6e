"""Models score texts as they would one by one, on both backends; what comes of a finished run."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import test_masked_folders
import warm
from tpulm.core.errors import UserError
from tpulm.evaluation.material import Item, Passage
from tpulm.evaluation.minimal_pairs import fetch_pairs
from tpulm.specs.scores import read_scores

given = test_masked_folders.given

SENTENCES = [
    "the value of a list",
    "return the object",
    "a method of the class is in the object or the list",
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
    import jax
    from tpulm.evaluation.jax_scoring import Scorer
    from tpulm.models.loading import load_masked
    from tpulm.records.masked_batches import masked_lm
    model, distribution = load_masked(folder, "mlm.runs.x", {"mesh": [1, 1]})
    def scored(rows, texts): return Scorer(model, distribution, masked_lm, 128, length)(rows, texts)
    call = jax.jit(lambda inputs: model(inputs, training=False))
    def logits(ids, place):
        inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids), "mask_positions": np.array([[place]])}
        return np.asarray(call(inputs))[0, 0]
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
    arguments = json.dumps([SENTENCES[1], SENTENCES[-1]]), "16"  # which is longer than a row
    results = {
        engine: warm.result(warm.run(engine, MASKED, str(given), engine, *arguments))
        for engine in ("jax", "tensorflow")
    }
    for result in results.values():
        assert result["found"] == pytest.approx(result["by_hand"], abs=1e-4)
    assert results["jax"]["found"] == pytest.approx(results["tensorflow"]["found"], abs=1e-4)


# A model of the run `trained`.
CAUSAL = """
import json, sys
import numpy as np
preset, texts, length = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
from tpulm.training import runtime
runtime.start(1)
import jax
from tpulm.specs.training_step import ModelSpec
from pathlib import Path
from tpulm.evaluation.jax_scoring import CausalScorer
from tpulm.tokenization.conversion import convert
from tpulm.tokenization.tokenizer import TextTokenizer
from tpulm.evaluation.material import Passage
from tpulm.models import causal
from tpulm.models.building import open_model
recipe = {"preset": preset, "mesh": [1, 1], "precision": "float32"}
model, distribution = open_model(ModelSpec.of("base", "base.x", recipe), causal)
recipe |= {"sequence_length": length, "batch_size": 4, "microbatches": 1}
texts = [Passage.of(text) for text in texts]
tokenizer = TextTokenizer(convert(Path(preset)))
score = CausalScorer(model, distribution, recipe, tokenizer, texts)
found, by_hand, windows, call = score(), [], 0, jax.jit(lambda inputs: model(inputs))
for one in score.encoded:
    tokens, cost, done = [score.tokenizer.special["bos"], *one.ids], 0.0, 1
    while done < len(tokens):
        end = min(done + length, len(tokens))
        read = tokens[max(0, end - length - 1) : end - 1]
        row = np.array([read + [0] * (length - len(read))], np.int32)  # filled up behind what they see: one shape
        values = np.asarray(call({"token_ids": row, "padding_mask": np.ones_like(row)}), np.float64)[0]
        values = values[len(read) - (end - done) : len(read)]
        top = values.max(-1, keepdims=True)
        shares = values - top - np.log(np.exp(values - top).sum(-1, keepdims=True))
        cost -= sum(shares[place, token] for place, token in enumerate(tokens[done:end]))
        done, windows = end, windows + 1
    by_hand.append(cost)
print("RESULT" + json.dumps({"found": [found[text] for text in texts], "by_hand": by_hand, "windows": windows}))
"""


def pair(item, kind, good, bad):
    return Item("mine", "", kind, item, (Passage.of(good), Passage.of(bad)))


def test_causal_models_score_as_by_hand(trained):
    texts = [*SENTENCES, " ".join(SENTENCES * 3), "x"]
    preset = str(trained / "results/base/small/preset")
    found = warm.result(warm.run("jax", CAUSAL, preset, json.dumps(texts), "64"))
    assert found["found"] == pytest.approx(found["by_hand"], rel=1e-5, abs=1e-4)
    assert found["windows"] > len(texts)  # some are longer than the model reads


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
