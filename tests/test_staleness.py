"""What runs again after a change: for every key of the config, and for files, exactly the jobs that must.

A row names a key of the schema, the state that the change starts from, the new value, and the jobs that a dry run
must list then, as rule:wildcard,wildcard. A key without a row fails.
"""

import base64
import copy
import json
import os
import re
import shutil
import signal
from functools import cache
from pathlib import Path

import pytest
from conftest import copied
from kills import encoded
from tpulm.config.reading import SCHEMA, read_yaml

DELETE = object()

# The jobs of the fixture `trained`, by what they follow from.
MLM_REST = (
    "export_mlm:tiny evaluate_mlm:tiny fill_mask:mlm/tiny/fill_mask score_mlm:mlm/tiny "
    "collect_history:mlm/tiny "
    "plot_training:mlm,tiny keep_run:mlm/tiny"
)
MLM_SECOND = "train_mlm_tensorflow:tiny,00000020 " + MLM_REST
MLM = "train_mlm_tensorflow:tiny,00000010 " + MLM_SECOND
MLM_JAX = MLM.replace("_tensorflow", "_jax")
RECORDS = (
    "write_shard:train,00000,00004 write_shard:train,00001,00004 write_shard:train,00002,00004 "
    "write_shard:train,00003,00004 write_shard:validation,00000,00001 write_shard:test,00000,00001 "
    "merge_manifest:tfrecords " + MLM
)


def shards(records, splits=("train", "validation", "test"), files=1):
    """Return the jobs that write records for causal models."""
    jobs = [f"merge_manifest:{records}"]
    for split in splits:
        jobs += [f"write_causal_shard:{records},{split},{number:05d},{files:05d}" for number in range(files)]
    return " ".join(jobs) + " "


SAMPLES = "generate:python"
MEASURES = "evaluate_finetune:python keep_run:finetune/python"
LORA_REST = (
    "export_lora:python score_causal:finetune/python collect_history:finetune/python plot_training:finetune,python "
    + SAMPLES + " " + MEASURES
)  # fmt: skip
LORA_SECOND = "train_finetune:python,00000010 " + LORA_REST
FINETUNE = "train_finetune:python,00000005 " + LORA_SECOND
BASE_REST = (
    "export_base:small export_transformers:base,small evaluate_base:small score_causal:base/small "
    "collect_history:base/small "
    "plot_training:base,small "
    "keep_run:base/small " + FINETUNE
)
BASE_SECOND = "train_base:small,00000020 " + BASE_REST
BASE = "train_base:small,00000010 " + BASE_SECOND
# A split of a set of records, by the names of both, in two files instead of one.
RESHARDED = "write_causal_shard:{0},{1},00000,00002 write_causal_shard:{0},{1},00001,00002 merge_manifest:{0}"
TUNING_SET, CORPUS_SET = "tokens/small/finetune-text/pad-64", "tokens/small/corpus/concat-64"
# What models are scored on, and beside what.
NGRAMS = "score_ngrams:corpus,base-small score_ngrams:finetune-text,base-small "
OVERLAPS = [
    f"find_overlap:texts/{scored},{trained} "
    for trained in ("corpus", "finetune-text")
    for scored in ("corpus", "finetune-text")
]
SCORES = "score_mlm:mlm/tiny score_causal:base/small score_causal:finetune/python"
PAIRED = (
    OVERLAPS[0] + OVERLAPS[2] + "score_ngrams:corpus,tokenizer score_ngrams:corpus,base-small " + SCORES
)  # the sets of pairs have changed
DRAWN = "sample_texts:corpus sample_texts:finetune-text " + "".join(OVERLAPS) + NGRAMS + PAIRED
VOCABULARY = "train_base_vocabulary:small " + NGRAMS + shards(TUNING_SET) + shards(CORPUS_SET) + BASE
TOKENIZER = "train_tokenizer evaluate_tokenizer score_ngrams:corpus,tokenizer " + RECORDS
# Documents are read again, or only written again.
SCORED_ON = "sample_texts:corpus make_pairs " + OVERLAPS[0] + OVERLAPS[2]
WRITTEN = "build_corpus:corpus " + SCORED_ON + OVERLAPS[1] + TOKENIZER + " " + shards(CORPUS_SET) + VOCABULARY
CORPUS_PARTS = [f"read_part:corpus,0000{number} {WRITTEN}" for number in range(3)]
CORPUS = CORPUS_PARTS[0]
TUNING_SCORED_ON = "sample_texts:finetune-text score_ngrams:finetune-text,base-small " + OVERLAPS[2] + OVERLAPS[3]
TUNING_WRITTEN = "build_corpus:finetune-text " + TUNING_SCORED_ON + OVERLAPS[1] + shards(TUNING_SET) + FINETUNE
TUNING_PARTS = [f"read_part:finetune-text,0000{number} {TUNING_WRITTEN}" for number in range(3)]
TUNING = TUNING_PARTS[0]
# Where tokenizer and base model come from elsewhere, they do not depend on the corpus.
FETCHED_WRITTEN = (
    "build_corpus:corpus evaluate_tokenizer "
    + SCORED_ON + "score_ngrams:corpus,tokenizer score_ngrams:corpus,base-small score_causal:finetune/python "
    + shards(CORPUS_SET, ["validation"]) + RECORDS + " " + MEASURES
)  # fmt: skip
FETCHED_CORPUS = "read_part:corpus,00000 read_part:corpus,00001 read_part:corpus,00002 " + FETCHED_WRITTEN
FETCHED_PARTS = [f"read_part:corpus,0000{number} {FETCHED_WRITTEN}" for number in range(3)]
FETCHED_TUNING_PARTS = [part.replace(OVERLAPS[1], "") for part in TUNING_PARTS]
FETCHED_TUNING = FETCHED_TUNING_PARTS[0] + " read_part:finetune-text,00001 read_part:finetune-text,00002"
FETCHED_BASE = "fetch_base:small " + NGRAMS + shards(CORPUS_SET, ["validation"]) + shards(TUNING_SET) + FINETUNE
PUBLISHED = "fetch_mlm:mlm/asked/model fill_mask:mlm/asked/fill_mask score_ngrams:corpus,mlm-asked score_mlm:mlm/asked"
# A run takes the model that it starts from, and the records its tokenizer, from the same place.
ORIGINS = ("tokenizer", "mlm.runs.tiny.init")
FETCHED_TOKENIZER = "fetch_tokenizer evaluate_tokenizer score_ngrams:corpus,tokenizer " + RECORDS
STARTED = "fetch_mlm:mlm/tiny/init " + FETCHED_TOKENIZER

# A task of the harness is asked again, of every causal model.
ANSWERS = "run_harness:{0},base/small run_harness:{0},finetune/python "
QUESTIONS = ANSWERS + "read_harness_task:{0} find_overlap:harness/{0},corpus find_overlap:harness/{0},finetune-text"
# The last checkpoints are scored.
STEPS = (
    "export_mlm_at_step:tiny,00000020 score_mlm:mlm/tiny/00000020 "
    "export_base_at_step:small,00000020 score_causal:base/small/00000020 "
    "score_causal:finetune/python/00000010 "
    "plot_checkpoints:mlm/tiny plot_checkpoints:base/small plot_checkpoints:finetune/python"
)

# Every checkpoint is scored, and selected by that; what follows from a base model is trained anew.
SELECTED = (
    STEPS + " score_mlm:mlm/tiny/00000010 export_mlm_at_step:tiny,00000010 "
    "score_causal:base/small/00000010 export_base_at_step:small,00000010 "
    "score_causal:finetune/python/00000005 "
    "select_checkpoint:mlm/tiny select_checkpoint:base/small select_checkpoint:finetune/python "
    "export_mlm:tiny evaluate_mlm:tiny fill_mask:mlm/tiny/fill_mask score_mlm:mlm/tiny "
    "keep_run:mlm/tiny export_base:small export_transformers:base,small evaluate_base:small "
    "score_causal:base/small keep_run:base/small " + FINETUNE
)

A, B = "a" * 40, "b" * 40
HUB = {
    "source": "hub", "dataset": "some/set", "name": "one", "revision": A,
    "splits": {"train": "train", "validation": "validation", "test": "test"},
}  # fmt: skip
LISTED = {"source": "files", "files": ["text/*.txt"], "held_out": {"validation": 0.1, "test": 0.1}}
FILTERED = LISTED | {
    "near_duplicates": {}, "decontaminate": {"files": ["text/d.txt"]},
    "filters": {"c4": {}, "gopher_quality": {}, "gopher_repetition": {}},
}  # fmt: skip
NAMED = {"source": "files", "files": {"train": ["text/a.txt"], "validation": ["text/b.txt"], "test": ["text/c.txt"]}}
MIXED = {"sources": {"hub": HUB, "listed": {"source": "files", "files": ["text/*.txt"]}, "named": NAMED}}
INFERENCE_MODELS = HUB | {"template": "{question}", "response": "{answer}"}
CHATTED = HUB | {"messages": "talk"}
CHAT = {"chat_template": "some/model", "chat_template_revision": A}
LINEAR = {"shape": "linear", "warmup_steps": 2}

JAX = {"mlm.runs.tiny.backend": "jax", "mlm.runs.tiny.host_device_count": 2}

# Runs on JAX by key of the schema and of the config, with what follows from them; other values of Adafactor's keys.
ON_JAX = (
    ("mlm.runs.NAME", "mlm.runs.tiny", MLM_JAX),
    ("base.NAME", "base.small", BASE),
    ("finetune.runs.NAME", "finetune.runs.python", FINETUNE),
)
OTHER_OPTIMIZER = {
    "name": "lion", "beta_2_decay": -0.7, "epsilon_1": 1e-20, "epsilon_2": 1e-4, "clip_threshold": 2.0,
}  # fmt: skip

SECOND = {
    "base": "small", "sequence_length": 64, "steps": 10, "checkpoint_every": 5, "batch_size": 8, "learning_rate": 0.001,
    "rank": 8,
}  # fmt: skip
TASK = "task: own\ndataset_path: json\ndataset_kwargs: {data_files: text/data.jsonl}\n"
# TFRecords that were made elsewhere, and the jobs that take them.
FILED = {
    "source": "files", "sequence_length": 128,
    "files": {
        "train": ["text/train-[0-3].tfrecord"], "validation": ["text/validation.tfrecord"],
        "test": ["text/test.tfrecord"],
    },
}  # fmt: skip
FETCHED_RECORDS = RECORDS.replace("write_shard", "fetch_shard")
FETCHED_SHARD = "fetch_shard:{} " + RECORDS[RECORDS.index("merge_manifest") :]

# Tasks, each with two segments from a model's weights and two from random ones.
LABELLED = {
    "steps": 4, "checkpoint_every": 2, "batch_size": 4, "learning_rates": [0.001], "sequence_length": 16, "seeds": [0],
    "baselines": ["majority", "random_weights"], "schedule": {"shape": "wsd", "warmup_steps": 1, "decay_steps": 1},
}  # fmt: skip
TASKS = {
    "filed": LABELLED | {
        "source": "files", "files": {split: ["text/a.jsonl"] for split in ("train", "validation", "test")},
    },
    "hubbed": LABELLED | {"source": "hub", "text_pair": "other", "mesh": [1, 1]} | {
        key: HUB[key] for key in ("dataset", "name", "revision", "splits")
    },
    "moduled": LABELLED | {
        "source": "python-modules", "modules": ["json", "email"], "optimizer": {"name": "adafactor"}, "mesh": [-1, 1],
        "host_device_count": 2,
    },
}  # fmt: skip


def jobs_of_task(task, first=2, steps=(2, 4), rate="0.001", seed=0, weights=("pretrained", "random"), model="mlm/tiny"):
    """Return the jobs that train a task's chains from a segment on, and what follows from them."""
    found = f"predict_task:{task},{model} score_task:{task},{model} "
    for start in weights:
        chain = f"evaluation/tasks/{task}/{model}/{start}-rate-{rate}-seed-{seed}"
        found += "".join(f"train_task:{chain},{step:08d} " for step in steps if step >= first)
        found += "".join(f"prune_checkpoint:{chain},{step:08d} " for step in steps[:-1] if step >= first - 2)
    return found


def rows_of_tasks():
    """Yield the rows of evaluation.tasks."""
    key = "evaluation.tasks.NAME"
    trained = {task: jobs_of_task(task) for task in TASKS}
    read = "read_task:{0} fit_task_baselines:{0} find_overlap:tasks/{0},corpus "
    again = {task: read.format(task) + jobs for task, jobs in trained.items()}
    second = jobs_of_task("filed", first=4)
    scored = "score_task:filed,mlm/tiny"
    yield f"{key}.source", "tasks", "evaluation.tasks.filed", TASKS["moduled"] | {
        "optimizer": {}, "host_device_count": 1}, again["filed"]  # fmt: skip
    for name, value, jobs in [
        ("title", "Other words", scored),
        ("predict", "number", again["filed"]),
        ("files", ["text/a.jsonl"], again["filed"]),
        ("files.train", ["text/b.jsonl"], again["filed"]),
        ("files.validation", ["text/b.jsonl"], again["filed"]),
        ("files.test", ["text/b.jsonl"], again["filed"]),
        ("text", "body", again["filed"]),
        ("label", "class", again["filed"]),
        ("models", ["mlm/tiny"], ""),
        # Only the first segment reads the other task's weights.
        ("init", "moduled", "".join(jobs_of_task("filed", weights=("pretrained",)))),
        ("metrics", ["f1"], scored),
        ("baselines", ["majority", "bag_of_words", "random_weights"], f"fit_task_baselines:filed {scored}"),
        ("sequence_length", 24, trained["filed"]),
        ("steps", 6, jobs_of_task("filed", first=4, steps=(2, 4, 6))),
        ("checkpoint_every", 1, jobs_of_task("filed", first=0, steps=(1, 2, 3, 4))),
        ("batch_size", 8, trained["filed"]),
        ("learning_rates", [0.002], jobs_of_task("filed", first=0, rate="0.002")),
        ("seeds", [1], jobs_of_task("filed", first=0, seed=1)),
        (
            "checkpoints",
            "last",
            "export_mlm_at_step:tiny,00000020 plot_checkpoints:mlm/tiny "
            + jobs_of_task("filed", weights=("pretrained",), model="mlm/tiny/00000020"),
        ),
        ("schedule.warmup_steps", 2, trained["filed"]),
        ("schedule.decay_steps", 2, second),
        ("schedule.final_learning_rate", 0.0001, second),
        ("optimizer.name", "lion", trained["filed"]),
        ("optimizer.weight_decay", 0.02, trained["filed"]),
        ("optimizer.beta_1", 0.8, trained["filed"]),
        ("optimizer.beta_2", 0.98, trained["filed"]),
        ("optimizer.epsilon", 1e-6, trained["filed"]),
        ("optimizer.global_clipnorm", 1.0, trained["filed"]),
        ("precision", "mixed_bfloat16", trained["filed"]),
        ("keep_checkpoints", "all", ""),
        ("resources.accelerator", "v5e-8", ""),
        ("resources.mem_gb", 16, ""),
        ("resources.runtime", 30, ""),
        ("resources.snapshot_every", 5, ""),
    ]:
        yield f"{key}.{name}", "tasks", f"evaluation.tasks.filed.{name}", value, jobs
    cosine = {"shape": "cosine", "warmup_steps": 1}
    yield f"{key}.schedule.shape", "tasks", "evaluation.tasks.filed.schedule", cosine, trained["filed"]
    for name, value in {
        "dataset": "some/other", "name": "two", "revision": B, "splits.train": "train[:90%]",
        "splits.validation": "test[:9%]", "splits.test": "test[9%:]", "text_pair": "third",
    }.items():  # fmt: skip
        yield f"{key}.{name}", "tasks", f"evaluation.tasks.hubbed.{name}", value, again["hubbed"]
    for name, value, jobs in [
        ("modules", ["json", "random"], again["moduled"]),
        ("held_out.validation", 0.2, again["moduled"]),
        ("held_out.test", 0.2, again["moduled"]),
        ("held_out.seed", 1, again["moduled"]),
        ("mesh", [2, 1], trained["moduled"]),
        ("host_device_count", 4, trained["moduled"]),
        ("resources.hosts", 2, ""),
        *(
            (f"optimizer.{name}", OTHER_OPTIMIZER[name], trained["moduled"])
            for name in OTHER_OPTIMIZER
            if name != "name"
        ),
    ]:
        yield f"{key}.{name}", "tasks", f"evaluation.tasks.moduled.{name}", value, jobs


def files_of_tasks(folder):
    """Yield the paths of what the jobs of TASKS make."""
    for task in TASKS:
        place = folder / "results/evaluation/tasks" / task
        yield from (place / f"{name}.parquet" for name in ("train", "validation", "test", "baselines"))
        yield place / "task.json"
        yield place / "overlap/corpus.json"
        model = place / "mlm/tiny"
        yield from (model / name for name in ("predictions.parquet", "scores.json", "items.parquet", "chains.csv"))
        for weights in ("pretrained", "random"):
            for step in ("00000002", "00000004"):
                checkpoint = model / f"{weights}-rate-0.001-seed-0/checkpoints/{step}"
                for part in ("weights", "optimizer", "best"):
                    yield checkpoint / f"{part}.safetensors"
                yield from (checkpoint / name for name in ("state.json", "history.csv", "timings.csv"))
                if step == "00000002":
                    yield checkpoint / "pruned.json"


# States in which everything is up to date: the config of `trained` with keys replaced.
STATES = {
    "trained": {},
    "listed": {"corpus": LISTED, "finetune.text": LISTED},
    "named": {"corpus": NAMED, "finetune.text": NAMED},
    "filtered": {"corpus": FILTERED, "finetune.text": FILTERED},
    "asked": {"corpus": INFERENCE_MODELS, "finetune.text": {"sources": {"one": INFERENCE_MODELS}}},
    "answered": {"corpus": {"sources": {"one": INFERENCE_MODELS}}, "finetune.text": INFERENCE_MODELS},
    "chatted": {"corpus": CHATTED | CHAT, "finetune.text": CHAT | {"sources": {"one": CHATTED}}},
    "talked": {"corpus": CHAT | {"sources": {"one": CHATTED}}, "finetune.text": CHATTED | CHAT},
    "mixed": {"corpus": MIXED, "finetune.text": MIXED},
    "fetched": {
        "corpus": HUB, "finetune.text": HUB, "tokenizer": {"pretrained": "some/tokenizer", "revision": A},
        "base": {"small": {"preset": "hf://some/base", "revision": A}},
    },
    "schedules": {
        "mlm.runs.tiny.schedule": LINEAR,
        "base.small.schedule": LINEAR, "base.small.mesh": [-1, 1], "base.small.host_device_count": 2,
        "finetune.runs.python.schedule": {"shape": "wsd", "warmup_steps": 2, "decay_steps": 4},
        "finetune.runs.python.mesh": [1, -1],
        "base.given": {
            "preset": "hf://some/base", "revision": A, "adapter": "hf://some/adapter", "adapter_revision": A,
        },
    },
    "shards": {"tokenizer": {"pretrained": "some/tokenizer", "revision": A}, "tfrecords": FILED},
    "jax": JAX,
    "continued": {"finetune.runs.second": SECOND | {"init": "python"}},
    "elsewhere": {
        "tokenizer": {"pretrained": "some/model", "revision": A},
        "mlm.runs.tiny.model": DELETE, "mlm.runs.tiny.init": {"pretrained": "some/model", "revision": A},
        "mlm.runs.asked": {"pretrained": "some/other", "revision": A},
    },
    "posed": {
        "evaluation.harness": {"own": {"file": "text/task.yaml"}, "known": {"task": "piqa", "revision": A}},
    },
    "tasks": {"evaluation.tasks": TASKS},
    "paired": {
        "evaluation.pairs.sets": {
            "mine": {"files": ["text/pairs.jsonl"]},
            "theirs": {"dataset": "some/set", "name": "one", "revision": A, "split": "test"},
        }
    },
    "adafactor": JAX | {f"{run}.optimizer": {"name": "adafactor"} for _, run, _ in ON_JAX},
}  # fmt: skip


def rows_of_sources(text, collection, written):
    """Yield the rows of a text's sources: in MIXED, parts 0 to 2 are of hub, 3 of listed, 4 to 6 of named."""
    own = [f"read_part:{collection},0000{number} " for number in range(7)]
    yield f"{text}.sources.NAME.source", "mixed", f"{text}.sources.listed", {"source": "python-docs"}, own[3] + written
    yield f"{text}.sources.NAME.weight", "mixed", f"{text}.sources.listed.weight", 2.5, written
    for key, source, value, parts in [
        ("files", "listed", ["text/a.txt"], own[3]),
        ("files.train", "named", ["text/d.txt"], own[4]),
        ("files.validation", "named", ["text/d.txt"], own[5]),
        ("files.test", "named", ["text/d.txt"], own[6]),
        ("sample_by", "listed", "document", own[3]),
        ("column", "hub", "body", own[0] + own[1] + own[2]),
        ("dataset", "hub", "some/other", own[0] + own[1] + own[2]),
        ("name", "hub", "two", own[0] + own[1] + own[2]),
        ("revision", "hub", B, own[0] + own[1] + own[2]),
        ("splits.train", "hub", "train[:90%]", own[0]),
        ("splits.validation", "hub", "test[:9%]", own[1]),
        ("splits.test", "hub", "test[9%:]", own[2]),
    ]:
        yield f"{text}.sources.NAME.{key}", "mixed", f"{text}.sources.{source}.{key}", value, parts + written


OPTIONS = {
    "near_duplicates": {"threshold": 0.7, "ngram": 3},
    "filters.c4": {
        "end_marks": False, "min_words_per_line": 3, "javascript": False, "policies": False, "min_sentences": 3,
        "curly_brackets": False, "lorem_ipsum": False,
    },
    "filters.gopher_quality": {
        "min_words": 40, "max_words": 99, "min_mean_word_length": 2, "max_mean_word_length": 9,
        "max_symbol_word_ratio": 0.2, "max_bullet_lines": 0.8, "max_ellipsis_lines": 0.2, "min_alphabetic_words": 0.7,
    },
    "filters.gopher_repetition": {
        "max_duplicate_lines": 0.1, "max_duplicate_line_characters": 0.1, "max_duplicate_paragraphs": 0.1,
        "max_duplicate_paragraph_characters": 0.1, "max_top_ngram_characters": [0.2, 0.2, 0.2],
        "max_duplicate_ngram_characters": [0.1, 0.1, 0.1, 0.1, 0.1, 0.1],
    },
}  # fmt: skip


def rows_of_templates(text, collection, states, written):
    """Yield the rows of the templates of a text that is, in two states, one source or several."""
    again = "".join(f"read_part:{collection},0000{number} " for number in range(3)) + written
    for name in ("template", "response"):
        yield f"{text}.{name}", states[0], f"{text}.{name}", "{other}", again
        yield f"{text}.sources.NAME.{name}", states[1], f"{text}.sources.one.{name}", "{other}", again


def rows_of_conversations(text, collection, states, written):
    """Yield the rows of the conversations of a text that is, in two states, one source or several."""
    again = "".join(f"read_part:{collection},0000{number} " for number in range(3)) + written
    yield f"{text}.messages", states[0], f"{text}.messages", "other", again
    yield f"{text}.sources.NAME.messages", states[1], f"{text}.sources.one.messages", "other", again
    again = f"fetch_chat_template:{collection} {again}"
    yield f"{text}.chat_template", states[0], f"{text}.chat_template", "gemma", again
    yield f"{text}.chat_template_revision", states[1], f"{text}.chat_template_revision", B, again


def rows_of_options(text, collection, written):
    """Yield the rows of what takes documents out of a text: in FILTERED, all of it is on."""
    found = f"collect_ngrams:{collection} find_contamination:{collection},00000 " + written
    for name, value in {"ngram": 8, "files": ["text/c.txt"], "column": "body"}.items():
        yield f"{text}.decontaminate.{name}", "filtered", f"{text}.decontaminate.{name}", value, found
    again = f"read_part:{collection},00000 assign_splits:{collection} {found}"
    for option, limits in OPTIONS.items():
        for name, value in limits.items():
            yield f"{text}.{option}.{name}", "filtered", f"{text}.{option}.{name}", value, again


# (key of the schema, state, key of the config, new value, jobs); with None for the key, new values by key
ROWS = [
    *rows_of_templates("corpus", "corpus", ("asked", "answered"), WRITTEN),
    *rows_of_templates("finetune.text", "finetune-text", ("answered", "asked"), TUNING_WRITTEN),
    *rows_of_conversations("corpus", "corpus", ("chatted", "talked"), WRITTEN),
    *rows_of_conversations("finetune.text", "finetune-text", ("talked", "chatted"), TUNING_WRITTEN),
    *rows_of_options("corpus", "corpus", WRITTEN),
    *rows_of_options("finetune.text", "finetune-text", TUNING_WRITTEN),
    *rows_of_sources("corpus", "corpus", WRITTEN),
    *rows_of_sources("finetune.text", "finetune-text", TUNING_WRITTEN),
    *rows_of_tasks(),
    ("title", "trained", "title", "Other words", ""),
    ("trackers", "trained", "trackers", [], ""),
    ("cpu_threads", "trained", "cpu_threads", 2, MLM + " " + BASE),
    ("corpus.source", "trained", "corpus.source", "python-source", CORPUS),
    ("corpus.files", "listed", "corpus.files", ["text/a.txt"], CORPUS),
    ("corpus.files.train", "named", "corpus.files.train", ["text/d.txt"], CORPUS_PARTS[0]),
    ("corpus.files.validation", "named", "corpus.files.validation", ["text/d.txt"], CORPUS_PARTS[1]),
    ("corpus.files.test", "named", "corpus.files.test", ["text/d.txt"], CORPUS_PARTS[2]),
    ("corpus.sample_by", "listed", "corpus.sample_by", "document", CORPUS),
    ("corpus.column", "listed", "corpus.column", "body", CORPUS),
    ("corpus.dataset", "fetched", "corpus.dataset", "some/other", FETCHED_CORPUS),
    ("corpus.name", "fetched", "corpus.name", "two", FETCHED_CORPUS),
    ("corpus.revision", "fetched", "corpus.revision", B, FETCHED_CORPUS),
    ("corpus.splits.train", "fetched", "corpus.splits.train", "train[:90%]", FETCHED_PARTS[0]),
    ("corpus.splits.validation", "fetched", "corpus.splits.validation", "test[:9%]", FETCHED_PARTS[1]),
    ("corpus.splits.test", "fetched", "corpus.splits.test", "test[9%:]", FETCHED_PARTS[2]),
    ("corpus.held_out.validation", "trained", "corpus.held_out.validation", 0.06, WRITTEN),
    ("corpus.held_out.test", "trained", "corpus.held_out.test", 0.06, WRITTEN),
    ("corpus.seed", "trained", "corpus.seed", 1, CORPUS),
    ("corpus.min_characters", "trained", "corpus.min_characters", 5, CORPUS),
    ("corpus.max_documents", "trained", "corpus.max_documents", 5000, WRITTEN),
    ("tokenizer.vocab_size", "trained", "tokenizer.vocab_size", 2049, TOKENIZER),
    ("tokenizer.model", "trained", "tokenizer.model", "bpe", TOKENIZER),
    ("tokenizer.train_on.characters", "trained", "tokenizer.train_on.characters", 10**6, TOKENIZER),
    ("tokenizer.train_on.seed", "trained", "tokenizer.train_on.seed", 1, TOKENIZER),
    ("tokenizer.pretrained", "fetched", "tokenizer.pretrained", "some/other", FETCHED_TOKENIZER),
    ("tokenizer.revision", "fetched", "tokenizer.revision", B, FETCHED_TOKENIZER),
    ("tfrecords.source", "fetched", "tfrecords", FILED, FETCHED_RECORDS),
    (
        "tfrecords.files.train", "shards", "tfrecords.files.train",
        ["text/train-[0-2].tfrecord", "text/train-9.tfrecord"], FETCHED_SHARD.format("train,00003,00004"),
    ),
    (
        "tfrecords.files.validation", "shards", "tfrecords.files.validation", ["text/train-9.tfrecord"],
        FETCHED_SHARD.format("validation,00000,00001"),
    ),
    (
        "tfrecords.files.test", "shards", "tfrecords.files.test", ["text/train-9.tfrecord"],
        FETCHED_SHARD.format("test,00000,00001"),
    ),
    ("tfrecords.packing", "trained", "tfrecords.packing", "pad", RECORDS),
    ("tfrecords.sequence_length", "trained", "tfrecords.sequence_length", 127, RECORDS),
    (
        "tfrecords.shards.train", "trained", "tfrecords.shards.train", 2,
        "write_shard:train,00000,00002 write_shard:train,00001,00002 "
        "merge_manifest:tfrecords " + MLM,
    ),
    (
        "tfrecords.shards.validation", "trained", "tfrecords.shards.validation", 2,
        "write_shard:validation,00000,00002 write_shard:validation,00001,00002 "
        "merge_manifest:tfrecords " + MLM,
    ),
    # The trainer reads no test shard, but the manifest names all.
    (
        "tfrecords.shards.test", "trained", "tfrecords.shards.test", 2,
        "write_shard:test,00000,00002 write_shard:test,00001,00002 "
        "merge_manifest:tfrecords " + MLM,
    ),
    *(
        (f"mlm.runs.NAME.{key}", "elsewhere", f"mlm.runs.asked.{key}", value, PUBLISHED)
        for key, value in {"pretrained": "some/third", "revision": B}.items()
    ),
    *(
        (f"mlm.runs.NAME.init.{key}", "elsewhere", None, {f"{place}.{key}": value for place in ORIGINS}, STARTED)
        for key, value in {"pretrained": "some/third", "revision": B}.items()
    ),
    ("mlm.runs.NAME.backend", "trained", "mlm.runs.tiny.backend", "jax", MLM_JAX),
    ("mlm.runs.NAME.mesh", "jax", "mlm.runs.tiny.mesh", [1, 2], MLM_JAX),
    ("mlm.runs.NAME.microbatches", "jax", "mlm.runs.tiny.microbatches", 2, MLM_JAX),
    ("mlm.runs.NAME.determinism", "jax", "mlm.runs.tiny.determinism", "steps", MLM_JAX),
    ("mlm.runs.NAME.remat", "jax", "mlm.runs.tiny.remat", True, MLM_JAX),
    ("mlm.runs.NAME.steps_per_execution", "jax", "mlm.runs.tiny.steps_per_execution", 10, MLM_JAX),
    ("mlm.runs.NAME.model.architecture", "trained", "mlm.runs.tiny.model.architecture", "bert", MLM),
    ("mlm.runs.NAME.model.hidden_size", "trained", "mlm.runs.tiny.model.hidden_size", 64, MLM),
    ("mlm.runs.NAME.model.num_attention_heads", "trained", "mlm.runs.tiny.model.num_attention_heads", 4, MLM),
    ("mlm.runs.NAME.model.max_position_embeddings", "trained", "mlm.runs.tiny.model.max_position_embeddings", 140, MLM),
    ("mlm.runs.NAME.steps", "trained", "mlm.runs.tiny.steps", 30, "train_mlm_tensorflow:tiny,00000030 " + MLM_SECOND),
    (
        "mlm.runs.NAME.checkpoint_every", "trained", "mlm.runs.tiny.checkpoint_every", 5,
        "train_mlm_tensorflow:tiny,00000005 train_mlm_tensorflow:tiny,00000015 " + MLM,
    ),
    ("mlm.runs.NAME.batch_size", "trained", "mlm.runs.tiny.batch_size", 32, MLM),
    ("mlm.runs.NAME.learning_rate", "trained", "mlm.runs.tiny.learning_rate", 0.002, MLM),
    ("mlm.runs.NAME.schedule.shape", "schedules", "mlm.runs.tiny.schedule.shape", "cosine", MLM),
    ("mlm.runs.NAME.schedule.warmup_steps", "trained", "mlm.runs.tiny.schedule.warmup_steps", 5, MLM),
    ("mlm.runs.NAME.schedule.decay_steps", "trained", "mlm.runs.tiny.schedule.decay_steps", 6, MLM_SECOND),
    (
        "mlm.runs.NAME.schedule.final_learning_rate", "trained", "mlm.runs.tiny.schedule.final_learning_rate", 1e-4,
        MLM_SECOND,
    ),
    ("mlm.runs.NAME.profile.steps", "jax", "mlm.runs.tiny.profile.steps", [2, 4], ""),
    ("mlm.runs.NAME.evaluate_every", "trained", "mlm.runs.tiny.evaluate_every", 5, MLM),
    # It takes two evaluations until patience can run out: there is no third segment.
    ("mlm.runs.NAME.patience", "trained", "mlm.runs.tiny.patience", 1, ""),
    (
        "mlm.runs.NAME.keep_checkpoints", "trained", "mlm.runs.tiny.keep_checkpoints", "last",
        "prune_checkpoint:mlm/tiny,00000010",
    ),
    ("mlm.runs.NAME.optimizer.weight_decay", "trained", "mlm.runs.tiny.optimizer.weight_decay", 0.02, MLM),
    ("mlm.runs.NAME.optimizer.beta_1", "trained", "mlm.runs.tiny.optimizer.beta_1", 0.8, MLM),
    ("mlm.runs.NAME.optimizer.beta_2", "trained", "mlm.runs.tiny.optimizer.beta_2", 0.98, MLM),
    ("mlm.runs.NAME.optimizer.epsilon", "trained", "mlm.runs.tiny.optimizer.epsilon", 1e-6, MLM),
    ("mlm.runs.NAME.optimizer.global_clipnorm", "trained", "mlm.runs.tiny.optimizer.global_clipnorm", None, MLM),
    ("mlm.runs.NAME.masking.mlm_probability", "trained", "mlm.runs.tiny.masking.mlm_probability", 0.2, MLM),
    ("mlm.runs.NAME.masking.mask_replace_prob", "trained", "mlm.runs.tiny.masking.mask_replace_prob", 0.7, MLM),
    ("mlm.runs.NAME.masking.random_replace_prob", "trained", "mlm.runs.tiny.masking.random_replace_prob", 0.2, MLM),
    ("mlm.runs.NAME.z_loss", "jax", "mlm.runs.tiny.z_loss", 1e-4, MLM_JAX),
    ("mlm.runs.NAME.precision", "trained", "mlm.runs.tiny.precision", "mixed_bfloat16", MLM),
    ("mlm.runs.NAME.host_device_count", "trained", "mlm.runs.tiny.host_device_count", 2, MLM),
    ("mlm.runs.NAME.resources.accelerator", "trained", "mlm.runs.tiny.resources.accelerator", "v5e-8", ""),
    ("mlm.runs.NAME.resources.hosts", "jax", "mlm.runs.tiny.resources.hosts", 2, ""),
    ("mlm.runs.NAME.resources.mem_gb", "trained", "mlm.runs.tiny.resources.mem_gb", 16, ""),
    ("mlm.runs.NAME.resources.runtime", "trained", "mlm.runs.tiny.resources.runtime", 30, ""),
    ("mlm.runs.NAME.resources.snapshot_every", "trained", "mlm.runs.tiny.resources.snapshot_every", 5, ""),
    ("mlm.runs.NAME.seed", "trained", "mlm.runs.tiny.seed", 1, MLM),
    # A run of another name, with the files that it has by that name.
    ("mlm.runs.NAME.sweep", "trained", "mlm.runs.tiny.sweep", {"seed": [0]}, MLM.replace("tiny", "tiny-seed-0")),
    (
        "finetune.runs.NAME.sweep", "trained", "finetune.runs.python.sweep", {"seed": [0]},
        FINETUNE.replace("python", "python-seed-0"),
    ),
    (
        "base.NAME.sweep", "trained", "base.twin", {"sweep": {"preset": ["gemma_2b_en"]}},
        "fetch_base:twin-preset-gemma_2b_en",
    ),
    ("base.NAME.adapter", "fetched", "base.small.adapter", "text/adapter", FETCHED_BASE),
    ("base.NAME.adapter_revision", "schedules", "base.given.adapter_revision", B, "fetch_base:given"),
    ("base.NAME.preset", "fetched", "base.small.preset", "hf://some/other", FETCHED_BASE),
    ("base.NAME.revision", "fetched", "base.small.revision", B, FETCHED_BASE),
    ("base.NAME.model.num_layers", "trained", "base.small.model.num_layers", 3, BASE),
    ("base.NAME.model.num_query_heads", "trained", "base.small.model.num_query_heads", 16, BASE),
    ("base.NAME.model.num_key_value_heads", "trained", "base.small.model.num_key_value_heads", 4, BASE),
    ("base.NAME.model.hidden_dim", "trained", "base.small.model.hidden_dim", 64, BASE),
    ("base.NAME.model.intermediate_dim", "trained", "base.small.model.intermediate_dim", 512, BASE),
    ("base.NAME.model.head_dim", "trained", "base.small.model.head_dim", 8, BASE),
    ("base.NAME.model.layer_norm_epsilon", "trained", "base.small.model.layer_norm_epsilon", 1e-5, BASE),
    ("base.NAME.model.dropout", "trained", "base.small.model.dropout", 0.1, BASE),
    ("base.NAME.vocab_size", "trained", "base.small.vocab_size", 2049, VOCABULARY),
    ("base.NAME.sequence_length", "trained", "base.small.sequence_length", 32,
     BASE + " " + shards("tokens/small/corpus/concat-32")
     # The records of the tuning's length now only measure: two of their splits are not needed any more.
     + f"merge_manifest:{CORPUS_SET}"),
    ("base.NAME.packing", "trained", "base.small.packing", "pad", BASE + " " + shards("tokens/small/corpus/pad-64")),
    ("base.NAME.shards.train", "trained", "base.small.shards", {"train": 2},
     BASE + " " + RESHARDED.format(CORPUS_SET, "train")),
    ("base.NAME.shards.validation", "trained", "base.small.shards", {"validation": 2},
     BASE + " " + RESHARDED.format(CORPUS_SET, "validation")),
    ("base.NAME.shards.test", "trained", "base.small.shards", {"test": 2},
     BASE + " " + RESHARDED.format(CORPUS_SET, "test")),
    ("base.NAME.steps", "trained", "base.small.steps", 30, "train_base:small,00000030 " + BASE_SECOND),
    (
        "base.NAME.checkpoint_every", "trained", "base.small.checkpoint_every", 5,
        "train_base:small,00000005 train_base:small,00000015 " + BASE,
    ),
    ("base.NAME.batch_size", "trained", "base.small.batch_size", 8, BASE),
    ("base.NAME.learning_rate", "trained", "base.small.learning_rate", 0.002, BASE),
    ("base.NAME.schedule.shape", "schedules", "base.small.schedule.shape", "cosine", BASE),
    ("base.NAME.schedule.warmup_steps", "trained", "base.small.schedule.warmup_steps", 5, BASE),
    ("base.NAME.schedule.decay_steps", "trained", "base.small.schedule.decay_steps", 6, BASE_SECOND),
    ("base.NAME.schedule.final_learning_rate", "trained", "base.small.schedule.final_learning_rate", 1e-4, BASE_SECOND),
    ("base.NAME.profile.steps", "trained", "base.small.profile.steps", [2, 4], ""),
    ("base.NAME.evaluate_every", "trained", "base.small.evaluate_every", 5, BASE),
    ("base.NAME.patience", "trained", "base.small.patience", 1, ""),
    (
        "base.NAME.keep_checkpoints", "trained", "base.small.keep_checkpoints", "every 2",
        "prune_checkpoint:base/small,00000010",
    ),
    ("base.NAME.optimizer.weight_decay", "trained", "base.small.optimizer.weight_decay", 0.02, BASE),
    ("base.NAME.optimizer.beta_1", "trained", "base.small.optimizer.beta_1", 0.8, BASE),
    ("base.NAME.optimizer.beta_2", "trained", "base.small.optimizer.beta_2", 0.98, BASE),
    ("base.NAME.optimizer.epsilon", "trained", "base.small.optimizer.epsilon", 1e-6, BASE),
    ("base.NAME.optimizer.global_clipnorm", "trained", "base.small.optimizer.global_clipnorm", None, BASE),
    ("base.NAME.precision", "trained", "base.small.precision", "mixed_bfloat16", BASE),
    ("base.NAME.microbatches", "trained", "base.small.microbatches", 2, BASE),
    ("base.NAME.determinism", "trained", "base.small.determinism", "steps", BASE),
    ("base.NAME.remat", "trained", "base.small.remat", True, BASE),
    ("base.NAME.steps_per_execution", "trained", "base.small.steps_per_execution", 10, BASE),
    ("base.NAME.mesh", "trained", "base.small.mesh", [1, -1], BASE),
    ("base.NAME.host_device_count", "schedules", "base.small.host_device_count", 4, BASE),
    ("base.NAME.resources.accelerator", "trained", "base.small.resources.accelerator", "v5e-8", ""),
    ("base.NAME.resources.hosts", "schedules", "base.small.resources.hosts", 2, ""),
    ("base.NAME.resources.mem_gb", "trained", "base.small.resources.mem_gb", 16, ""),
    ("base.NAME.resources.runtime", "trained", "base.small.resources.runtime", 30, ""),
    ("base.NAME.resources.snapshot_every", "trained", "base.small.resources.snapshot_every", 5, ""),
    ("base.NAME.seed", "trained", "base.small.seed", 1, VOCABULARY),
    ("finetune.text.source", "trained", "finetune.text.source", "python-docs", TUNING),
    ("finetune.text.files", "listed", "finetune.text.files", ["text/a.txt"], TUNING),
    ("finetune.text.files.train", "named", "finetune.text.files.train", ["text/d.txt"], TUNING_PARTS[0]),
    ("finetune.text.files.validation", "named", "finetune.text.files.validation", ["text/d.txt"], TUNING_PARTS[1]),
    ("finetune.text.files.test", "named", "finetune.text.files.test", ["text/d.txt"], TUNING_PARTS[2]),
    ("finetune.text.sample_by", "listed", "finetune.text.sample_by", "document", TUNING),
    ("finetune.text.column", "listed", "finetune.text.column", "body", TUNING),
    ("finetune.text.dataset", "fetched", "finetune.text.dataset", "some/other", FETCHED_TUNING),
    ("finetune.text.name", "fetched", "finetune.text.name", "two", FETCHED_TUNING),
    ("finetune.text.revision", "fetched", "finetune.text.revision", B, FETCHED_TUNING),
    ("finetune.text.splits.train", "fetched", "finetune.text.splits.train", "train[:90%]", FETCHED_TUNING_PARTS[0]),
    (
        "finetune.text.splits.validation", "fetched", "finetune.text.splits.validation", "test[:9%]",
        FETCHED_TUNING_PARTS[1],
    ),
    ("finetune.text.splits.test", "fetched", "finetune.text.splits.test", "test[9%:]", FETCHED_TUNING_PARTS[2]),
    ("finetune.text.held_out.validation", "trained", "finetune.text.held_out.validation", 0.06, TUNING_WRITTEN),
    ("finetune.text.held_out.test", "trained", "finetune.text.held_out.test", 0.06, TUNING_WRITTEN),
    ("finetune.text.seed", "trained", "finetune.text.seed", 1, TUNING),
    ("finetune.text.min_characters", "trained", "finetune.text.min_characters", 5, TUNING),
    ("finetune.text.max_documents", "trained", "finetune.text.max_documents", 5000, TUNING_WRITTEN),
    (
        "finetune.runs.NAME.base", "schedules", "finetune.runs.python.base", "given",
        FINETUNE + " " + shards("tokens/given/corpus/concat-64", ["validation"])
        + shards("tokens/given/finetune-text/pad-64")
        + NGRAMS.replace("small", "given"),
    ),
    (
        "finetune.runs.NAME.method", "trained", "finetune.runs.python.method", "full",
        FINETUNE.replace("export_lora:python", "export_finetune:python export_transformers:finetune,python"),
    ),
    (
        "finetune.runs.NAME.init", "continued", "finetune.runs.second.init", DELETE,
        FINETUNE.replace("python", "second"),
    ),
    ("finetune.runs.NAME.rank", "trained", "finetune.runs.python.rank", 4, FINETUNE),
    *(
        (f"{key}.optimizer.{name}", "adafactor", f"{run}.optimizer.{name}", value, jobs)
        for key, run, jobs in ON_JAX
        for name, value in OTHER_OPTIMIZER.items()
    ),
    *(
        (f"{key}.layout.NAME", "adafactor", f"{run}.layout", {".*embeddings": [None, "model"]}, jobs)
        for key, run, jobs in ON_JAX
    ),
    ("base.NAME.model.architecture", "trained", "base.small.model.architecture", "gemma2", BASE),
    (
        "finetune.runs.NAME.merge", "trained", "finetune.runs.python.merge", True,
        "export_finetune:python export_transformers:finetune,python",
    ),
    ("finetune.runs.NAME.alpha", "trained", "finetune.runs.python.alpha", 16, FINETUNE),
    ("finetune.runs.NAME.targets", "trained", "finetune.runs.python.targets", ["query", "ffn"], FINETUNE),
    ("finetune.runs.NAME.base_precision", "trained", "finetune.runs.python.base_precision", "int8", FINETUNE),
    ("finetune.runs.NAME.sequence_length", "trained", "finetune.runs.python.sequence_length", 32,
     FINETUNE + " " + shards("tokens/small/finetune-text/pad-32")
     + shards("tokens/small/corpus/concat-32", ["validation"])),
    ("finetune.runs.NAME.packing", "trained", "finetune.runs.python.packing", "concat",
     FINETUNE + " " + shards("tokens/small/finetune-text/concat-64")),
    ("finetune.shards.train", "trained", "finetune.shards", {"train": 2},
     FINETUNE + " " + RESHARDED.format(TUNING_SET, "train")),
    ("finetune.shards.validation", "trained", "finetune.shards", {"validation": 2},
     FINETUNE + " " + RESHARDED.format(TUNING_SET, "validation")),
    ("finetune.shards.test", "trained", "finetune.shards", {"test": 2},
     FINETUNE + " " + RESHARDED.format(TUNING_SET, "test")),
    (
        "finetune.runs.NAME.steps", "trained", "finetune.runs.python.steps", 15,
        "train_finetune:python,00000015 " + FINETUNE,
    ),
    (
        "finetune.runs.NAME.checkpoint_every", "trained", "finetune.runs.python.checkpoint_every", 2,
        "train_finetune:python,00000002 train_finetune:python,00000004 train_finetune:python,00000006 "
        "train_finetune:python,00000008 " + LORA_SECOND,
    ),
    ("finetune.runs.NAME.batch_size", "trained", "finetune.runs.python.batch_size", 8, FINETUNE),
    ("finetune.runs.NAME.learning_rate", "trained", "finetune.runs.python.learning_rate", 0.01, FINETUNE),
    ("finetune.runs.NAME.schedule.shape", "trained", "finetune.runs.python.schedule.shape", "cosine", FINETUNE),
    ("finetune.runs.NAME.schedule.warmup_steps", "trained", "finetune.runs.python.schedule.warmup_steps", 4, FINETUNE),
    (
        "finetune.runs.NAME.schedule.decay_steps", "schedules", "finetune.runs.python.schedule.decay_steps", 3,
        LORA_SECOND,
    ),
    (
        "finetune.runs.NAME.schedule.final_learning_rate", "schedules",
        "finetune.runs.python.schedule.final_learning_rate", 1e-4, LORA_SECOND,
    ),
    ("finetune.runs.NAME.profile.steps", "trained", "finetune.runs.python.profile.steps", [2, 4], ""),
    ("finetune.runs.NAME.evaluate_every", "trained", "finetune.runs.python.evaluate_every", 5, FINETUNE),
    ("finetune.runs.NAME.patience", "trained", "finetune.runs.python.patience", 1, ""),
    (
        "finetune.runs.NAME.keep_checkpoints", "trained", "finetune.runs.python.keep_checkpoints", "last",
        "prune_checkpoint:finetune/python,00000005",
    ),
    (
        "finetune.runs.NAME.optimizer.weight_decay", "trained", "finetune.runs.python.optimizer.weight_decay", 0.02,
        FINETUNE,
    ),
    ("finetune.runs.NAME.optimizer.beta_1", "trained", "finetune.runs.python.optimizer.beta_1", 0.8, FINETUNE),
    ("finetune.runs.NAME.optimizer.beta_2", "trained", "finetune.runs.python.optimizer.beta_2", 0.98, FINETUNE),
    ("finetune.runs.NAME.optimizer.epsilon", "trained", "finetune.runs.python.optimizer.epsilon", 1e-6, FINETUNE),
    (
        "finetune.runs.NAME.optimizer.global_clipnorm", "trained", "finetune.runs.python.optimizer.global_clipnorm",
        None, FINETUNE,
    ),
    ("finetune.runs.NAME.precision", "trained", "finetune.runs.python.precision", "mixed_bfloat16", FINETUNE),
    ("finetune.runs.NAME.microbatches", "trained", "finetune.runs.python.microbatches", 2, FINETUNE),
    ("finetune.runs.NAME.determinism", "trained", "finetune.runs.python.determinism", "steps", FINETUNE),
    ("finetune.runs.NAME.remat", "trained", "finetune.runs.python.remat", True, FINETUNE),
    ("finetune.runs.NAME.steps_per_execution", "trained", "finetune.runs.python.steps_per_execution", 5, FINETUNE),
    ("finetune.runs.NAME.mesh", "trained", "finetune.runs.python.mesh", [2, 4], FINETUNE),
    ("finetune.runs.NAME.host_device_count", "schedules", "finetune.runs.python.host_device_count", 4, FINETUNE),
    ("finetune.runs.NAME.resources.accelerator", "trained", "finetune.runs.python.resources.accelerator", "v5e-8", ""),
    ("finetune.runs.NAME.resources.hosts", "trained", "finetune.runs.python.resources.hosts", 2, ""),
    ("finetune.runs.NAME.resources.mem_gb", "trained", "finetune.runs.python.resources.mem_gb", 16, ""),
    ("finetune.runs.NAME.resources.runtime", "trained", "finetune.runs.python.resources.runtime", 30, ""),
    ("finetune.runs.NAME.resources.snapshot_every", "trained", "finetune.runs.python.resources.snapshot_every", 5, ""),
    ("finetune.runs.NAME.seed", "trained", "finetune.runs.python.seed", 1, FINETUNE),
    (
        "prompts.fill_mask", "trained", "prompts.fill_mask", ["A [MASK]."],
        "fill_mask:mlm/tiny/fill_mask ",
    ),
    ("prompts.generate", "trained", "prompts.generate", ["class "], SAMPLES),
    (
        "prompts.checkpoints", "trained", "prompts.checkpoints", "last",
        "export_mlm_at_step:tiny,00000020 fill_mask:samples/mlm/tiny/00000020 "
        "export_base_at_step:small,00000020 sample_checkpoint:base/small/00000020 "
        "sample_checkpoint:finetune/python/00000010",
    ),
    ("generation.sampler", "trained", "generation.sampler", "greedy", SAMPLES),
    ("generation.k", "trained", "generation.k", 9, SAMPLES),
    ("generation.p", "trained", "generation.p", 0.8, ""),  # top_k does not read it
    ("generation.temperature", "trained", "generation.temperature", 0.7, SAMPLES),
    ("generation.max_length", "trained", "generation.max_length", 64, SAMPLES),
    ("generation.samples", "trained", "generation.samples", 4, SAMPLES),
    ("generation.seed", "trained", "generation.seed", 1, SAMPLES),
    *(
        (f"evaluation.harness.NAME.{key}", "posed", f"evaluation.harness.{task}.{key}", value, again.format(task))
        for task, again, changes in (
            ("own", QUESTIONS, {"file": "text/other.yaml"}),
            ("known", QUESTIONS, {"task": "hellaswag", "revision": B, "limit": 9}),
            ("known", ANSWERS, {"examples": 5, "max_length": 32}),
        )
        for key, value in changes.items()
    ),
    (
        "evaluation.harness.NAME.checkpoints", "posed", "evaluation.harness.own.checkpoints", "last",
        "export_base_at_step:small,00000020 run_harness:own,base/small/00000020 "
        "run_harness:own,finetune/python/00000010 plot_checkpoints:base/small "
        "plot_checkpoints:finetune/python",
    ),
    ("evaluation.checkpoints", "trained", "evaluation.checkpoints", "last", STEPS),
    (
        "evaluation.select_by", "trained", None,
        {"evaluation.checkpoints": "all", "evaluation.select_by": "bits_per_byte"}, SELECTED,
    ),
    # Only `snakemake compare` reads it.
    ("evaluation.compare", "trained", "evaluation.compare", [["mlm/tiny", "base/small"]], ""),
    ("evaluation.text.documents", "trained", "evaluation.text.documents", 100, DRAWN),
    ("evaluation.text.masked_documents", "trained", "evaluation.text.masked_documents", 9, "score_mlm:mlm/tiny"),
    ("evaluation.text.characters", "trained", "evaluation.text.characters", 500, DRAWN),
    ("evaluation.text.seed", "trained", "evaluation.text.seed", 1, DRAWN),
    ("evaluation.pairs.made", "trained", "evaluation.pairs.made", 9, "make_pairs " + PAIRED),
    ("evaluation.pairs.seed", "trained", "evaluation.pairs.seed", 1, "make_pairs " + PAIRED),
    *(
        (f"evaluation.pairs.sets.NAME.{key}", "paired", f"evaluation.pairs.sets.{name}.{key}", value, again + PAIRED)
        for name, again, values in (
            ("mine", "fetch_pairs:mine ", {"files": ["text/others.jsonl"], "phenomenon": "field"}),
            ("theirs", "fetch_pairs:theirs ", {"dataset": "other/set", "name": "two", "revision": B, "split": "other"}),
        )
        for key, value in values.items()
    ),
    ("evaluation.overlap.ngram", "trained", "evaluation.overlap.ngram", 8, "".join(OVERLAPS) + SCORES),
    # No plan is an input of anything that is trained.
    ("plan.topologies", "trained", "plan.topologies", ["v6e-8"], ""),
    ("plan.prices.NAME", "trained", "plan.prices.v5e-8", 9.6, ""),
    ("plan.alternatives", "trained", "plan.alternatives", True, ""),
    ("plan.spending_limit", "trained", "plan.spending_limit", 5.0, ""),
    ("report.cpu_watts", "trained", "report.cpu_watts", 20.0, ""),
    ("report.cpu_price", "trained", "report.cpu_price", 0.05, ""),
    # Archives are asked for by their own target.
    ("archive.name", "trained", "archive.name", "other", ""),
    ("archive.version", "trained", "archive.version", "2", ""),
    ("archive.largest_file_mb", "trained", "archive.largest_file_mb", 2, ""),
    ("archive.sign", "trained", "archive.sign", "key.pem", ""),
    # Publishing is asked for by its own target.
    *(
        (f"publish.{key}", "trained", None, {"publish.hub": "me/models", f"publish.{key}": value}, "")
        for key, value in {
            "hub": "me/models", "gcs": "gs://bucket", "artifacts": ["mlm"], "private": False, "branch": "second",
            "license": "mit", "sync": "every 1",
        }.items()
    ),
]  # fmt: skip


# A job that scores a model as its run ends with it, whose history takes the scores.
SCORING = r"(?<!\S)(?:score_mlm:|score_causal:|score_task:\w+,|run_harness:\w+,)([a-z-]+/\w+)(?!\S)"


def told(jobs):
    """Return jobs with the table of scores, and the history of the run, where one of them is a score."""
    scored = re.search(r"\b(score_(mlm|causal|task)|run_harness):", jobs)
    # Models that were not trained here have no history.
    runs = [path for path in re.findall(SCORING, jobs) if Path(path).name not in ("asked", "given")]
    return " ".join([jobs, *[""] * bool(scored), *(f"keep_run:{run}" for run in dict.fromkeys(runs))])


ROWS = [(*row, told(jobs)) for *row, jobs in ROWS]


def leaves(schema, root, path=""):
    """Yield the dotted path of every value that a config can hold; NAME stands for a name that the user chooses."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]] | {k: v for k, v in schema.items() if k != "$ref"}
    named, more = schema.get("properties"), schema.get("additionalProperties")
    for kind in schema.get("anyOf", []):
        if "properties" in kind:
            yield from leaves(kind, root, path)
    if named is None and not isinstance(more, dict):
        yield path
    for key, part in (named or {}).items():
        yield from leaves(part, root, f"{path}.{key}".lstrip("."))
    if isinstance(more, dict):
        yield from leaves(more, root, f"{path}.NAME")


def test_every_key_of_the_schema_has_a_row():
    schema = read_yaml(SCHEMA)
    rows = [row[0] for row in ROWS]
    assert len(rows) == len(set(rows)) > 100
    assert set(leaves(schema, schema)) == set(rows)


def changed(config, changes):
    """Return a copy of a config with values at dotted keys replaced."""
    config = copy.deepcopy(config)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = config
        for key in parents:
            place = place.setdefault(key, {})
        if value is DELETE:
            del place[last]
        else:
            place[last] = copy.deepcopy(value)  # a value that stands twice must not become one by an anchor
    return config


def write(workflow, name, config):
    (workflow / name).write_text(json.dumps(config))  # which is YAML, and quicker than its library


def jobs(printed):
    """Return the jobs that a dry run lists, as rule:wildcard,wildcard; without the page and the table of all runs."""
    lines = re.findall(r"^would run  (\w+) ?(\S+(?: \S+)*)?  reason: ", printed, re.M)
    found = {f"{rule}:{','.join(values.split())}" if values else rule for rule, values in lines}
    return found - {"all", "compare_runs", "write_report"}


def listed(workflow, *arguments):
    return jobs(workflow("-n", *arguments).stdout)


# Files of a text that no job of `trained` makes.
FORCED = (
    "read_part",
    "fetch_base",
    "fetch_chat_template",
    "fetch_mlm",
    "fetch_pairs",
    "read_task",
    "read_harness_task",
)
MADE_ELSEWHERE = ["splits.npy", "splits.json", "ngrams.npy", "chat_template.json"]


@pytest.fixture(scope="session")
def in_state(trained, tmp_path_factory):
    """Return a function that gives a folder for one of STATES, in which nothing is left to be done.

    Each is a copy of the fixture `trained`; where the config is another, `--touch` has noted that the files are its
    own, which costs no training.
    """
    config = read_yaml(trained / "config.yaml")

    @cache
    def state(name):
        workflow, changes = copied(trained, tmp_path_factory.mktemp("states") / name), STATES[name]
        workflow.steady = True
        (workflow / "text").mkdir()
        for file in "abcd":
            (workflow / f"text/{file}.txt").write_text(f"{file}\n")
        for file in (*(f"train-{number}" for number in (0, 1, 2, 3, 9)), "validation", "test"):
            (workflow / f"text/{file}.tfrecord").write_bytes(file.encode())
        for file in ("pairs", "others", *"abcd"):
            (workflow / f"text/{file}.jsonl").write_text("{}\n")
        (workflow / "text/adapter").mkdir()
        (workflow / "text/adapter/adapter_config.json").write_text("{}")
        workflow.config = changed(config, changes)
        write(workflow, "state.yaml", workflow.config)
        if changes:
            for folder in ("corpus", "finetune-text"):  # what `trained` has not
                for file in (*MADE_ELSEWHERE, "parts/00000.contamination.json"):
                    (workflow / "results" / folder / file).touch()
            for part in sorted((workflow / "results").glob("*/parts/00000.*")):
                for number in range(1, 7):
                    shutil.copy(part, part.with_name(f"0000{number}{part.suffix}"))
            for name in changes.get("evaluation.pairs.sets", []):
                (workflow / "results/evaluation/pairs/sets").mkdir(exist_ok=True)
                (workflow / f"results/evaluation/pairs/sets/{name}.jsonl").touch()
            if "mlm.runs.asked" in changes:
                for model in ("asked/model", "tiny/init"):
                    shutil.copytree(workflow / "results/mlm/tiny/model", workflow / "results/mlm" / model)
                shutil.copy(workflow / "results/mlm/tiny/fill_mask.json", workflow / "results/mlm/asked")
                scores = workflow / "results/evaluation"
                shutil.copytree(scores / "mlm/tiny", scores / "mlm/asked")
                shutil.copy(scores / "ngrams/corpus/tokenizer.parquet", scores / "ngrams/corpus/mlm-asked.parquet")
            if "finetune.runs.second" in changes:
                for folder in ("results/finetune", "results/evaluation/finetune"):
                    shutil.copytree(workflow / folder / "python", workflow / folder / "second")
                history = workflow / "results/history/finetune"
                shutil.copy(history / "python.json", history / "second.json")
                (workflow / "results/compare").mkdir()
                for kind in ("csv", "md"):
                    (workflow / f"results/compare/runs.{kind}").touch()
                for figure in list((workflow / "results/figures").glob("*/*python*")):
                    shutil.copy(figure, figure.with_name(figure.name.replace("python", "second")))
            if "evaluation.harness" in changes:
                for name in ("task.yaml", "other.yaml"):
                    (workflow / "text" / name).write_text(TASK)
                (workflow / "text/data.jsonl").write_text("{}")
                for task in changes["evaluation.harness"]:
                    for model in ("base/small", "finetune/python"):
                        made = workflow / "results/evaluation" / model
                        shutil.copytree(made, workflow / f"results/evaluation/harness/{task}/{model}")
                    found = workflow / f"results/evaluation/harness/{task}/overlap"
                    found.mkdir()
                    for collection in ("corpus", "finetune-text"):
                        (found / f"{collection}.json").touch()
                    (found.parent / "items.json").touch()
            if "evaluation.tasks" in changes:
                for path in files_of_tasks(workflow.folder):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.touch()
            if "base.given" in changes:
                shutil.copytree(workflow / "results/base/small/preset", workflow / "results/base/given/preset")
                shutil.copy(workflow / "results/base/small/preset.json", workflow / "results/base/given/preset.json")
            # Forced, since Snakemake knows nothing of files that were copied, and touches only what would run.
            workflow("--touch", "--forcerun", *FORCED, "--configfile", "state.yaml")
        assert "Nothing to be done" in workflow("-n", "--configfile", "state.yaml").stdout, name
        return workflow

    return state


# Keys of runs are changed many at a time, each in a run of its own: what of a run's files and jobs carries its name.
NAMES = {"mlm.runs.NAME": ["tiny"], "base.NAME": ["small", "python"], "finetune.runs.NAME": ["python"]}
NAMES |= {"evaluation.tasks.NAME": []}  # of which each key names its task


class Row:
    """A row of ROWS with a run of its own, which takes the place of the shipped one."""

    def __init__(self, number, key, state, changed_key, value, expected):
        stage = next(stage for stage in NAMES if key.startswith(f"{stage}."))
        self.id, self.name, self.names = key, f"r{number}", NAMES[stage] or [changed_key.split(".")[2]]
        self.state, self.key, self.value = state, self.named(changed_key), value
        self.expected = {self.named(job) for job in expected.split()}
        shared = frozenset(job for job in self.expected if not self.is_own(job))
        # With the rows after which the same has to be done of what runs have in common.
        self.group = (state, shared and stage, shared)

    def named(self, text):
        """Return a text with this row's name in the place of the run's."""
        return re.sub(rf"\b({'|'.join(self.names)})\b", self.name, text)

    def is_own(self, job):
        return re.search(rf"\b{self.name}\b", job) is not None

    def add_run(self, config):
        """Add this row's run to a config: a copy of the shipped one."""
        mlm, base, finetune = config["mlm"]["runs"], config["base"], config["finetune"]["runs"]
        if self.names[0] in TASKS:
            tasks = config["evaluation"]["tasks"]
            tasks[self.name] = copy.deepcopy(tasks[self.names[0]])
        if "tiny" in self.names:
            mlm[self.name] = copy.deepcopy(mlm["tiny"])
        if "python" in self.names:
            finetune[self.name] = copy.deepcopy(finetune["python"])
        if "small" in self.names:
            base[self.name] = copy.deepcopy(base["small"])
            finetune[self.name]["base"] = self.name

    def add_files(self, workflow, files, records):
        """Copy those of a workflow's files that the run has made, and of what Snakemake knows of files, what is of it.

        files    their paths in the workflow's folder
        records  path: text
        """
        for path in files:
            if (copied_to := self.named(path)) != path:
                (workflow / copied_to).parent.mkdir(parents=True, exist_ok=True)
                os.link(workflow / path, workflow / copied_to)
        for path, text in records.items():
            if (copied_to := self.named(path)) != path:
                (workflow / ".snakemake/metadata" / encoded(copied_to)).write_text(self.named(text))


FROM_OTHERS = ("elsewhere", "continued")  # states of which runs depend on others: each row alone
GROUPS = {}
for number, row in enumerate(ROWS):
    if row[0].startswith(tuple(NAMES)) and row[1] not in FROM_OTHERS:
        GROUPS.setdefault((own := Row(number, *row)).group, []).append(own)


@pytest.fixture(scope="session")
def rerun(in_state, tmp_path_factory):
    """Return a function that gives the jobs of a group of rows, after the keys of all have been changed."""

    @cache
    def rerun(group):
        state = in_state(group[0])
        workflow, config = copied(state, tmp_path_factory.mktemp("group")), copy.deepcopy(state.config)
        workflow.steady = True
        files = [path for path in (workflow / "results").rglob("*") if path.is_file()]
        files = [str(path.relative_to(workflow.folder)) for path in files]
        known = (workflow / ".snakemake/metadata").iterdir()
        records = {base64.urlsafe_b64decode(record.name).decode(): record.read_text() for record in list(known)}
        for row in GROUPS[group]:
            row.add_run(config)
            row.add_files(workflow, files, records)
        write(workflow, "before.yaml", config)
        # More runs are told of on the page, and nothing else has changed.
        assert jobs(workflow("--touch", "--configfile", "before.yaml").stdout) == set()
        write(workflow, "after.yaml", changed(config, {row.key: row.value for row in GROUPS[group]}))
        return listed(workflow, "--configfile", "after.yaml")

    return rerun


GROUPED = {row.id: row for group in GROUPS.values() if len(group) > 2 for row in group}


@pytest.mark.parametrize("row", GROUPED.values(), ids=GROUPED)
def test_a_changed_key_of_a_run_reruns_just_what_it_decides(rerun, row):
    found, others = rerun(row.group), [other for other in GROUPS[row.group] if other is not row]
    assert {job for job in found if not any(other.is_own(job) for other in others)} == row.expected


# Keys of texts after which the same jobs run, from reading or assigning documents on, by state and what follows; which
# parts are read again is another matter. All of them together rerun no more than these. Each alone reruns those of its
# text, from which the others follow: a key of the corpus with the same one of finetune.text, which are two texts.
TEXT_RULES = r"(fetch_chat_template|read_part|collect_ngrams|find_contamination|assign_splits|build_corpus):"
ALIKE = {}
for row in ROWS:
    # But for another source, which has other keys.
    if re.match(r"(corpus|finetune\.text)\.", row[0]) and not row[0].endswith(".sources.NAME.source"):
        follows = frozenset(job for job in row[4].split() if not job.startswith("read_part:"))
        ALIKE.setdefault((row[1], follows), []).append(row)
ALIKE = {f"{rows[0][0]} and more": rows for rows in ALIKE.values() if len(rows) > 1}
OF_TEXTS = {}
for row in (row for rows in ALIKE.values() for row in rows):
    same = re.sub(r"^(corpus|finetune\.text)\.(sources\.NAME\.)?", "", row[0])
    OF_TEXTS.setdefault((row[1], same), []).append(row)


def after_rows(workflow, rows, *targets):
    """Return the jobs that are listed after the changes of all these rows."""
    changes = {}
    for _, _, key, value, _ in rows:
        changes |= {key: value} if key else value
    write(workflow, "rows.yaml", changed(workflow.config, changes))
    return listed(workflow, *targets, "--configfile", "rows.yaml")


@pytest.mark.parametrize("rows", ALIKE.values(), ids=ALIKE)
def test_a_changed_key_of_a_text_reruns_what_follows(in_state, rows):
    assert after_rows(in_state(rows[0][1]), rows) == {job for row in rows for job in row[4].split()}


@pytest.mark.parametrize(
    ("state", "rows"), [(key[0], rows) for key, rows in OF_TEXTS.items()], ids=map(".".join, OF_TEXTS)
)
def test_a_changed_key_of_a_text_makes_its_documents_anew(in_state, state, rows):
    targets = [f"results/{collection}/corpus.json" for collection in ("corpus", "finetune-text")]
    assert after_rows(in_state(state), rows, *targets) == {
        job for row in rows for job in row[4].split() if re.match(TEXT_RULES, job)
    }


# Keys that make nothing stale, by state.
IDLE = {}
for row in ROWS:
    if not row[4] and row[0] not in GROUPED:
        IDLE.setdefault(row[1], []).append(row)


@pytest.mark.parametrize(("state", "rows"), IDLE.items(), ids=IDLE)
def test_keys_that_decide_nothing_rerun_nothing(in_state, state, rows):
    assert after_rows(in_state(state), rows) == set()


TOGETHER = GROUPED.keys() | {row[0] for rows in (*OF_TEXTS.values(), *IDLE.values()) for row in rows}
ALONE = [row for row in ROWS if row[0] not in TOGETHER]


@pytest.mark.parametrize("row", ALONE, ids=[row[0] for row in ALONE])
def test_a_changed_key_reruns_just_what_it_decides(in_state, row):
    assert after_rows(in_state(row[1]), [row]) == set(row[4].split())


@pytest.fixture
def built(trained, tmp_path):
    """A copy of `trained`, to be changed."""
    return copied(trained, tmp_path)


def append(path, text):
    with open(path, "a") as file:
        file.write(text)


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_deleted_shard_is_written_again_and_retrains_nothing(built):
    shard = built / "results/tfrecords/train/00001-of-00004.tfrecord"
    before = shard.read_bytes()
    shard.unlink()
    assert listed(built) == set()  # every model is there: nothing needs it
    assert listed(built, "tfrecords") == {"write_shard:train,00001,00004", "merge_manifest:tfrecords", "tfrecords"}
    built("tfrecords")
    assert shard.read_bytes() == before
    assert "Nothing to be done" in built("-n").stdout


def test_shards_that_were_deleted_with_all_that_is_known_of_them_are_written_again(built):
    folders = [built / "results/tfrecords/train", built / f"results/{CORPUS_SET}"]
    before = [contents(folder) for folder in folders]
    for folder in folders:
        shutil.rmtree(folder)
    built("tfrecords")
    assert [contents(folder) for folder in folders] == before
    assert "Nothing to be done" in built("-n").stdout


def test_a_shard_whose_job_was_killed_is_written_again_and_retrains_nothing(built):
    shard, log = (
        built / "results/tfrecords/train/00001-of-00004.tfrecord",
        built / "logs/tfrecords/train/00001-of-00004.log",
    )
    before = shard.read_bytes()
    shard.unlink()
    log.unlink()
    running = built.start("tfrecords")
    while not log.exists():
        assert running.poll() is None
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert not shard.exists() and any((built / ".snakemake/incomplete").iterdir())
    built("tfrecords")
    assert shard.read_bytes() == before
    assert "Nothing to be done" in built("-n").stdout


def inodes(workflow, run):
    """Return the inodes of the files of a run's checkpoints, which a job writes anew."""
    files = (workflow / f"results/{run}/checkpoints").rglob("*")
    return {str(path.relative_to(workflow.folder)): path.stat().st_ino for path in files if path.is_file()}


def refused(workflow, *arguments):
    """Return the sentence in which a run ends before its first job."""
    done = workflow(*arguments, check=False)
    assert done.returncode and "Traceback" not in done.stdout and "start   " not in done.stdout, done.stdout
    (sentence,) = re.findall(r"^error: (.*)$", done.stdout, re.M)
    return sentence


def test_a_deleted_shard_is_missed_before_a_segment_reads_it(built):
    """And only then: the segments that are finished read nothing any more."""
    config = read_yaml(built / "config.yaml")
    config["base"]["small"]["schedule"]["decay_steps"] = 6
    write(built, "decay.yaml", config)
    shards = [built / f"results/{CORPUS_SET}/train/00000-of-00001.{kind}" for kind in ("tfrecord", "index")]
    bytes_before, before = [shard.read_bytes() for shard in shards], inodes(built, "base/small")
    for shard in shards:
        shard.unlink()
    segment = "results/base/small/checkpoints/00000020/state.json", "--configfile", "decay.yaml"
    assert refused(built, *segment) == (
        f"train/00000-of-00001.tfrecord and 1 more of results/{CORPUS_SET} were deleted, and jobs of this run read "
        "them; snakemake tfrecords, with the options of this command, writes them again with the same bytes."
    )
    built("tfrecords", "--configfile", "decay.yaml")
    assert [shard.read_bytes() for shard in shards] == bytes_before
    built(*segment)
    after = inodes(built, "base/small")
    assert after.keys() == before.keys()
    assert {name: before[name] != after[name] for name in before} == {name: "/00000020/" in name for name in before}


def test_a_deleted_shard_is_missed_where_an_edit_needs_it(built):
    """What an edit makes stale, no recipe tells."""
    shard = built / "results/tfrecords/validation/00000-of-00001.tfrecord"
    shard.unlink()
    append(built / "scripts/samples/fill_mask.py", "# edited\n")  # reads no shards
    built("mlm", "--config", "title=Another", "--until", "fill_mask")
    append(built / "scripts/mlm/evaluate_mlm.py", "# edited\n")
    assert refused(built, "mlm").startswith("validation/00000-of-00001.tfrecord of results/tfrecords was deleted, and")


def test_a_shard_that_is_written_before_it_is_read_is_not_missed(built):
    config = read_yaml(built / "config.yaml")
    config["tfrecords"]["shards"]["train"] = 2
    write(built, "fewer.yaml", config)
    target = "results/mlm/tiny/checkpoints/00000010/state.json", "--configfile", "fewer.yaml"
    (built / "results/tfrecords/test/00000-of-00001.index").unlink()  # that one no job writes
    assert refused(built, *target).startswith("test/00000-of-00001.index of results/tfrecords was deleted, and jobs")
    built("tfrecords", "--configfile", "fewer.yaml")
    assert listed(built, *target) == {"train_mlm_tensorflow:tiny,00000010"}


def test_a_shard_with_other_bytes_reruns_nothing_and_is_reported(built):
    """Its model was trained on the bytes that it had; training on these would be refused, verify names them."""
    shard = built / "results/tfrecords/train/00001-of-00004.tfrecord"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    assert listed(built) == set()
    done = built("verify", check=False)
    assert done.returncode == 1
    damage = re.search(r"error: 1 damage\(s\) in 17 artifacts; the first: (.*)", done.stdout)[1]
    start, stop = map(int, re.search(r"is damaged at bytes (\d+) to (\d+)", damage).groups())
    assert damage.startswith("results/tfrecords/train/00001-of-00004.tfrecord")
    assert start <= len(data) // 2 < stop < start + 1200


def test_a_line_added_to_one_text_file(in_state, tmp_path):
    workflow = copied(in_state("listed"), tmp_path)
    append(workflow / "text/b.txt", "one more line\n")
    assert listed(workflow, "--configfile", "state.yaml") == set(told(f"{CORPUS} {TUNING}").split())


def test_the_page_is_written_again_when_what_it_tells_has_changed(built):
    config = read_yaml(built / "config.yaml")
    for key, value in (("title", "Other words"), ("report", {"cpu_watts": 20.0}), ("plan", {"prices": {"v5e-8": 9.6}})):
        write(built, "told.yaml", config | {key: value})
        assert set(re.findall(r"^would run  (\w+)", built("-n", "--configfile", "told.yaml").stdout, re.M)) == {
            "write_report", "all",
        }  # fmt: skip
    append(built / "report/page/page.css", "/* edited */\n")
    assert "would run  write_report" in built("-n").stdout
    (built / "results/finetune/python/generations.json").unlink()
    assert "would run  write_report" in built("-n").stdout


REPORT = (
    "collect_history:mlm/tiny collect_history:base/small collect_history:finetune/python "
    "plot_training:mlm,tiny plot_training:base,small plot_training:finetune,python "
    "keep_run:mlm/tiny keep_run:base/small keep_run:finetune/python"
)
EDITED = [
    (
        "scripts/report/plot_training.py",
        "plot_training:mlm,tiny plot_training:base,small plot_training:finetune,python",
    ),
    ("scripts/finetune/train_finetune.py", FINETUNE),
    ("scripts/samples/fill_mask.py", "fill_mask:mlm/tiny/fill_mask "),
    ("scripts/tpulm/records/masked_batches.py", MLM),  # through tpulm/records/masked_batches.py
    ("scripts/tpulm/specs/schedule.py", MLM + " " + BASE),
    ("scripts/tpulm/models/loading.py", ""),  # of the other backend
    ("scripts/tpulm/training/tensorflow_trainer.py", MLM),
    ("scripts/tpulm/models/sampling.py", SAMPLES),
    ("scripts/tpulm/models/adapters.py", "export_lora:python"),
    ("scripts/tpulm/workflow/checks.py", ""),  # only the workflow itself imports it
    ("scripts/upkeep/verify.py", ""),
    ("envs/workflow.txt", REPORT),
    ("envs/tensorflow.txt", MLM),
]


def test_an_edited_file_reruns_what_stands_on_it(built):
    for file, expected in EDITED:
        text = (built / file).read_text()
        append(built / file, "# edited\n")
        assert listed(built) == set(told(expected).split()), file
        (built / file).write_text(text)
    assert listed(built) == set()


def test_a_new_run_builds_itself_and_is_compared(built):
    config = read_yaml(built / "config.yaml")
    config["mlm"]["runs"]["other"] = copy.deepcopy(config["mlm"]["runs"]["tiny"])
    write(built, "more.yaml", config)
    assert listed(built, "--configfile", "more.yaml") == set(told(MLM.replace("tiny", "other")).split())


def test_a_renamed_run_is_a_new_one(built):
    config = read_yaml(built / "config.yaml")
    config["finetune"]["runs"]["snake"] = config["finetune"]["runs"].pop("python")
    write(built, "renamed.yaml", config)
    assert listed(built, "--configfile", "renamed.yaml") == set(told(FINETUNE.replace("python", "snake")).split())


def test_two_values_swapped_are_seen(built):
    config = read_yaml(built / "config.yaml")
    config["mlm"]["runs"]["tiny"]["masking"] |= {"mask_replace_prob": 0.1, "random_replace_prob": 0.8}
    write(built, "swapped.yaml", config)
    assert listed(built, "--configfile", "swapped.yaml") == set(told(MLM).split())


def test_where_jobs_run_makes_nothing_stale(built, monkeypatch):
    profile = built / "profiles/default/config.yaml"
    profile.write_text(profile.read_text().replace("cores: all", "cores: 1") + "restart-times: 2\n")
    assert listed(built) == set()
    assert listed(built, "--cores", "7", "--set-threads", "train_finetune=3") == set()
    (built / "profiles/elsewhere").mkdir()
    (built / "profiles/elsewhere/config.yaml").write_text(profile.read_text() + "default-resources: [mem_mb=1000]\n")
    assert listed(built, "--workflow-profile", "profiles/elsewhere") == set()
    monkeypatch.setenv("TPU_NAME", "local")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert listed(built) == set()


def test_touched_files_rerun_nothing(built):
    for folder in ("scripts", "envs", "schemas", "rules", "results", "profiles"):
        for path in (built / folder).rglob("*"):
            path.touch()
    for path in (built / "config.yaml", built / "Snakefile"):
        path.touch()
    assert listed(built) == set()


def test_the_folder_can_be_moved(built):
    built.folder = built.folder.rename(built.folder.with_name("moved"))
    assert listed(built) == set()


def test_touch_keeps_a_training_whose_code_was_edited_to_no_effect(built):
    before = contents(built / "results")
    append(built / "scripts/mlm/train_mlm_tensorflow.py", "# a comment\n")
    append(built / "scripts/tpulm/records/masked_batches.py", "# another\n")
    assert listed(built) == set(told(MLM).split())
    built("--touch", "mlm", "evaluation")
    assert listed(built) == set()
    assert contents(built / "results") == before


def test_the_reason_is_given_in_words(built):
    config = read_yaml(built / "config.yaml")
    config["mlm"]["runs"]["tiny"]["steps"] = 30
    config["finetune"]["runs"]["python"]["steps"] = 15
    config["base"]["small"]["batch_size"] = 32
    write(built, "longer.yaml", config)
    printed = built("-n", "--configfile", "longer.yaml").stdout
    assert (
        "note: mlm.runs.tiny trains again from step 10: schedule was [[10, 0.003], [12, 0.003], [20, 0.0]] and is "
        "[[10, 0.003], [20, 0.003]].\n" in printed
    )
    assert "note: base.small trains again from step 0: batch_size was 4 and is 32.\n" in printed
    assert (
        "note: finetune.runs.python trains again from step 0: schedule was [[0, 0.0], [2, 0.02], [5, 0.0125]] and is "
        "[[0, 0.0], [2, 0.02], [5, 0.015384615385]] (linear and cosine spread over all steps; constant and wsd keep "
        "what more steps leave as it was).\n" in printed
    )
    assert "reason: Params have changed since last execution" in printed
    (built / "results/mlm/tiny/checkpoints/00000010/weights.safetensors").unlink()
    assert "note: mlm.runs.tiny trains again from step 0: " in built("-n", "--configfile", "longer.yaml").stdout


@pytest.mark.parametrize("segments", [500, pytest.param(2000, marks=pytest.mark.long)])
def test_a_long_chain_of_segments_dry_runs(fresh, segments):
    """Both need more recursion than Python allows by itself."""
    config = read_yaml(fresh / "config.yaml")
    config["mlm"]["runs"]["tiny"] |= {"steps": 10 * segments, "checkpoint_every": 10}
    write(fresh, "long.yaml", config)
    printed = fresh("-n", "--quiet", "rules", "--configfile", "long.yaml").stdout
    assert re.search(rf"^train_mlm_tensorflow +{segments}$", printed, re.M)


def test_clean_lists_and_deletes_what_no_run_needs(built):
    results = built / "results"
    (results / "mlm/old/model").mkdir(parents=True)
    (results / "mlm/old/model/model.safetensors").write_bytes(b"x" * 2_000_000)
    (results / "tfrecords/train/.00000-of-00004.tfrecord.partial").write_bytes(b"half")
    before = contents(results)
    said = built("clean").stdout
    assert "[clean] results/mlm/old/model/  model.safetensors, 2.0 MB\n" in said
    assert "[clean] results/tfrecords/train/  .00000-of-00004.tfrecord.partial, 0.0 MB\n" in said
    assert "[clean] 2 files that no run of the config needs, 2.0 MB\n" in said
    assert contents(results) == before
    built("clean_delete")
    assert not (results / "mlm/old").exists()
    assert len(contents(results)) == len(before) - 2
    assert "Nothing to be done" in built("-n").stdout
    assert "[clean] 0 files that no run of the config needs, 0.0 MB\n" in built("clean").stdout


def test_a_whole_run_is_verified_whole(built):
    assert "[verify] 17 artifacts are whole\n" in built("verify").stdout
