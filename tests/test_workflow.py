"""The shipped config from end to end: every artifact opened with the tool that a user would open it with."""

import csv
import hashlib
import json
import math
import os
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import Workflow, reduced
from kills import fingerprints
from lib.config import SPLITS, read_config
from lib.order import batch_records
from safetensors.numpy import load_file


@pytest.fixture(scope="session")
def config(finished):
    return read_config([finished / "config.yaml"], {})


def load(path):
    return json.loads(path.read_text())


def python(code, *arguments, **environment):
    """Run code in a process of its own (TensorFlow and JAX each want to be set up alone); return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_nothing_is_left_to_be_done(finished):
    assert "Nothing to be done" in finished("-n").stdout


def test_a_wrong_config_is_one_sentence_before_any_job(fresh):
    text = (fresh / "config.yaml").read_text()
    (fresh / "config.yaml").write_text(text.replace("vocab_size: 2048", "vocab_size: many", 1))
    done = fresh(check=False)
    assert done.returncode == 1
    allowed = "allowed: a whole number, 16 or more, at most 1000000."
    assert done.stdout.splitlines()[-1] == f'error: config.yaml: tokenizer.vocab_size is "many"; {allowed}'
    assert "Traceback" not in done.stdout
    assert not (fresh / "results").exists()


@pytest.mark.parametrize(
    ("recipe", "jobs", "absent"),
    [
        (
            "imdb-gemma-7b",
            {"fetch_base": 1, "train_lora": 4},
            ["train_tokenizer", "train_mlm_tensorflow", "train_base"],
        ),
        ("wikitext103-roberta-base", {"train_mlm_tensorflow": 500, "write_shard": 243}, ["train_lora", "train_base"]),
    ],
)
def test_recipes_replace_the_config(fresh, recipe, jobs, absent):
    printed = fresh("-n", "--configfile", f"recipes/{recipe}.yaml").stdout
    counts = dict(line.split() for line in printed.splitlines() if len(line.split()) == 2 and line.split()[1].isdigit())
    assert {name: int(counts[name]) for name in jobs} == jobs
    assert not set(absent) & set(counts)


def test_no_partial_file_is_left(finished):
    assert not list((finished / "results").rglob("*.partial"))


def test_corpora(finished):
    for collection in ("corpus", "tuning"):
        said = load(finished / f"results/{collection}/corpus.json")
        seen = {}
        for split in SPLITS:
            table = pq.read_table(finished / f"results/{collection}/{split}.parquet")
            assert table.column_names == ["text"]
            texts = table["text"].to_pylist()
            assert all(text.strip() for text in texts)
            assert said["splits"][split]["documents"] == len(texts)
            assert said["splits"][split]["characters"] == sum(map(len, texts))
            seen[split] = {" ".join(text.split()) for text in texts}
        assert not seen["train"] & seen["validation"]
        assert not seen["train"] & seen["test"]
        assert not seen["validation"] & seen["test"]


def test_tokenizer_loads_and_round_trips(finished):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(finished / "results/tokenizer")
    assert [tokenizer.cls_token, tokenizer.sep_token, tokenizer.unk_token] == ["[CLS]", "[SEP]", "<unk>"]
    assert [tokenizer.pad_token, tokenizer.mask_token] == ["<pad>", "[MASK]"]
    texts = pq.read_table(finished / "results/corpus/validation.parquet")["text"].to_pylist()[:200]
    same = 0
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        assert ids[0] == tokenizer.cls_token_id and ids[-1] == tokenizer.sep_token_id
        if tokenizer.unk_token_id not in ids and "``" not in text and "''" not in text:
            assert tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) == text
            same += 1
    assert same > 150


READ_SHARDS = """
import glob, json, sys
import tensorflow as tf
folder, length = sys.argv[1], int(sys.argv[2])
features = {name: tf.io.FixedLenFeature([length], tf.int64) for name in ("input_ids", "attention_mask")}
out = {}
for split in ("train", "validation", "test"):
    rows = []
    files = sorted(glob.glob(f"{folder}/{split}/*.tfrecord"))
    for record in tf.data.TFRecordDataset(files):
        example = tf.io.parse_single_example(record, features)
        assert tf.reduce_all(example["attention_mask"] == 1)
        rows.append(example["input_ids"].numpy().tolist())
    out[split] = rows
json.dump(out, open(sys.argv[3], "w"))
"""


def test_tensorflow_reads_every_shard_and_finds_the_tokenizers_output(finished, config, tmp_path):
    from tokenizers import Tokenizer

    length = config["tfrecords"]["sequence_length"]
    python(READ_SHARDS, finished / "results/tfrecords", length, tmp_path / "rows.json")
    rows = load(tmp_path / "rows.json")
    manifest = load(finished / "results/tfrecords/manifest.json")
    tokenizer = Tokenizer.from_file(str(finished / "results/tokenizer/tokenizer.json"))
    for split in SPLITS:
        shards = manifest["splits"][split]["shards"]
        assert sum(shard["records"] for shard in shards) == len(rows[split])
        for shard in shards:
            file = finished / "results/tfrecords" / shard["file"]
            assert hashlib.sha256(file.read_bytes()).hexdigest() == shard["sha256"]
        texts = pq.read_table(finished / f"results/corpus/{split}.parquet")["text"].to_pylist()
        encoded = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        start, record = 0, 0
        for shard in shards:
            stop = start + shard["documents"]
            ids = [token for document in encoded[start:stop] for token in document]
            kept = len(ids) // length
            assert kept == shard["records"]
            expected = np.array(ids[: kept * length]).reshape(kept, length)
            assert np.array_equal(expected, np.array(rows[split][record : record + kept]))
            start, record = stop, record + kept
        assert start == len(texts)


def test_masked_model_learned_from_context(finished, config):
    for run in config["mlm"]["runs"]:
        metrics = load(finished / f"results/mlm/{run}/metrics.json")
        for split in ("validation", "test"):
            figures = metrics[split]
            assert math.isclose(figures["perplexity"], math.exp(figures["loss"]), rel_tol=1e-6)
        assert metrics["validation"]["loss"] < metrics["validation"]["unigram_entropy"] - 0.3


def test_history_has_every_step_and_its_scheduled_rate(finished, config):
    recipe = config["mlm"]["runs"]["tiny"]
    with open(finished / "results/mlm/tiny/history.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, recipe["steps"] + 1))
    rates = [float(row["learning_rate"]) for row in rows]
    assert max(rates) == pytest.approx(recipe["learning_rate"])
    assert rates[0] == 0
    assert np.mean([float(row["loss"]) for row in rows[-20:]]) < float(rows[0]["loss"])


def test_checkpoints_are_a_chain(finished, config):
    recipe = config["mlm"]["runs"]["tiny"]
    steps = range(recipe["checkpoint_every"], recipe["steps"] + 1, recipe["checkpoint_every"])
    losses = {}
    for step in steps:
        folder = finished / f"results/mlm/tiny/checkpoints/{step:08d}"
        state = load(folder / "state.json")
        losses[step] = state["evaluation"]["loss"]
        assert state["step"] == step
        assert state["best"]["step"] == min(losses, key=losses.get)
        assert load_file(folder / "optimizer.safetensors")
    best = finished / f"results/mlm/tiny/checkpoints/{state['best']['step']:08d}/weights.safetensors"
    assert best.read_bytes() == (folder / "best.safetensors").read_bytes()


PIPELINE = """
import json, sys
from transformers import pipeline
fill = pipeline("fill-mask", model=sys.argv[1], framework="tf")
print("ANSWER" + json.dumps([fill(prompt) for prompt in json.loads(sys.argv[2])]))
"""


def test_fill_mask_pipeline_loads_the_model_folder(finished, config):
    prompts = config["prompts"]["fill_mask"]
    out = python(PIPELINE, finished / "results/mlm/tiny/model", json.dumps(prompts), TF_USE_LEGACY_KERAS="1")
    answers = json.loads(out.split("ANSWER")[1])
    kept = load(finished / "results/mlm/tiny/fill_mask.json")
    for prompt, answer, item in zip(prompts, answers, kept, strict=True):
        assert item["prompt"] == prompt
        assert [a["token"] for a in answer] == [a["token"] for a in item["answers"]]
        assert [a["score"] for a in answer] == pytest.approx([a["score"] for a in item["answers"]], abs=1e-5)


EMBEDDINGS = """
import sys
import numpy as np
from transformers import TFAutoModelForMaskedLM
model = TFAutoModelForMaskedLM.from_pretrained(sys.argv[1])
ids = np.array([[0, 64, 5, 4, 13, 1, 66, 3, 3]])
mask = (ids != 3).astype(int)
np.save(sys.argv[2], model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[0].numpy())
"""


def test_positions_start_after_the_pad_id_as_pytorch_counts_them(finished, tmp_path):
    """The embeddings, computed from the file by the formula of PyTorch's RobertaEmbeddings."""
    folder = finished / "results/mlm/tiny/model"
    python(EMBEDDINGS, folder, tmp_path / "hidden.npy", TF_USE_LEGACY_KERAS="1")
    arrays = load_file(folder / "model.safetensors")
    part = {
        name: arrays[f"roberta.embeddings.{name}.weight"]
        for name in ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm")
    }
    ids = np.array([0, 64, 5, 4, 13, 1, 66, 3, 3])
    pad = load(folder / "config.json")["pad_token_id"]
    assert pad == 3
    positions = np.where(ids == pad, pad, np.cumsum(ids != pad) + pad)
    total = part["word_embeddings"][ids] + part["position_embeddings"][positions] + part["token_type_embeddings"][0]
    centred = total - total.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    expected = normal * part["LayerNorm"] + arrays["roberta.embeddings.LayerNorm.bias"]
    np.testing.assert_allclose(np.load(tmp_path / "hidden.npy")[0], expected, atol=1e-5)


def test_model_file_has_pytorchs_names(finished):
    arrays = load_file(finished / "results/mlm/tiny/model/model.safetensors")
    assert arrays["roberta.encoder.layer.0.attention.self.query.weight"].shape == (128, 128)
    assert arrays["roberta.encoder.layer.1.intermediate.dense.weight"].shape == (512, 128)
    assert arrays["roberta.encoder.layer.1.output.LayerNorm.weight"].shape == (128,)
    assert {"lm_head.dense.weight", "lm_head.layer_norm.weight", "lm_head.bias"} <= set(arrays)
    header = (finished / "results/mlm/tiny/model/model.safetensors").read_bytes()[:200_000]
    assert b'"format":"pt"' in header


PRESET = """
import os, sys
os.environ["KERAS_BACKEND"] = "jax"
import keras_hub
model = keras_hub.models.GemmaCausalLM.from_preset(sys.argv[1])
print("ANSWER" + model.generate("The function", max_length=24))
"""


def test_base_model_is_a_keras_preset(finished):
    answer = python(PRESET, finished / "results/base/small").split("ANSWER")[1]
    assert answer.startswith("The function") and len(answer) > len("The function") + 5


def test_tuning_taught_python(finished, config):
    for run in config["lora"]["runs"]:
        metrics = load(finished / f"results/lora/{run}/metrics.json")
        assert metrics["trainable_share"] < 0.05
        assert metrics["trainable_share"] == metrics["trainable_parameters"] / metrics["total_parameters"]
        for text in ("tuning_validation", "tuning_test"):
            loss = metrics["loss"][text]
            assert loss["after"]["loss"] < 0.7 * loss["before"]["loss"]
        samples = metrics["samples"]
        assert samples["after"]["python_token_rate"] >= 5 * samples["before"]["python_token_rate"]


def test_partitioning_follows_the_mesh(finished):
    partitioning = load(finished / "results/lora/python/partitioning.json")
    assert partitioning["mesh"] == {"batch": 1, "model": 8}
    rows = {row["path"]: row for row in partitioning["variables"]}
    query = next(row for path, row in rows.items() if path.endswith("decoder_block_1/attention/query/kernel"))
    assert query["spec"][0] == "model"
    assert query["bytes_per_device"] * 8 == 4 * math.prod(query["shape"])


def test_generations_come_in_pairs(finished, config):
    generations = load(finished / "results/lora/python/generations.json")
    assert [item["prompt"] for item in generations["prompts"]] == config["prompts"]["generate"]
    for item in generations["prompts"]:
        assert len(item["before"]) == len(item["after"]) == config["generation"]["samples"]
        assert item["before"] != item["after"]


def test_report(finished, tmp_path):
    archive = tmp_path / "report.zip"
    finished("--report", str(archive))
    names = zipfile.ZipFile(archive).namelist()
    assert any(name.endswith("report.html") for name in names)
    with zipfile.ZipFile(archive) as file:
        everything = b"".join(file.read(name) for name in names)
    for title in ("Held-out figures", "Fill-mask", "Generations: python", "Partitioning: python", "Text and tokenizer"):
        assert title.encode() in everything, title


def test_any_number_of_cores_gives_the_same_bytes(trained, tmp_path):
    """The cut-down config with one core, against the run with two that other tests share."""
    workflow = Workflow(tmp_path / "workflow")
    reduced(workflow)
    workflow("--configfile", "small.yaml", "--cores", "1")
    found = fingerprints(workflow / "results")
    assert len(found) > 100
    assert found == fingerprints(trained / "results")


def test_the_first_batch_holds_the_records_that_the_order_says(finished, config):
    from lib.tfrecord import Records

    records = Records(finished / "results/tfrecords/manifest.json", "train")
    indices = batch_records(len(records), 0, config["mlm"]["runs"]["tiny"]["batch_size"], 0)
    assert records.read(indices).shape == (len(indices), config["tfrecords"]["sequence_length"])
