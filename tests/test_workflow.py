"""The workflow from end to end: every artifact opened with the tool that a user would open it with.

What holds of every run is looked up in the small one (`trained`) and, in the long tests, in one of the shipped config,
which takes minutes. What a model learns takes the shipped config.
"""

import csv
import hashlib
import json
import re
import zipfile

import numpy as np
import pyarrow.parquet as pq
import pytest
import warm
from conftest import Workflow, configured, existing
from kills import edited
from safetensors.numpy import load_file
from test_staleness import refused
from tpulm.config.outline import Outline
from tpulm.config.reading import read_config
from tpulm.core.files import read_json
from tpulm.specs.artifacts import SPLITS
from tpulm.specs.scores import find_scores, read_scores, scores_in


@pytest.fixture(scope="module", params=["trained", pytest.param("finished_workflow", marks=pytest.mark.long)])
def ready(request):
    """A finished workflow; not to be changed."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def config(ready):
    return read_config([ready / "config.yaml"], {})


def test_nothing_is_left_to_be_done(ready):
    workflow = existing(ready.folder)
    workflow.steady = True
    assert "Nothing to be done" in workflow("-n").stdout
    assert not list((ready / "results").rglob("*.partial"))


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """A copy in which nothing has been built, and whose code stays as it is."""
    workflow = Workflow(tmp_path_factory.mktemp("shipped") / "workflow")
    workflow.steady = True
    return workflow


def test_a_wrong_target_and_a_wrong_config_are_one_sentence_before_any_job(shipped):
    changing = existing(shipped.folder)  # not steady: the sentence names files from this folder
    (shipped / "text.yaml").write_text("corpus: {source: python-docs}\n")
    for target in ("tfrecord", "tfrecords"):  # misspelled, and one that this config lacks
        assert "tfrecords" in refused(changing, target, "-n", "--configfile", "text.yaml")
    text = (shipped / "config.yaml").read_text()
    (shipped / "wrong.yaml").write_text(text.replace("vocab_size: 2048", "vocab_size: many", 1))
    assert refused(changing, "--configfile", "wrong.yaml").startswith('wrong.yaml: tokenizer.vocab_size is "many"; ')
    assert not (shipped / "results").exists()


def test_a_recipe_replaces_the_config(shipped):
    printed = shipped("-n", "--quiet", "rules", "--configfile", "recipes/glue-modernbert-base.yaml").stdout
    counts = dict(re.findall(r"^(\w+) +(\d+)$", printed, re.M))
    assert (counts["train_task"], counts["prune_checkpoint"], counts["score_task"]) == ("84", "59", "8")
    assert not {"train_mlm_jax", "train_base", "train_finetune"} & set(counts)


def test_a_dry_run_tells_what_this_machine_lacks(shipped):
    with edited(shipped, "lacking.yaml") as config:
        config["cpu_threads"] = 256
        config["mlm"]["runs"]["tiny"]["resources"] = {"accelerator": "v5e-8"}
        config["base"]["small"]["resources"] = {"accelerator": "v5p-24"}
    printed = shipped("-n", "--configfile", "lacking.yaml").stdout
    assert "note: mlm.runs.tiny and base.small request a TPU, but this machine has none; " in printed
    assert "note: cpu_threads is 256, but this machine has " in printed
    elsewhere = ("--executor", "cluster-generic", "--cluster-generic-submit-cmd", "false", "--jobs", "1")
    assert "note: " not in shipped("-n", "--configfile", "lacking.yaml", *elsewhere).stdout


def test_before_the_first_job_too_small_a_disk_is_refused_and_a_missing_accelerator_is_told(shipped):
    huge = {"architecture": "roberta", "hidden_size": 65_536, "num_hidden_layers": 1000, "num_attention_heads": 2}
    with edited(shipped, "huge.yaml") as config:
        tiny = config["mlm"]["runs"]["tiny"]
        tiny |= {"model": huge | {"intermediate_size": 65_536}, "keep_checkpoints": "last"}
    elsewhere = ("--executor", "cluster-generic", "--cluster-generic-submit-cmd", "false", "--jobs", "1")
    said = shipped("mlm", "--configfile", "huge.yaml", *elsewhere, check=False)
    assert said.returncode == 1 and "Traceback" not in said.stdout and not (shipped / "results/corpus").exists()
    assert re.search(r"note: mlm\.runs\.tiny .*resources\.accelerator", said.stdout)
    sentence = r"error: .*[\d,.]+ GB .*results/ .*mlm\.runs\.tiny .*keep_checkpoints: last\).*[\d,.]+ GB are free"
    assert re.search(sentence, said.stdout), said.stdout[-2000:]


TENSORFLOW = """
import glob, json, sys
from pathlib import Path
import tensorflow as tf
from tpulm.training.tensorflow_model import load_model
from transformers import AutoTokenizer, pipeline

results, length, prompts, model = json.loads(sys.argv[1])
features = {name: tf.io.FixedLenFeature([length], tf.int64) for name in ("input_ids", "attention_mask")}
rows = {"train": [], "validation": [], "test": []}
for split in rows:
    for record in tf.data.TFRecordDataset(sorted(glob.glob(f"{results}/tfrecords/{split}/*.tfrecord"))):
        example = tf.io.parse_single_example(record, features)
        assert tf.reduce_all(example["attention_mask"] == 1)
        rows[split].append(example["input_ids"].numpy().tolist())

answers = []
if model:
    # transformers 4.57 cannot read the file itself with TensorFlow alone: docs/development/upstream.md.
    model = load_model(Path(f"{results}/mlm/tiny/model"))
    tokenizer = AutoTokenizer.from_pretrained(f"{results}/mlm/tiny/model")
    fill = pipeline("fill-mask", model=model, tokenizer=tokenizer, framework="tf", dtype=None)
    answers = [fill(prompt) for prompt in prompts]
print("RESULT" + json.dumps([rows, answers]))
"""


@pytest.fixture(scope="module")
def opened(ready, config):
    """What TensorFlow makes of the records, and of its own model with transformers: (rows, answers)."""
    length, prompts = config["tfrecords"]["sequence_length"], config["prompts"]["fill_mask"]
    model = config["mlm"]["runs"]["tiny"]["backend"] == "tensorflow"
    asked = json.dumps([str(ready / "results"), length, prompts, model])
    return warm.result(warm.run("tensorflow", TENSORFLOW, asked))


def test_tensorflow_reads_every_shard_and_finds_the_tokenizers_output(ready, config, opened):
    from tokenizers import Tokenizer

    length, rows = config["tfrecords"]["sequence_length"], opened[0]
    manifest = read_json(ready / "results/tfrecords/manifest.json")
    tokenizer = Tokenizer.from_file(str(ready / "results/tokenizer/tokenizer.json"))
    for split in SPLITS:
        shards = manifest["splits"][split]["shards"]
        assert sum(shard["records"] for shard in shards) == len(rows[split])
        for shard in shards:
            file = ready / "results/tfrecords" / shard["file"]
            assert hashlib.sha256(file.read_bytes()).hexdigest() == shard["sha256"]
        texts = pq.read_table(ready / f"results/corpus/{split}.parquet")["text"].to_pylist()
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


def test_metrics_are_scores_of_tokens(ready, config):
    """Beside those of a model without context, or of the base model."""
    for run in Outline(config).runs.values():
        head, scores = read_scores(ready / "results" / run.path / "metrics.json")
        assert head["model"] == run.path and head["kind"] == ("masked" if run.stage == "mlm" else "causal")
        losses = {(score.set, score.split): score for score in scores if score.metric == "loss"}
        text = "finetune-text" if run.stage == "finetune" else "corpus"
        others = {("corpus", "validation")} if run.stage == "finetune" else set()
        assert set(losses) == {(text, "validation"), (text, "test")} | others
        baseline = "base model" if run.stage == "finetune" else "token frequencies"
        for score in scores:
            assert score.group == "tokens" and score.items > 0
            assert set(score.baselines) == ({baseline} if score.metric == "loss" or run.stage == "finetune" else set())
        # The checkpoint that is selected by this loss.
        best = read_json(ready / "results" / run.path / f"checkpoints/{run.segment_ends[-1]:08d}/state.json")["best"]
        assert losses[text, "validation"].value == pytest.approx(best["evaluation"]["loss"], rel=1e-3)


def test_history_has_every_step_and_its_scheduled_rate(ready, config):
    recipe = config["mlm"]["runs"]["tiny"]
    with open(ready / "results/mlm/tiny/history.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, recipe["steps"] + 1))
    rates = [float(row["learning_rate"]) for row in rows]
    assert max(rates) == pytest.approx(recipe["learning_rate"])
    assert rates[0] == 0
    assert np.mean([float(row["loss"]) for row in rows[-5:]]) < float(rows[0]["loss"])


def test_checkpoints_are_a_chain(ready, config):
    recipe = config["mlm"]["runs"]["tiny"]
    steps = range(recipe["checkpoint_every"], recipe["steps"] + 1, recipe["checkpoint_every"])
    losses = {}
    for step in steps:
        folder = ready / f"results/mlm/tiny/checkpoints/{step:08d}"
        state = read_json(folder / "state.json")
        losses[step] = state["evaluation"]["loss"]
        assert state["step"] == step
        assert state["best"]["step"] == min(losses, key=losses.get)
        assert load_file(folder / "optimizer.safetensors")
    best = ready / f"results/mlm/tiny/checkpoints/{state['best']['step']:08d}/weights.safetensors"
    assert best.read_bytes() == (folder / "best.safetensors").read_bytes()


@pytest.mark.parametrize("ready", ["trained"], indirect=True)
def test_fill_mask_pipeline_loads_the_model_folder(ready, config, opened):
    answers = opened[1]
    kept = read_json(ready / "results/mlm/tiny/fill_mask.json")
    for prompt, answer, item in zip(config["prompts"]["fill_mask"], answers, kept, strict=True):
        assert item["prompt"] == prompt
        assert [a["token"] for a in answer] == [a["token"] for a in item["answers"]]
        assert [a["score"] for a in answer] == pytest.approx([a["score"] for a in item["answers"]], abs=1e-5)


def test_finetuning_trains_few_parameters_and_generates_pairs(ready, config):
    for run in config["finetune"]["runs"]:
        metrics = read_json(ready / f"results/finetune/{run}/metrics.json")
        assert metrics["trainable_share"] == metrics["trainable_parameters"] / metrics["total_parameters"] < 0.1
    generations = read_json(ready / "results/finetune/python/generations.json")
    assert [item["prompt"] for item in generations["prompts"]] == config["prompts"]["generate"]
    for item in generations["prompts"]:
        assert len(item["before"]) == len(item["after"]) == config["generation"]["samples"]
        assert item["before"] != item["after"]


def test_a_base_model_that_no_run_finetunes_has_samples_of_its_own(built):
    built("base", *configured(built, {"finetune": {}}), "--cores", "1")
    alone, beside = (read_json(built / f"results/{run}/generations.json") for run in ("base/small", "finetune/python"))
    assert alone["sampling"] == beside["sampling"]
    for row, pair in zip(alone["prompts"], beside["prompts"], strict=True):
        assert (row["continuations"], row["cut"]) == (pair["before"], pair["cut"]["before"])
    option = configured(built, {"finetune": {}, "generation.seed": 1})
    assert re.search(r"^continue_prompts +1$", built("base", "-n", *option).stdout, re.M)


@pytest.mark.long
def test_finetuning_taught_python(finished_workflow):
    """The shipped config trains for minutes."""
    metrics = read_json(finished_workflow / "results/finetune/python/metrics.json")
    assert metrics["trainable_share"] < 0.05
    losses = list(find_scores(scores_in(metrics), set="finetune-text", metric="loss"))
    assert len(losses) == 2 and all(loss.value < 0.7 * loss.baselines["base model"] for loss in losses)


def test_report(ready):
    archive = zipfile.ZipFile(ready / "report.zip")
    everything = b"".join(archive.read(name) for name in archive.namelist())
    assert b"Training report" in everything  # the page
    for curves in ("mlm-tiny", "base-small", "finetune-python"):
        assert (ready / f"results/figures/training/{curves}.svg").read_bytes() in everything, curves
