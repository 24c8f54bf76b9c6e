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
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from conftest import DELETE, changed, copied
from kills import encoded
from tpulm.config.reading import SCHEMA, read_yaml

# The jobs of the fixture `trained`, by what they follow from.
MLM_REST = (
    "export_mlm:tiny evaluate_mlm:tiny fill_mask:tiny score_mlm:mlm/tiny "
    "collect_history:mlm/tiny "
    "plot_training:mlm,tiny keep_run:mlm/tiny"
)
MLM_SECOND = "train_mlm_tensorflow:tiny,00000020 " + MLM_REST
MLM = "train_mlm_tensorflow:tiny,00000010 " + MLM_SECOND
MLM_JAX = MLM.replace("_tensorflow", "_jax")
MERGED = "merge_manifest:tfrecords count_tokens:tfrecords " + MLM
RECORDS = (
    "write_shard:train,00000,00004 write_shard:train,00001,00004 write_shard:train,00002,00004 "
    "write_shard:train,00003,00004 write_shard:validation,00000,00001 write_shard:test,00000,00001 " + MERGED
)  # fmt: skip


def shards(records, splits=("train", "validation", "test"), files=1):
    """Return the jobs that write records for causal models."""
    jobs = [f"merge_manifest:{records}", *([f"count_tokens:{records}"] * ("/corpus/" in records and "train" in splits))]
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
VOCABULARY = (
    "train_base_vocabulary:small/vocabulary.spm write_base_tokenizer:small "
    + NGRAMS
    + shards(TUNING_SET)
    + shards(CORPUS_SET)
    + BASE
)
TOKENIZER = "train_tokenizer evaluate_tokenizer:tokenizer score_ngrams:corpus,tokenizer " + RECORDS
# Documents are read again, or only written again.
SCORED_ON = "sample_texts:corpus " + OVERLAPS[0] + OVERLAPS[2]
WRITTEN = (
    "build_corpus:corpus describe_corpus:corpus "
    + SCORED_ON
    + OVERLAPS[1]
    + TOKENIZER
    + " "
    + shards(CORPUS_SET)
    + VOCABULARY
)
CORPUS = "read_part:corpus,00000 assign_splits:corpus " + WRITTEN
TUNING_SCORED_ON = (
    "sample_texts:finetune-text score_ngrams:finetune-text,base-small score_causal:base/small "
    + OVERLAPS[2] + OVERLAPS[3]
)  # fmt: skip
TUNING_WRITTEN = (
    "build_corpus:finetune-text describe_corpus:finetune-text "
    + TUNING_SCORED_ON
    + OVERLAPS[1]
    + shards(TUNING_SET)
    + FINETUNE
)
TUNING = "read_part:finetune-text,00000 assign_splits:finetune-text " + TUNING_WRITTEN
# Where tokenizer and base model come from elsewhere, they do not depend on the corpus.
FETCHED_WRITTEN = (
    "build_corpus:corpus describe_corpus:corpus evaluate_tokenizer:tokenizer "
    + SCORED_ON + "score_ngrams:corpus,tokenizer score_ngrams:corpus,base-small score_causal:finetune/python "
    + shards(CORPUS_SET, ["validation"]) + RECORDS + " " + MEASURES
)  # fmt: skip
FETCHED_BASE = (
    "fetch_base:small write_base_tokenizer:small "
    + NGRAMS
    + shards(CORPUS_SET, ["validation"])
    + shards(TUNING_SET)
    + FINETUNE
)
PUBLISHED = "fetch_mlm:mlm/asked/model fill_mask:asked score_ngrams:corpus,mlm-asked score_mlm:mlm/asked"
# A run takes the model that it starts from, and the records its tokenizer, from the same place.
ORIGINS = ("tokenizer", "mlm.runs.tiny.init")
COMPARED_TOKENIZER = "fetch_tokenizer:tokenizer/compared/other evaluate_tokenizer:tokenizer/compared/other"
FETCHED_TOKENIZER = "fetch_tokenizer:tokenizer evaluate_tokenizer:tokenizer score_ngrams:corpus,tokenizer " + RECORDS
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

SECOND = {
    "base": "small", "sequence_length": 64, "steps": 10, "checkpoint_every": 5, "batch_size": 8, "learning_rate": 0.001,
    "rank": 8,
}  # fmt: skip
TASK = "task: own\ndataset_path: json\ndataset_kwargs: {data_files: text/data.jsonl}\n"
# External TFRecords, and the jobs that take them.
FILED = {
    "source": "files", "sequence_length": 128,
    "files": {
        "train": ["text/train-[0-3].tfrecord"], "validation": ["text/validation.tfrecord"],
        "test": ["text/test.tfrecord"],
    },
}  # fmt: skip
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


TINY, SMALL, PYTHON = "mlm.runs.tiny", "base.small", "finetune.runs.python"
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
        "base.small.model.architecture": "llama3", "base.small.model.head_dim": DELETE,
        "finetune.runs.python.schedule": {"shape": "wsd", "warmup_steps": 2, "decay_steps": 4},
        "finetune.runs.python.mesh": [1, -1],
        "base.given": {"preset": "hf://some/base", "revision": A},
    },
    "compared": {"tokenizer.compare_with.other": {"pretrained": "some/tokenizer", "revision": A}},
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
    "adafactor": JAX | {f"{run}.optimizer": {"name": "adafactor"} for run in (TINY, SMALL, PYTHON)},
}  # fmt: skip


def rows_of(state, place, jobs, values):
    """Return a row for each of the values by key in a place of the config, after which the same jobs run."""
    keys = {f"{place}.{name}".lstrip("."): value for name, value in values.items()}
    return [(named(key), state, key, value, jobs) for key, value in keys.items()]


def named(key):
    """Return the key of the schema for one of the config: NAME stands for a name that the user chooses."""
    return re.sub(r"(^base|\bruns|\bsources|\btasks|\bharness|\bsets|\bprices|\bcompare_with)\.[\w-]+", r"\1.NAME", key)


# Other values of keys that texts and runs have in common.
OTHER_SET = {"dataset": "some/other", "name": "two", "revision": B}
OTHER_SPLITS = {"splits.train": "train[:90%]", "splits.validation": "test[:9%]", "splits.test": "test[9%:]"}
OTHER_NUMBERS = {
    "optimizer.weight_decay": 0.02, "optimizer.beta_1": 0.8, "optimizer.beta_2": 0.98, "optimizer.epsilon": 1e-6,
    "optimizer.global_clipnorm": 0.5, "precision": "mixed_bfloat16",
}  # fmt: skip
OTHER_RUN = OTHER_NUMBERS | {
    "batch_size": 16, "learning_rate": 0.002, "evaluate_every": 5, "schedule.warmup_steps": 4,
}  # fmt: skip
OTHER_ON_JAX = {"microbatches": 2, "determinism": "steps", "remat": True, "steps_per_execution": 5}
OTHER_PUBLISHED = {
    "source": "here", "last_steps": 5, "train_loss": 1.0, "train_accuracy": 0.5, "validation_loss": 1.0,
    "validation_accuracy": 0.5, "seconds_per_step": 0.1,
}  # fmt: skip
OTHER_PLACE = {
    "resources.accelerator": "v5e-8", "resources.mem_gb": 16, "resources.runtime": 30, "resources.snapshot_every": 5,
}  # fmt: skip
OTHER_ADAFACTOR = {
    "optimizer.beta_2_decay": -0.7, "optimizer.epsilon_1": 1e-20, "optimizer.epsilon_2": 1e-4,
    "optimizer.clip_threshold": 2.0,
}  # fmt: skip
OTHER_OPTIONS = {
    "near_duplicates.threshold": 0.7, "near_duplicates.ngram": 3,
    "filters.c4.end_marks": False, "filters.c4.min_words_per_line": 3, "filters.c4.javascript": False,
    "filters.c4.policies": False, "filters.c4.min_sentences": 3, "filters.c4.curly_brackets": False,
    "filters.c4.lorem_ipsum": False,
    "filters.gopher_quality.min_words": 40, "filters.gopher_quality.max_words": 99,
    "filters.gopher_quality.min_mean_word_length": 2, "filters.gopher_quality.max_mean_word_length": 9,
    "filters.gopher_quality.max_symbol_word_ratio": 0.2, "filters.gopher_quality.max_bullet_lines": 0.8,
    "filters.gopher_quality.max_ellipsis_lines": 0.2, "filters.gopher_quality.min_alphabetic_words": 0.7,
    "filters.gopher_repetition.max_duplicate_lines": 0.1,
    "filters.gopher_repetition.max_duplicate_line_characters": 0.1,
    "filters.gopher_repetition.max_duplicate_paragraphs": 0.1,
    "filters.gopher_repetition.max_duplicate_paragraph_characters": 0.1,
    "filters.gopher_repetition.max_top_ngram_characters": [0.2, 0.2, 0.2],
    "filters.gopher_repetition.max_duplicate_ngram_characters": [0.1, 0.1, 0.1, 0.1, 0.1, 0.1],
}  # fmt: skip


def rows_of_text(text, collection, source, states, written, fetched):
    """Yield the rows of a text.

    source   one that it has not in `trained`
    states   those in which it is a source with a template, several, a source of conversations, several
    written  jobs that follow where it is written anew
    fetched  the same where tokenizer and base model come from elsewhere
    """
    asked, several_asked, chatted, several_chatted = states
    parts = [f"read_part:{collection},0000{number} " for number in range(7)]
    build, assign = written, f"assign_splits:{collection} "
    written, fetched = assign + written, assign + fetched
    first, three = parts[0] + written, "".join(parts[:3])
    yield from rows_of("trained", text, first, {"source": source, "seed": 1, "min_characters": 5})
    yield from rows_of("trained", text, written, {"held_out.validation": 0.06, "held_out.test": 0.06})
    yield from rows_of("trained", text, build, {"max_documents": 5000})
    yield from rows_of("listed", text, first, {"files": ["text/a.txt"], "sample_by": "document", "column": "body"})
    yield from rows_of("fetched", text, three + fetched, OTHER_SET)
    # In MIXED, parts 0 to 2 are of hub, 3 of listed, 4 to 6 of named.
    hub, listed, named = (f"{text}.sources.{name}" for name in ("hub", "listed", "named"))
    for number, (key, value) in enumerate(OTHER_SPLITS.items()):
        files = {key.replace("splits", "files"): ["text/d.txt"]}
        yield from rows_of("named", text, parts[number] + written, files)
        yield from rows_of("fetched", text, parts[number] + fetched, {key: value})
        yield from rows_of("mixed", named, parts[4 + number] + written, files)
        yield from rows_of("mixed", hub, parts[number] + written, {key: value})
    yield from rows_of("mixed", hub, three + written, OTHER_SET | {"column": "body"})
    yield from rows_of("mixed", listed, build, {"weight": 2.5})
    yield from rows_of("mixed", listed, parts[3] + written, {"files": ["text/a.txt"], "sample_by": "document"})
    yield f"{text}.sources.NAME.source", "mixed", listed, {"source": "python-docs"}, parts[3] + written
    other, answered = {"template": "{other}", "response": "{other}"}, f"{three}{written} score_responses:python"
    yield from rows_of(asked, text, answered, other)
    yield from rows_of(several_asked, f"{text}.sources.one", answered, other)
    yield from rows_of(chatted, text, answered, {"messages": "other"})
    yield from rows_of(several_chatted, f"{text}.sources.one", answered, {"messages": "other"})
    again = f"fetch_chat_template:{collection} {answered}"
    yield from rows_of(chatted, text, again, {"chat_template": "gemma"})
    yield from rows_of(several_chatted, text, again, {"chat_template_revision": B})
    again = f"collect_ngrams:{collection} find_contamination:{collection},00000 {build}"
    other = {"ngram": 8, "files": ["text/c.txt"], "column": "body"}
    yield from rows_of("filtered", f"{text}.decontaminate", again, other)
    yield from rows_of("filtered", text, f"{parts[0]}assign_splits:{collection} {again}", OTHER_OPTIONS)


def rows_of_run(run, jobs, on_jax, jobs_on_jax):
    """Yield the rows of what all runs have; on JAX, they start from the state `on_jax`."""
    yield from rows_of("trained", run, jobs, OTHER_RUN)
    yield from rows_of(on_jax, run, jobs_on_jax, OTHER_ON_JAX)
    # It takes two evaluations until patience can run out: there is no third segment.
    yield from rows_of("trained", run, "", OTHER_PLACE | {"patience": 1})
    other = OTHER_PUBLISHED | {"differs": {"train_loss": "another text"}}
    for key in (*OTHER_PUBLISHED, "differs.NAME"):  # none is allowed alone
        yield f"{named(run)}.published.{key}", "trained", f"{run}.published", other, "compare_published"
    yield from rows_of(on_jax, run, "", {"profile.steps": [2, 4]})
    yield from rows_of("adafactor", run, jobs_on_jax, OTHER_ADAFACTOR | {"optimizer.name": "lion"})
    layout = {".*embeddings": [None, "model"]}
    yield f"{named(run)}.layout.NAME", "adafactor", f"{run}.layout", layout, jobs_on_jax


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
    place = "evaluation.tasks"
    filed, hubbed, moduled = (f"{place}.{task}" for task in TASKS)
    trained = {task: jobs_of_task(task) for task in TASKS}
    read = "read_task:{0} fit_task_baselines:{0} find_overlap:tasks/{0},corpus "
    again = {task: read.format(task) + jobs for task, jobs in trained.items()}
    second = jobs_of_task("filed", first=4)
    scored = "score_task:filed,mlm/tiny"
    source = TASKS["moduled"] | {"optimizer": {}, "host_device_count": 1}
    yield f"{place}.NAME.source", "tasks", filed, source, again["filed"]
    files = ("files", "files.train", "files.validation", "files.test")
    other = {key: ["text/a.jsonl" if key == "files" else "text/b.jsonl"] for key in files}
    other |= {"predict": "number", "text": "body", "label": "class"}
    yield from rows_of("tasks", filed, again["filed"], other)
    other = OTHER_NUMBERS | {"optimizer.name": "lion", "sequence_length": 24, "batch_size": 8}
    yield from rows_of("tasks", filed, trained["filed"], other | {"schedule.warmup_steps": 2})
    cosine = {"shape": "cosine", "warmup_steps": 1}
    yield f"{place}.NAME.schedule.shape", "tasks", f"{filed}.schedule", cosine, trained["filed"]
    yield from rows_of("tasks", filed, "", OTHER_PLACE | {"models": ["mlm/tiny"], "keep_checkpoints": "all"})
    other = {"schedule.decay_steps": 2, "schedule.final_learning_rate": 0.0001}
    yield from rows_of("tasks", filed, second, other)
    yield from rows_of("tasks", filed, scored, {"title": "Other words", "metrics": ["f1"]})
    at_step = "export_mlm_at_step:tiny,00000020 plot_checkpoints:mlm/tiny "
    at_step += jobs_of_task("filed", weights=("pretrained",), model="mlm/tiny/00000020")
    for name, value, jobs in [
        # Only the first segment reads the other task's weights.
        ("init", "moduled", jobs_of_task("filed", weights=("pretrained",))),
        ("baselines", ["majority", "bag_of_words", "random_weights"], f"fit_task_baselines:filed {scored}"),
        ("steps", 6, jobs_of_task("filed", first=4, steps=(2, 4, 6))),
        ("checkpoint_every", 1, jobs_of_task("filed", first=0, steps=(1, 2, 3, 4))),
        ("learning_rates", [0.002], jobs_of_task("filed", first=0, rate="0.002")),
        ("seeds", [1], jobs_of_task("filed", first=0, seed=1)),
        ("checkpoints", "last", at_step),
    ]:
        yield from rows_of("tasks", filed, jobs, {name: value})
    yield from rows_of("tasks", hubbed, again["hubbed"], OTHER_SET | OTHER_SPLITS | {"text_pair": "third"})
    other = {"modules": ["json", "random"], "held_out.validation": 0.2, "held_out.test": 0.2, "held_out.seed": 1}
    yield from rows_of("tasks", moduled, again["moduled"], other)
    other = OTHER_ADAFACTOR | {"mesh": [2, 1], "host_device_count": 4}
    yield from rows_of("tasks", moduled, trained["moduled"], other)
    yield from rows_of("tasks", moduled, "", {"resources.hosts": 2})


# (key of the schema, state, key of the config, new value, jobs); with None for the key, new values by key
ROWS = [
    *rows_of_text(
        "corpus", "corpus", "python-source", ("asked", "answered", "chatted", "talked"), WRITTEN, FETCHED_WRITTEN
    ),
    *rows_of_text(
        "finetune.text", "finetune-text", "python-docs", ("answered", "asked", "talked", "chatted"), TUNING_WRITTEN,
        TUNING_WRITTEN.replace(OVERLAPS[1], "").replace("score_causal:base/small ", ""),
    ),
    *rows_of_tasks(),
    *rows_of("trained", "", "", {"title": "Other words", "trackers": []}),
    *rows_of("trained", "", MLM + " " + BASE, {"cpu_threads": 2}),
    *rows_of(
        "trained", "tokenizer", TOKENIZER,
        {
            "vocab_size": 2049, "model": "bpe", "train_on.characters": 10**6, "train_on.seed": 1,
            "character_coverage": 0.99, "byte_fallback": True, "normalization": "none", "whitespace": "runs",
        },
    ),
    (
        "tokenizer.pre_tokenizer", "trained", "tokenizer",
        {"vocab_size": 2048, "model": "byte-level-bpe", "pre_tokenizer": "llama3"}, TOKENIZER,
    ),
    *rows_of("fetched", "tokenizer", FETCHED_TOKENIZER, {"pretrained": "some/other", "revision": B}),
    *rows_of(
        "compared", "tokenizer.compare_with.other", COMPARED_TOKENIZER, {"pretrained": "some/other", "revision": B}
    ),
    *rows_of("trained", "tfrecords", RECORDS, {"packing": "pad", "sequence_length": 127}),
    ("tfrecords.source", "fetched", "tfrecords", FILED, RECORDS.replace("write_shard", "fetch_shard")),
    *rows_of(
        "shards", "tfrecords.files", f"fetch_shard:train,00003,00004 {MERGED}",
        {"train": ["text/train-[0-2].tfrecord", "text/train-9.tfrecord"]},
    ),
    # The trainer reads no test shard, but the manifest names all.
    *(
        row
        for split in ("validation", "test")
        for row in rows_of(
            "shards", "tfrecords.files", f"fetch_shard:{split},00000,00001 {MERGED}", {split: ["text/train-9.tfrecord"]}
        )
    ),
    *(
        row
        for split in ("train", "validation", "test")
        for row in rows_of(
            "trained", "tfrecords.shards",
            f"write_shard:{split},00000,00002 write_shard:{split},00001,00002 {MERGED}", {split: 2},
        )
    ),
    *rows_of_run(TINY, MLM, "jax", MLM_JAX),
    *rows_of_run(SMALL, BASE, "trained", BASE),
    *rows_of_run(PYTHON, FINETUNE, "trained", FINETUNE),
    *rows_of("elsewhere", "mlm.runs.asked", PUBLISHED, {"pretrained": "some/third", "revision": B}),
    *(
        (f"mlm.runs.NAME.init.{key}", "elsewhere", None, {f"{place}.{key}": value for place in ORIGINS}, STARTED)
        for key, value in {"pretrained": "some/third", "revision": B}.items()
    ),
    *rows_of("trained", TINY, MLM_JAX, {"backend": "jax"}),
    *rows_of("jax", TINY, MLM_JAX, {"mesh": [1, 2], "z_loss": 1e-4}),
    *rows_of("jax", TINY, "", {"resources.hosts": 2}),
    *rows_of(
        "trained", TINY, MLM,
        {
            "model.architecture": "bert", "model.hidden_size": 64, "model.num_attention_heads": 4,
            "model.max_position_embeddings": 140, "masking.mlm_probability": 0.2, "masking.mask_replace_prob": 0.7,
            "masking.random_replace_prob": 0.2, "host_device_count": 2, "seed": 1,
        },
    ),
    *rows_of("schedules", TINY, MLM, {"schedule.shape": "cosine"}),
    *rows_of("trained", TINY, MLM_SECOND, {"schedule.decay_steps": 6, "schedule.final_learning_rate": 1e-4}),
    *rows_of("trained", TINY, "train_mlm_tensorflow:tiny,00000030 " + MLM_SECOND, {"steps": 30}),
    *rows_of(
        "trained", TINY, "train_mlm_tensorflow:tiny,00000005 train_mlm_tensorflow:tiny,00000015 " + MLM,
        {"checkpoint_every": 5},
    ),
    *rows_of("trained", TINY, "prune_checkpoint:mlm/tiny,00000010", {"keep_checkpoints": "last"}),
    # A run of another name, with the files that it has by that name.
    *rows_of("trained", TINY, MLM.replace("tiny", "tiny-seed-0"), {"sweep": {"seed": [0]}}),
    *rows_of("trained", PYTHON, FINETUNE.replace("python", "python-seed-0"), {"sweep": {"seed": [0]}}),
    (
        "base.NAME.sweep", "trained", "base.twin", {"sweep": {"preset": ["gemma_2b_en"]}},
        "fetch_base:twin-preset-gemma_2b_en",
    ),
    *rows_of("fetched", SMALL, FETCHED_BASE, {"preset": "hf://some/other", "revision": B}),
    *rows_of(
        "trained", f"{SMALL}.model", BASE,
        {
            "architecture": "gemma2", "num_layers": 3, "num_query_heads": 16, "num_key_value_heads": 4,
            "hidden_dim": 64, "intermediate_dim": 512, "head_dim": 8, "layer_norm_epsilon": 1e-5, "dropout": 0.1,
        },
    ),
    *rows_of("trained", SMALL, BASE, {"mesh": [1, -1]}),
    *rows_of("trained", SMALL, VOCABULARY, {"vocab_size": 2049, "seed": 1}),
    *rows_of(
        "trained", SMALL,
        BASE + " " + shards("tokens/small/corpus/concat-128")
        # The records of the tuning's length now only measure: two of their splits are not needed any more.
        + f"merge_manifest:{CORPUS_SET}",
        {"sequence_length": 128},
    ),
    *rows_of("trained", SMALL, BASE + " " + shards("tokens/small/corpus/pad-64"), {"packing": "pad"}),
    *(
        (f"{key}.shards.{split}", "trained", f"{place}.shards", {split: 2}, f"{jobs} {shards(records, [split], 2)}")
        for key, place, jobs, records in (
            ("base.NAME", SMALL, f"count_tokens:{CORPUS_SET} {BASE}", CORPUS_SET),
            ("finetune", "finetune", FINETUNE, TUNING_SET),
        )
        for split in ("train", "validation", "test")
    ),
    *rows_of("trained", SMALL, "train_base:small,00000030 " + BASE_SECOND, {"steps": 30}),
    *rows_of("trained", SMALL, "train_base:small,00000005 train_base:small,00000015 " + BASE, {"checkpoint_every": 5}),
    *rows_of("schedules", SMALL, BASE, {"schedule.shape": "cosine", "host_device_count": 4}),
    *rows_of("schedules", SMALL, VOCABULARY.replace(".spm", ".json"), {"tokenizer": "byte-level-bpe"}),
    *rows_of("schedules", SMALL, "", {"resources.hosts": 2}),
    *rows_of("trained", SMALL, BASE_SECOND, {"schedule.decay_steps": 6, "schedule.final_learning_rate": 1e-4}),
    *rows_of("trained", SMALL, "prune_checkpoint:base/small,00000010", {"keep_checkpoints": "every 2"}),
    *rows_of(
        "schedules", PYTHON,
        "write_base_tokenizer:given " + FINETUNE + " " + shards("tokens/given/corpus/concat-64", ["validation"])
        + shards("tokens/given/finetune-text/pad-64") + NGRAMS.replace("small", "given"),
        {"base": "given"},
    ),
    *rows_of(
        "trained", PYTHON,
        FINETUNE.replace("export_lora:python", "export_finetune:python export_transformers:finetune,python"),
        {"method": "full"},
    ),
    *rows_of("continued", "finetune.runs.second", FINETUNE.replace("python", "second"), {"init": DELETE}),
    *rows_of(
        "trained", PYTHON, FINETUNE,
        {
            "rank": 4, "alpha": 16, "targets": ["query", "ffn"], "base_precision": "int8", "schedule.shape": "cosine",
            "mesh": [2, 4], "seed": 1,
        },
    ),
    *rows_of("schedules", PYTHON, FINETUNE, {"host_device_count": 4}),
    *rows_of("trained", PYTHON, "export_finetune:python export_transformers:finetune,python", {"merge": True}),
    *rows_of(
        "trained", PYTHON,
        FINETUNE + " " + shards("tokens/small/finetune-text/pad-32")
        + shards("tokens/small/corpus/concat-32", ["validation"]),
        {"sequence_length": 32},
    ),
    *rows_of("trained", PYTHON, FINETUNE + " " + shards("tokens/small/finetune-text/concat-64"), {"packing": "concat"}),
    *rows_of("trained", PYTHON, "train_finetune:python,00000015 " + FINETUNE, {"steps": 15}),
    *rows_of(
        "trained", PYTHON,
        "train_finetune:python,00000002 train_finetune:python,00000004 train_finetune:python,00000006 "
        "train_finetune:python,00000008 " + LORA_SECOND,
        {"checkpoint_every": 2},
    ),
    *rows_of("schedules", PYTHON, LORA_SECOND, {"schedule.decay_steps": 3, "schedule.final_learning_rate": 1e-4}),
    *rows_of("trained", PYTHON, "prune_checkpoint:finetune/python,00000005", {"keep_checkpoints": "last"}),
    *rows_of("trained", PYTHON, "", {"resources.hosts": 2}),
    *rows_of("trained", "prompts", "fill_mask:tiny ", {"fill_mask": ["A [MASK]."]}),
    ("mlm.runs.NAME.published.answers.NAME", "trained", f"{TINY}.published",
     {"source": "here", "answers": {"Return the [MASK] of the list.": ["end"]}}, "compare_published"),
    *rows_of("trained", "prompts", SAMPLES, {"generate": ["class "]}),
    *rows_of(
        "trained", "generation", SAMPLES,
        {"sampler": "greedy", "k": 9, "temperature": 0.7, "max_length": 64, "samples": 4, "seed": 1},
    ),
    *rows_of("trained", "generation", "", {"p": 0.8}),  # top_k does not read it
    *rows_of("posed", "evaluation.harness.own", QUESTIONS.format("own"), {"file": "text/other.yaml"}),
    *rows_of(
        "posed", "evaluation.harness.known", QUESTIONS.format("known"),
        {"task": "hellaswag", "revision": B, "limit": 9},
    ),
    *rows_of("posed", "evaluation.harness.known", ANSWERS.format("known"), {"examples": 5, "max_length": 32}),
    *rows_of(
        "posed", "evaluation.harness.own",
        "export_base_at_step:small,00000020 run_harness:own,base/small/00000020 "
        "run_harness:own,finetune/python/00000010 plot_checkpoints:base/small plot_checkpoints:finetune/python",
        {"checkpoints": "last"},
    ),
    *rows_of("trained", "evaluation", STEPS, {"checkpoints": "last"}),
    *rows_of("trained", "evaluation.text", DRAWN, {"documents": 100, "characters": 500, "seed": 1}),
    *rows_of("trained", "evaluation.text", "score_mlm:mlm/tiny", {"masked_documents": 9}),
    *rows_of("answered", "evaluation.text", "score_responses:python keep_run:finetune/python", {"responses": 9}),
    *rows_of(
        "paired", "evaluation.pairs.sets.mine", "fetch_pairs:mine " + PAIRED,
        {"files": ["text/others.jsonl"], "phenomenon": "field"},
    ),
    *rows_of(
        "paired", "evaluation.pairs.sets.theirs", "fetch_pairs:theirs " + PAIRED, OTHER_SET | {"split": "other"}
    ),
    *rows_of("trained", "evaluation.overlap", "".join(OVERLAPS) + SCORES, {"ngram": 8}),
    # No plan is an input of anything that is trained; archives, publishing and comparing have targets of their own.
    *rows_of(
        "trained", "", "",
        {
            "evaluation.compare": [["mlm/tiny", "base/small"]],
            "plan.topologies": ["v6e-8"], "plan.prices.v5e-8": 9.6, "plan.alternatives": True,
            "plan.spending_limit": 5.0, "report.cpu_watts": 20.0, "report.cpu_price": 0.05, "archive.name": "other",
            "archive.version": "2", "archive.largest_file_mb": 2,
        },
    ),
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
    assert set(leaves(schema, schema)) == {*rows}


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
    "fetch_tokenizer",
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
        workflow.config = changed(config, changes)
        write(workflow, "state.yaml", workflow.config)
        if changes:
            for folder in ("corpus", "finetune-text"):  # what `trained` has not
                for file in (*MADE_ELSEWHERE, "parts/00000.contamination.json"):
                    (workflow / "results" / folder / file).touch()
            for part in sorted((workflow / "results").glob("*/parts/00000.*")):
                for number in range(1, 7):
                    shutil.copy(part, part.with_name(f"0000{number}{part.suffix}"))
            if name in ("asked", "answered", "chatted", "talked"):
                made = workflow / "results/evaluation/finetune/python"
                shutil.copytree(made, workflow / "results/evaluation/responses/finetune/python")
                (workflow / "results/evaluation/responses/finetune/python/responses.json").touch()
            for name in changes.get("evaluation.pairs.sets", []):
                (workflow / "results/evaluation/pairs/sets").mkdir(parents=True, exist_ok=True)
                (workflow / f"results/evaluation/pairs/sets/{name}.parquet").touch()
            if "mlm.runs.asked" in changes:
                for model in ("asked/model", "tiny/init"):
                    shutil.copytree(workflow / "results/mlm/tiny/model", workflow / "results/mlm" / model)
                shutil.copy(workflow / "results/mlm/tiny/fill_mask.json", workflow / "results/mlm/asked")
                scores = workflow / "results/evaluation"
                shutil.copytree(scores / "mlm/tiny", scores / "mlm/asked")
                shutil.copy(scores / "ngrams/corpus/tokenizer.parquet", scores / "ngrams/corpus/mlm-asked.parquet")
            if "tokenizer.compare_with.other" in changes:
                made = workflow / "results/tokenizer"
                (made / "compared/other").mkdir(parents=True)
                for file in made.glob("*.json"):
                    shutil.copy(file, made / "compared/other")
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
TEXT_RULES = (
    r"(fetch_chat_template|read_part|collect_ngrams|find_contamination|assign_splits|build_corpus|describe_corpus):"
)
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
    same = re.sub(r"^(filters\.\w+|near_duplicates)\..*", r"\1", same)  # which jobs take as they are
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
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and "jobs" not in path.parts)
    return {path: path.read_bytes() for path in paths}


def test_deleted_shards_are_written_again_with_the_same_bytes(built):
    folders = [built / "results/tfrecords/train", built / f"results/{CORPUS_SET}"]
    counts = (folders[1] / "token_counts.npy").read_bytes()
    before = [contents(folder) for folder in folders]
    (built / "results/tfrecords/train/00001-of-00004.tfrecord").unlink()
    assert listed(built) == set()  # every model is there: nothing needs it
    assert listed(built, "tfrecords") == {"write_shard:train,00001,00004", "merge_manifest:tfrecords", "tfrecords"}
    for folder in folders:
        shutil.rmtree(folder)
    built("tfrecords")
    (folders[1] / "token_counts.npy").write_bytes(counts)  # no records
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
    sentence = refused(built, *segment)
    assert sentence.startswith(f"train/00000-of-00001.tfrecord and 1 more of results/{CORPUS_SET} were deleted")
    assert "snakemake tfrecords" in sentence
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
    append(built / "scripts/samples/fill_mask.py", "EDITED = 1\n")  # reads no shards
    built("mlm", "--config", "title=Another", "--until", "fill_mask")
    append(built / "scripts/mlm/evaluate_mlm.py", "EDITED = 1\n")
    assert refused(built, "mlm").startswith("validation/00000-of-00001.tfrecord of results/tfrecords ")


def test_a_shard_that_is_written_before_it_is_read_is_not_missed(built):
    config = read_yaml(built / "config.yaml")
    config["tfrecords"]["shards"]["train"] = 2
    write(built, "fewer.yaml", config)
    target = "results/mlm/tiny/checkpoints/00000010/state.json", "--configfile", "fewer.yaml"
    (built / "results/tfrecords/test/00000-of-00001.index").unlink()  # that one no job writes
    assert refused(built, *target).startswith("test/00000-of-00001.index of results/tfrecords ")
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
    assert re.search(r"error: 1 .*results/tfrecords/train/00001-of-00004\.tfrecord is corrupt: ", done.stdout)


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


# Edits that change no number: a text in a file that another one takes the place of; or, without a text, its end.
IDLE_EDITS = [
    ("scripts/tpulm/records/masked_batches.py", "", "# a comment\n\n"),
    ("scripts/tpulm/training/tensorflow_trainer.py", "", '"""A string."""\n'),
    ("scripts/tpulm/specs/schedule.py", " -> float:", " -> object:"),
    ("scripts/tpulm/core/secrets.py", "", "EDITED = 1\n"),  # does not count
    ("scripts/tpulm/models/loading.py", "", "EDITED = 1\n"),  # of the other backend
    ("scripts/tpulm/workflow/checks.py", "", "EDITED = 1\n"),  # only the workflow itself imports it
    ("envs/tensorflow.txt", "\nidna==", "\nidna==9."),
    ("envs/jax.txt", "\nidna==", "\nidna==9."),
]
EDITS = [
    ("scripts/tpulm/records/masked_batches.py", "", "EDITED = 1\n", MLM),
    ("scripts/tpulm/specs/schedule.py", "", "EDITED = 1\n", MLM + " " + BASE),
    ("scripts/tpulm/models/adapters.py", "", "EDITED = 1\n", "export_lora:python"),
    ("scripts/finetune/train_finetune.py", "", "EDITED = 1\n", FINETUNE),
    ("scripts/samples/fill_mask.py", "", "EDITED = 1\n", "fill_mask:tiny "),
    ("envs/tensorflow.txt", "\ntf-keras==", "\ntf-keras==9.", MLM),
]


def edit(workflow, file, old, new):
    text = (workflow / file).read_text()
    assert old in text, file
    (workflow / file).write_text(text.replace(old, new) if old else text + new)
    return text


def test_edits_that_change_no_number_rerun_nothing(built):
    for change in IDLE_EDITS:
        edit(built, *change)
    assert listed(built) == set()


def test_an_edit_reruns_what_computes_with_it(built):
    for file, old, new, expected in EDITS:
        before = edit(built, file, old, new)
        assert listed(built) == set(told(expected).split()), file
        (built / file).write_text(before)
    assert listed(built) == set()


def test_a_new_version_of_jax_reruns_what_runs_it(built):
    edit(built, "envs/jax.txt", "\njax==", "\njax==9.")
    reasons = dict(re.findall(r"^would run  (\w+) .*?  reason: (.*)$", built("-n").stdout, re.M))
    assert {"train_base", "train_finetune", "score_causal"} <= {rule for rule in reasons if "jax was" in reasons[rule]}
    assert "jax was" not in reasons.get("write_causal_shard", "") + reasons.get("score_ngrams", "")  # they only follow
    assert not {*reasons} & {"train_base_vocabulary", "train_tokenizer", "write_shard", "train_mlm_tensorflow"}


def test_results_that_only_their_code_makes_stale_can_be_kept(built):
    """A comment would not do: the code of a trainer has changed, and a rate of another run, which stays stale."""
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (built / "results").rglob("*.*")}
    edit(built, "scripts/tpulm/records/masked_batches.py", "", "EDITED = 1\n")
    config = read_yaml(built / "config.yaml")
    config["finetune"]["runs"]["python"]["schedule"]["warmup_steps"] = 3
    write(built, "rate.yaml", config)
    printed = built("-n", "--configfile", "rate.yaml").stdout
    assert "note: mlm.runs.tiny trains again from step 0: records/masked_batches.py computes otherwise." in printed
    assert "train_finetune" in printed
    command = [sys.executable, "tools/keep_results.py", "--configfile", "rate.yaml"]
    done = subprocess.run(command, cwd=built.folder, capture_output=True, text=True, check=False, timeout=300)
    kept = set(re.findall(r"^kept  (\w+)", done.stdout, re.M))
    assert {"train_mlm_tensorflow", "evaluate_mlm"} <= kept and "train_finetune" not in kept, done.stdout + done.stderr
    assert {job.partition(":")[0] for job in listed(built, "--configfile", "rate.yaml")} == {
        job.partition(":")[0] for job in FINETUNE.split()
    }
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before
    edit(built, "scripts/tpulm/records/masked_batches.py", "EDITED = 1", "EDITED = 2")
    assert "train_mlm_tensorflow:tiny,00000010" in listed(built)


def test_new_and_renamed_runs_are_built_and_swapped_values_are_seen(built):
    config = read_yaml(built / "config.yaml")
    more, renamed, swapped = (copy.deepcopy(config) for _ in range(3))
    more["mlm"]["runs"]["other"] = copy.deepcopy(config["mlm"]["runs"]["tiny"])
    renamed["finetune"]["runs"]["snake"] = renamed["finetune"]["runs"].pop("python")
    swapped["mlm"]["runs"]["tiny"]["masking"] |= {"mask_replace_prob": 0.1, "random_replace_prob": 0.8}
    for name, changes, expected in (
        ("more.yaml", more, MLM.replace("tiny", "other")),
        ("renamed.yaml", renamed, FINETUNE.replace("python", "snake")),
        ("swapped.yaml", swapped, MLM),
    ):
        write(built, name, changes)
        assert listed(built, "--configfile", name) == set(told(expected).split()), name


def test_where_jobs_run_dates_and_the_folder_make_nothing_stale(built, monkeypatch):
    profile = built / "profiles/default/config.yaml"
    profile.write_text(profile.read_text().replace("cores: all", "cores: 1") + "restart-times: 2\n")
    assert listed(built, "--cores", "7", "--set-threads", "train_finetune=3") == set()
    (built / "profiles/elsewhere").mkdir()
    (built / "profiles/elsewhere/config.yaml").write_text(profile.read_text() + "default-resources: [mem_mb=1000]\n")
    monkeypatch.setenv("TPU_NAME", "local")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert listed(built, "--workflow-profile", "profiles/elsewhere") == set()
    for folder in ("scripts", "envs", "schemas", "rules", "results", "profiles"):
        for path in (built / folder).rglob("*"):
            path.touch()
    for path in (built / "config.yaml", built / "Snakefile"):
        path.touch()
    built.folder = built.folder.rename(built.folder.with_name("moved"))
    assert listed(built) == set()


def test_the_reason_is_given_in_old_and_new_values(built):
    config = read_yaml(built / "config.yaml")
    config["mlm"]["runs"]["tiny"]["steps"] = 30
    config["base"]["small"]["batch_size"] = 32
    config["corpus"]["seed"] = 77
    write(built, "longer.yaml", config)
    printed = built("-n", "--configfile", "longer.yaml").stdout
    reasons = dict(re.findall(r"^would run  (\w+ .*?)  reason: (.*)$", printed, re.M))
    longer = reasons["train_mlm_tensorflow tiny 00000020"]
    assert "[[10, 0.003], [12, 0.003], [20, 0.0]] and is [[10, 0.003], [20, 0.003]]" in longer
    assert "batch_size was 4 and is 32" in reasons["train_base small 00000010"]
    assert reasons["read_part corpus 00000"] == "seed was 0 and is 77"
    # A version that computes, in the lock of an environment.
    lock = built / "envs/tensorflow.txt"
    lock.write_text(re.sub(r"^tf-keras==\S+", "tf-keras==9.9.9", lock.read_text(), flags=re.M))
    (reason,) = re.findall(r"^would run  train_mlm_tensorflow tiny 00000010  reason: (.*)$", built("-n").stdout, re.M)
    assert re.fullmatch(r"tf-keras was [\d.]+ and is 9\.9\.9", reason), reason


@pytest.mark.parametrize("segments", [500, pytest.param(2000, marks=pytest.mark.long)])
def test_a_long_chain_of_segments_dry_runs(fresh, segments):
    """Both need more recursion than Python allows by itself."""
    config = read_yaml(fresh / "config.yaml")
    config["mlm"]["runs"]["tiny"] |= {"steps": 10 * segments, "checkpoint_every": 10}
    write(fresh, "long.yaml", config)
    printed = fresh("-n", "--quiet", "rules", "--configfile", "long.yaml").stdout
    assert re.search(rf"^train_mlm_jax +{segments}$", printed, re.M)


def test_clean_lists_and_deletes_what_no_run_needs(built):
    results = built / "results"
    (results / "mlm/old/model").mkdir(parents=True)
    (results / "mlm/old/model/model.safetensors").write_bytes(b"x" * 2_000_000)
    (results / "tfrecords/train/.00000-of-00004.tfrecord.partial").write_bytes(b"half")
    # Scores of checkpoints, which could not be made again where the weights were let go.
    for place in ("finetune/python/00000005", "harness/asked/finetune/python/00000005", "tasks/own/mlm/tiny/00000010"):
        (results / "evaluation" / place).mkdir(parents=True)
        (results / "evaluation" / place / "scores.json").write_text("{}")
    before = contents(results)
    said = built("clean").stdout
    assert re.search(r"results/mlm/old/model/ .*model\.safetensors.* 2\.0 MB", said)
    assert re.search(r"results/tfrecords/train/ .*\.00000-of-00004\.tfrecord\.partial", said)
    assert contents(results) == before
    built("clean_delete")
    assert not (results / "mlm/old").exists()
    assert len(contents(results)) == len(before) - 2
    assert "Nothing to be done" in built("-n").stdout
