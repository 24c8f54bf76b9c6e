"""What runs again after a change: for every key of the config, and for files, exactly the jobs that must.

A row names a key of the schema, the state that the change starts from, a key of the config, its new value, and the jobs
that the change reaches by itself, as rule:wildcard,wildcard; what follows from these is in the graph that Snakemake has
of the state. A key without a row fails.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from functools import cache
from itertools import product

import pytest
from conftest import DELETE, config_with, configured, copied, write_record
from kills import fingerprints, flip, half_written, wait_for
from tpulm.config.reading import SCHEMA, read_yaml
from tpulm.core import ledger

SPLITS = "train", "validation", "test"


def shards(records, splits=SPLITS, files=1):
    """Return the jobs that write records for causal models, in a set that the state has not."""
    jobs = [f"merge_manifest:{records}", *([f"count_tokens:{records}"] * ("/corpus/" in records and "train" in splits))]
    for split in splits:
        jobs += [f"write_causal_shard:{records},{split},{number:05d},{files:05d}" for number in range(files)]
    return " ".join(jobs)


def train(kind, *steps):
    """Return the jobs that train the run of a kind up to each of these steps."""
    run = {"base": "small", "finetune": "python"}.get(kind, "tiny")
    return " ".join(f"train_{kind}:{run},{step:08d}" for step in steps)


# The first jobs of the runs of the fixture `trained`, and their second segments.
MLM, MLM_SECOND = train("mlm_tensorflow", 10), train("mlm_tensorflow", 20)
BASE, BASE_SECOND = train("base", 10), train("base", 20)
FINETUNE, FINETUNE_SECOND = train("finetune", 5), train("finetune", 10)
MLM_JAX = MLM.replace("_tensorflow", "_jax")
TUNING_SET, CORPUS_SET = "tokens/small/finetune-text/pad-64", "tokens/small/corpus/concat-64"
SHARDS = ["train,00000,00004", "train,00001,00004", "train,00002,00004", "train,00003,00004"]
SHARDS += ["validation,00000,00001", "test,00000,00001"]
RECORDS = " ".join(f"write_shard:tfrecords,{shard}" for shard in SHARDS)
FETCHED_RECORDS = " ".join(f"fetch_shard:{shard}" for shard in SHARDS) + " merge_manifest:tfrecords"
VOCABULARY = "train_base_vocabulary:small/vocabulary.spm"
COLLECTIONS = "corpus", "finetune-text"
OVERLAPS = " ".join(f"find_overlap:texts/{scored},{trained}" for scored, trained in product(COLLECTIONS, COLLECTIONS))
# The last checkpoints are scored.
STEPS = (
    "export_mlm_at_step:tiny,00000020 score_mlm:mlm/tiny/00000020 plot_checkpoints:mlm/tiny "
    "export_base_at_step:small,00000020 score_causal:base/small/00000020 plot_checkpoints:base/small "
    "score_causal:finetune/python/00000010 plot_checkpoints:finetune/python"
)
# A run takes the model that it starts from, and the records its tokenizer, from the same place.
ORIGINS = ("tokenizer", "mlm.runs.tiny.init")

A, B, C, D = (letter * 40 for letter in "abcd")
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
ANSWERED = HUB | {"template": "{question}", "response": "{answer}"}
CHATTED = HUB | {"messages": "talk"}
CHAT = {"chat_template": "some/model", "chat_template_revision": A}
MIXED = CHAT | {
    "sources": {
        "answered": ANSWERED, "chatted": CHATTED, "hub": HUB, "listed": {"source": "files", "files": ["text/*.txt"]},
        "named": NAMED,
    }
}  # fmt: skip
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
        "source": "files", "files": {split: ["text/a.jsonl"] for split in SPLITS},
    },
    "hubbed": LABELLED | {"source": "hub", "text_pair": "other", "mesh": [1, 1]} | {
        key: HUB[key] for key in ("dataset", "name", "revision", "splits")
    },
    "moduled": LABELLED | {
        "source": "python-modules", "modules": ["json", "email"], "optimizer": {"name": "adafactor"}, "mesh": [-1, 1],
        "host_device_count": 2,
    },
}  # fmt: skip


TINY, SMALL, PYTHON = "mlm.runs.tiny", "base.small", "finetune.runs.python"
# States in which everything is up to date: the config of `trained` with keys replaced.
STATES = {
    "trained": {},
    "alone": {
        **dict.fromkeys(("corpus", "tokenizer", "tfrecords", "mlm"), DELETE),
        "base": {"small": {"preset": "hf://some/base", "revision": A}},
    },
    "schedules": {
        "mlm.runs.tiny.schedule": LINEAR,
        "base.small.schedule": LINEAR, "base.small.mesh": [-1, 1], "base.small.host_device_count": 2,
        "base.small.model.architecture": "llama3", "base.small.model.head_dim": DELETE,
        "finetune.runs.python.schedule": {"shape": "wsd", "warmup_steps": 2, "decay_steps": 4},
        "finetune.runs.python.mesh": [1, -1],
        "base.given": {"preset": "hf://some/base", "revision": A},
        "tokenizer": {"pretrained": "some/tokenizer", "revision": A}, "tfrecords": FILED,
    },
    "elsewhere": {
        "tokenizer": {"pretrained": "some/model", "revision": A},
        "mlm.runs.tiny.model": DELETE, "mlm.runs.tiny.init": {"pretrained": "some/model", "revision": A},
        "mlm.runs.asked": {"pretrained": "some/other", "revision": A},
        "finetune.runs.second": SECOND | {"init": "python"},
    },
    "tasks": {"evaluation.tasks": TASKS, "corpus": MIXED},
    "more": {
        "corpus": CHATTED | CHAT, "finetune.text": ANSWERED,
        "tokenizer.compare_with.other": {"pretrained": "some/tokenizer", "revision": A},
        "evaluation.harness": {"own": {"file": "text/task.yaml"}, "known": {"task": "piqa", "revision": A}},
        "evaluation.pairs.sets": {
            "mine": {"files": ["text/pairs.jsonl"]},
            "theirs": {"dataset": "some/set", "name": "one", "revision": A, "split": "test"},
        },
    },
    "phased": JAX | {
        "corpus": {
            "sources": {name: {"source": "files", "files": [f"text/{name}.txt"]} for name in "ab"},
            "held_out": {"validation": 0.1, "test": 0.1},
        },
        f"{TINY}.phases": [{"until": 10}, {"until": 20, "sequence_length": 64, "batch_size": 4}],
        f"{SMALL}.phases": [{"until": 10}, {"until": 20, "weights": {"a": 1, "b": 1}}],
        f"{PYTHON}.phases": [{"until": 5}, {"until": 10, "batch_size": 8}],
    },
    "jax": JAX | {f"{run}.optimizer": {"name": "adafactor"} for run in (TINY, SMALL, PYTHON)} | {
        "corpus": NAMED, "finetune.text": FILTERED,
    },
}  # fmt: skip


def rows_of(state, place, jobs, values):
    """Return a row for each of the values by key in a place of the config, after which the same jobs run."""
    keys = {f"{place}.{name}".lstrip("."): value for name, value in values.items()}
    return [(named(key), state, key, value, jobs) for key, value in keys.items()]


def rows_at_once(state, jobs, values):
    """Return a row for each of the values by key, of which each has jobs of its own, for one run with all of them."""
    return [(named(key), state, None, values, jobs) for key in values]


def rows_of_whole(state, place, jobs, value, *keys):
    """Return a row for each of the keys of a place that has another value as a whole, after which the same jobs run."""
    return [(f"{named(place)}.{key}", state, place, value, jobs) for key in keys]


def named(key):
    """Return the key of the schema for one of the config: NAME stands for a name that the user chooses."""
    return re.sub(r"(^base|\bruns|\bsources|\btasks|\bharness|\bsets|\bprices|\bcompare_with)\.[\w-]+", r"\1.NAME", key)


def leaves(schema, root, path=""):
    """Yield dotted path and schema of every value that a config can hold; NAME is a name that the user chooses."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]] | {k: v for k, v in schema.items() if k != "$ref"}
    named, more = schema.get("properties"), schema.get("additionalProperties")
    for kind in schema.get("anyOf", []):
        if "properties" in kind:
            yield from leaves(kind, root, path)
    if named is None and not isinstance(more, dict):
        yield path, schema
    for key, part in (named or {}).items():
        yield from leaves(part, root, f"{path}.{key}".lstrip("."))
    if isinstance(more, dict):
        yield from leaves(more, root, f"{path}.NAME")


# Other values of keys that texts and runs have in common.
OTHER_SET = {"dataset": "some/other", "name": "two", "revision": B}
OTHER_SPLITS = {"splits.train": "train[:90%]", "splits.validation": "test[:9%]", "splits.test": "test[9%:]"}
OTHER_NUMBERS = {
    "optimizer.weight_decay": 0.02, "optimizer.beta_1": 0.8, "optimizer.beta_2": 0.98, "optimizer.epsilon": 1e-6,
    "optimizer.global_clipnorm": 0.5, "precision": "mixed_bfloat16",
}  # fmt: skip
OTHER_RUN = OTHER_NUMBERS | {
    "batch_size": 16, "learning_rate": 0.004, "evaluate_every": 5, "schedule.warmup_steps": 4,
}  # fmt: skip
OTHER_DECAY = {"schedule.decay_steps": 6, "schedule.final_learning_rate": 1e-4}
OTHER_ON_JAX = {"microbatches": 2, "determinism": "steps", "remat": True, "steps_per_execution": 5}
OTHER_PUBLISHED = {
    "source": "here", "last_steps": 5, "train_loss": 1.0, "train_accuracy": 0.5, "validation_loss": 1.0,
    "validation_accuracy": 0.5, "seconds_per_step": 0.1,
}  # fmt: skip
PUBLISHED = OTHER_PUBLISHED | {"differs": {"train_loss": "another text"}}
ANSWERS = {"answers": {"Return the [MASK] of the list.": ["end"]}}
OTHER_PLACE = {
    "resources.accelerator": "v5e-8", "resources.mem_gb": 16, "resources.runtime": 30, "resources.snapshot_every": 5,
}  # fmt: skip
OTHER_ADAFACTOR = {
    "optimizer.beta_2_decay": -0.7, "optimizer.epsilon_1": 1e-20, "optimizer.epsilon_2": 1e-4,
    "optimizer.clip_threshold": 2.0,
}  # fmt: skip
OTHER_MUON = {"name": "muon", "momentum": 0.9, "adam_lr_ratio": 0.5}


def parts_of(collection):
    """Return the jobs that read the parts of a text, of which MIXED has most."""
    return [f"read_part:{collection},{number:05d}" for number in range(13)]


def rows_of_text(text, collection, source):
    """Yield the rows of a text of one source, and of another source."""
    yield from rows_of("trained", text, parts_of(collection)[0], {"source": source, "seed": 1, "min_characters": 5})
    held_out = {"held_out.validation": 0.06, "held_out.test": 0.06}
    yield from rows_of("trained", text, f"assign_splits:{collection}", held_out)
    yield from rows_of("trained", text, f"build_corpus:{collection}", {"max_documents": 5000})


def rows_of_kinds():
    """Yield the rows of texts of other kinds: where the corpus is NAMED, CHATTED or MIXED, the other text is not."""
    parts, tuned = parts_of("corpus"), parts_of("finetune-text")
    for number, (key, value) in enumerate(OTHER_SPLITS.items()):
        yield from rows_of("jax", "corpus", parts[number], {key.replace("splits", "files"): ["text/d.txt"]})
        yield from rows_of("more", "finetune.text", tuned[number], {key: value})
        yield from rows_of("tasks", "corpus.sources.hub", parts[6 + number], {key: value})
    # FILTERED
    other = {"ngram": 8, "files": ["text/c.txt"], "column": "other"}
    yield from rows_of("jax", "finetune.text.decontaminate", "collect_ngrams:finetune-text", other)
    other, schema = {"files": ["text/a.txt"], "sample_by": "document", "column": "body"}, read_yaml(SCHEMA)
    for path, found in leaves(schema["$defs"]["text"], schema):
        if path.startswith(("near_duplicates.", "filters.")):
            other[path] = another(found["default"])
    yield from rows_of("jax", "finetune.text", tuned[0], other)
    # ANSWERED
    other = {"template": "{other}", "response": "{other}"}
    yield from rows_of("more", "finetune.text", " ".join(tuned[:3]), OTHER_SET | other)
    # CHATTED
    yield from rows_of_messages("more", "corpus", " ".join(parts[:3]))
    chat = {"chat_template": "gemma", "chat_template_revision": B}
    yield from rows_of("more", "corpus", "fetch_chat_template:corpus", chat)
    # MIXED: parts 0 to 2 are of answered, 3 to 5 of chatted, 6 to 8 of hub, 9 of listed, 10 to 12 of named.
    answered, talked, hub, listed, of_splits = (f"corpus.sources.{name}" for name in MIXED["sources"])
    yield from rows_of("tasks", answered, " ".join(parts[:3]), other)
    yield from rows_of_messages("tasks", talked, " ".join(parts[3:6]))
    yield from rows_of("tasks", hub, " ".join(parts[6:9]), OTHER_SET | {"column": "body"})
    yield from rows_of("tasks", listed, "build_corpus:corpus", {"weight": 2.5})
    yield from rows_of("tasks", listed, parts[9], {"files": ["text/a.txt"], "sample_by": "document"})
    yield "corpus.sources.NAME.source", "tasks", listed, {"source": "python-docs"}, parts[9]
    files = {f"{of_splits}.files.{split}": ["text/d.txt"] for split in SPLITS}
    yield from rows_at_once("tasks", " ".join(parts[10:]), files)


def rows_of_messages(state, place, jobs):
    yield from rows_of(state, place, jobs, {"messages": "other"})
    columns = {"system": "rules", "user": "question", "assistant": "answer"}
    yield from rows_of_whole(state, f"{place}.messages", jobs, columns, *columns)


def another(value):
    if isinstance(value, list):
        return list(map(another, value))
    return not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else round(value / 2, 4)


def rows_of_run(run, jobs, on_jax, jobs_on_jax):
    """Yield the rows of what all runs have; on JAX, they start from the state `on_jax`."""
    yield from rows_of("trained", run, jobs, OTHER_RUN)
    yield from rows_of(on_jax, run, jobs_on_jax, OTHER_ON_JAX)
    # It takes two evaluations until patience can run out: there is no third segment.
    yield from rows_of("trained", run, "", OTHER_PLACE | {"patience": 1})
    yield from rows_of(on_jax, run, "", {"profile.steps": [2, 4]})
    yield from rows_of("jax", run, jobs_on_jax, OTHER_ADAFACTOR | {"optimizer.name": "lion"})
    keys = () if run == PYTHON else ("momentum", "adam_lr_ratio")  # it has LoRA
    yield from rows_of_whole("jax", f"{run}.optimizer", jobs_on_jax, OTHER_MUON, *keys)
    yield from rows_of_whole("jax", f"{run}.layout", jobs_on_jax, {".*embeddings": [None, "model"]}, "NAME")


def jobs_of_task(task, *steps, rule="train_task", weights=("pretrained", "random"), model="mlm/tiny"):
    chains = (f"evaluation/tasks/{task}/{model}/{start}-rate-0.001-seed-0" for start in weights)
    return " ".join(f"{rule}:{chain},{step:08d}" for chain in chains for step in steps)


def rows_of_tasks():
    place = "evaluation.tasks"
    filed, hubbed, moduled = (f"{place}.{task}" for task in TASKS)
    train, second, scored = jobs_of_task("filed", 2), jobs_of_task("filed", 4), "score_task:filed,mlm/tiny"
    source = TASKS["moduled"] | {"optimizer": {}, "host_device_count": 1}
    yield f"{place}.NAME.source", "tasks", filed, source, "read_task:filed"
    files = ("files", "files.train", "files.validation", "files.test")
    other = {key: ["text/a.jsonl" if key == "files" else "text/b.jsonl"] for key in files}
    other |= {"predict": "number", "text": "body", "label": "class"}
    yield from rows_of("tasks", filed, "read_task:filed", other)
    other = OTHER_NUMBERS | {"optimizer.name": "lion", "sequence_length": 24, "batch_size": 8}
    yield from rows_of("tasks", filed, train, other | {"schedule.warmup_steps": 2})
    yield from rows_of_whole("tasks", f"{filed}.optimizer", train, OTHER_MUON, "momentum", "adam_lr_ratio")
    yield from rows_of_whole("tasks", f"{filed}.schedule", train, {"shape": "cosine", "warmup_steps": 1}, "shape")
    yield from rows_of("tasks", filed, "", OTHER_PLACE | {"models": ["mlm/tiny"], "keep_checkpoints": "all"})
    other = {"schedule.decay_steps": 2, "schedule.final_learning_rate": 0.0001}
    yield from rows_of("tasks", filed, second, other)
    yield from rows_of("tasks", filed, scored, {"title": "Other words", "metrics": ["f1"]})
    at_step = {"weights": ["pretrained"], "model": "mlm/tiny/00000020"}
    for name, value, jobs in [
        # Only the first segment reads the other task's weights.
        ("init", "moduled", jobs_of_task("filed", 2, weights=["pretrained"])),
        ("baselines", ["majority", "bag_of_words", "random_weights"], "fit_task_baselines:filed"),
        ("steps", 6, f"{second} {jobs_of_task('filed', 6)} {jobs_of_task('filed', 4, rule='prune_checkpoint')}"),
        ("checkpoint_every", 1,
         f"{train} {jobs_of_task('filed', 1, 3)} {jobs_of_task('filed', 1, 3, rule='prune_checkpoint')}"),
        ("learning_rates", [0.002], f"{train} rate-0.001->rate-0.002"),
        ("seeds", [1], f"{train} seed-0->seed-1"),
        ("checkpoints", "last",
         f"export_mlm_at_step:tiny,00000020 {jobs_of_task('filed', 2, 4, **at_step)} "
         f"{jobs_of_task('filed', 2, rule='prune_checkpoint', **at_step)} predict_task:filed,mlm/tiny/00000020 "
         "score_task:filed,mlm/tiny/00000020 plot_checkpoints:mlm/tiny"),
    ]:  # fmt: skip
        yield from rows_of("tasks", filed, jobs, {name: value})
    yield from rows_of("tasks", hubbed, "read_task:hubbed", OTHER_SET | OTHER_SPLITS | {"text_pair": "third"})
    other = {"modules": ["json", "random"], "held_out.validation": 0.2, "held_out.test": 0.2, "held_out.seed": 1}
    yield from rows_of("tasks", moduled, "read_task:moduled", other)
    other = OTHER_ADAFACTOR | {"mesh": [1, -1], "host_device_count": 4}
    yield from rows_of("tasks", moduled, jobs_of_task("moduled", 2), other)
    yield from rows_of("tasks", moduled, "", {"resources.hosts": 2})


# (key of the schema, state, key of the config, new value, jobs); with None for the key, new values by key
ROWS = [
    *rows_of_text("corpus", "corpus", "python-source"),
    *rows_of_text("finetune.text", "finetune-text", "python-docs"),
    *rows_of_kinds(),
    *rows_of_tasks(),
    *rows_of("trained", "", "", {"title": "Other words", "trackers": []}),
    *rows_of("trained", "", f"{MLM} {BASE}", {"cpu_threads": 2}),
    *rows_of(
        "trained", "tokenizer", "train_tokenizer",
        {
            "vocab_size": 2049, "train_on.characters": 10**6, "train_on.seed": 1, "character_coverage": 0.99,
            "byte_fallback": True, "normalization": "none", "whitespace": "runs",
        },
    ),
    *rows_of_whole(
        "trained", "tokenizer", "train_tokenizer",
        {"vocab_size": 2048, "model": "byte-level-bpe", "pre_tokenizer": "llama3"}, "model", "pre_tokenizer",
    ),
    *rows_of("schedules", "tokenizer", "fetch_tokenizer:tokenizer", {"pretrained": "some/other", "revision": B}),
    *rows_of(
        "more", "tokenizer.compare_with.other", "fetch_tokenizer:tokenizer/compared/other",
        {"pretrained": "some/other", "revision": D},
    ),
    *rows_of("trained", "tfrecords", RECORDS, {"packing": "pad", "sequence_length": 127}),
    ("tfrecords.source", "elsewhere", "tfrecords", FILED, FETCHED_RECORDS),
    # The trainer reads no test shard, but the manifest names all.
    *rows_at_once(
        "schedules", "fetch_shard:train,00003,00004 fetch_shard:validation,00000,00001 fetch_shard:test,00000,00001",
        {
            "tfrecords.files.train": ["text/train-[0-2].tfrecord", "text/train-9.tfrecord"],
            "tfrecords.files.validation": ["text/train-7.tfrecord"], "tfrecords.files.test": ["text/train-8.tfrecord"],
        },
    ),
    *rows_at_once(
        "trained",
        f"{shards(CORPUS_SET, files=2)} {shards(TUNING_SET, files=2)} merge_manifest:tfrecords "
        + " ".join(f"write_shard:tfrecords,{split},{number:05d},00002" for split in SPLITS for number in range(2)),
        {f"{place}.shards.{split}": 2 for place in ("tfrecords", SMALL, "finetune") for split in SPLITS},
    ),
    # Only the last phase changes, and with it its segment; of a phase as the run, none does.
    *rows_of(
        "phased", TINY, MLM_SECOND.replace("_tensorflow", "_jax"),
        {"phases": [{"until": 10, "batch_size": 8}, {"until": 20, "sequence_length": 64, "batch_size": 8}]},
    ),
    *rows_of("phased", SMALL, BASE_SECOND, {"phases": [{"until": 10}, {"until": 20, "weights": {"a": 1, "b": 3}}]}),
    *rows_of("phased", PYTHON, FINETUNE_SECOND, {"phases": [{"until": 5}, {"until": 10, "batch_size": 2}]}),
    *rows_of_run(TINY, MLM, "jax", MLM_JAX),
    *rows_of_run(SMALL, BASE, "trained", BASE),
    *rows_of_run(PYTHON, FINETUNE, "trained", FINETUNE),
    *rows_of("elsewhere", "mlm.runs.asked", "fetch_mlm:mlm/asked/model", {"pretrained": "some/third", "revision": B}),
    *(
        (f"mlm.runs.NAME.init.{key}", "elsewhere", None, {f"{place}.{key}": value for place in ORIGINS},
         "fetch_mlm:mlm/tiny/init fetch_tokenizer:tokenizer")
        for key, value in {"pretrained": "some/third", "revision": B}.items()
    ),
    *rows_at_once(
        "trained",
        f"{MLM} _tensorflow->_jax {BASE} {shards('tokens/small/corpus/pad-64')} export_finetune:python "
        "export_transformers:finetune,python",
        {f"{TINY}.backend": "jax", f"{SMALL}.packing": "pad", f"{PYTHON}.merge": True},
    ),
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
    *rows_of("trained", TINY, MLM_SECOND, OTHER_DECAY),
    *rows_at_once(
        "trained",
        f"{MLM_SECOND} {train('mlm_tensorflow', 30)} {BASE_SECOND} {train('base', 30)} {train('finetune', 15)}",
        {f"{TINY}.steps": 30, f"{SMALL}.steps": 30, f"{PYTHON}.steps": 15},
    ),
    *rows_at_once(
        "trained",
        f"{MLM} {train('mlm_tensorflow', 5, 15)} {BASE} {train('base', 5, 15)} {train('finetune', 2, 4, 6, 8)} "
        f"-{FINETUNE}",
        {f"{TINY}.checkpoint_every": 5, f"{SMALL}.checkpoint_every": 5, f"{PYTHON}.checkpoint_every": 2},
    ),
    *rows_at_once(
        "trained",
        "prune_checkpoint:mlm/tiny,00000010 prune_checkpoint:base/small,00000010 "
        "prune_checkpoint:finetune/python,00000005",
        {f"{run}.keep_checkpoints": keep for run, keep in ((TINY, "last"), (SMALL, "every 2"), (PYTHON, "last"))},
    ),
    # Runs of other names, with the files that they have by these names.
    *rows_at_once(
        "trained", f"{MLM} {FINETUNE} fetch_base:twin-preset-gemma_2b_en tiny->tiny-seed-0 python->python-seed-0",
        {f"{run}.sweep": {"seed": [0]} for run in (TINY, PYTHON)} | {"base.twin.sweep": {"preset": ["gemma_2b_en"]}},
    ),
    *rows_of("alone", SMALL, "fetch_base:small", {"preset": "hf://some/other", "revision": B}),
    *rows_of(
        "trained", f"{SMALL}.model", BASE,
        {
            "architecture": "gemma2", "num_layers": 3, "num_query_heads": 16, "num_key_value_heads": 4,
            "hidden_dim": 64, "intermediate_dim": 512, "head_dim": 8, "layer_norm_epsilon": 1e-5, "dropout": 0.2,
        },
    ),
    *rows_of("trained", SMALL, BASE, {"mesh": [1, -1]}),
    *rows_of("trained", SMALL, VOCABULARY, {"vocab_size": 2049, "seed": 1}),
    *rows_of(
        "trained", SMALL,
        # The records of the tuning's length now only measure: two of their splits are not needed any more.
        f"{BASE} {shards('tokens/small/corpus/concat-128')} merge_manifest:{CORPUS_SET} -count_tokens:{CORPUS_SET}",
        {"sequence_length": 128},
    ),
    *rows_of("schedules", SMALL, BASE, {"schedule.shape": "cosine", "host_device_count": 4}),
    *rows_of("schedules", SMALL, f"{VOCABULARY} .spm->.json", {"tokenizer": "byte-level-bpe"}),
    *rows_of("schedules", SMALL, "", {"resources.hosts": 2}),
    *rows_of("trained", SMALL, BASE_SECOND, OTHER_DECAY),
    *rows_of(
        "schedules", PYTHON,
        f"{FINETUNE} write_base_tokenizer:given score_ngrams:corpus,base-given score_ngrams:finetune-text,base-given "
        + shards("tokens/given/corpus/concat-64", ["validation"]) + " " + shards("tokens/given/finetune-text/pad-64")
        + " continue_prompts:small",
        {"base": "given"},
    ),
    *(
        (
            f"finetune.runs.NAME.{key}", "trained", None,
            {f"{PYTHON}.method": "full", f"{PYTHON}.optimizer": OTHER_MUON},
            f"{FINETUNE} export_finetune:python export_transformers:finetune,python -export_lora:python",
        )
        for key in ("method", "optimizer.momentum", "optimizer.adam_lr_ratio")
    ),
    *rows_of("elsewhere", "finetune.runs.second", FINETUNE.replace("python", "second"), {"init": DELETE}),
    *rows_of(
        "alone", PYTHON, FINETUNE,
        {
            "rank": 4, "alpha": 16.0, "targets": ["query", "ffn"], "base_precision": "int8", "schedule.shape": "cosine",
            "mesh": [2, 4], "seed": 1,
        },
    ),
    *rows_of("schedules", PYTHON, FINETUNE, {"host_device_count": 4}),
    *rows_of(
        "trained", PYTHON,
        f"{FINETUNE} {shards('tokens/small/finetune-text/pad-32')} "
        + shards("tokens/small/corpus/concat-32", ["validation"]),
        {"sequence_length": 32},
    ),
    *rows_of("trained", PYTHON, f"{FINETUNE} {shards('tokens/small/finetune-text/concat-64')}", {"packing": "concat"}),
    *rows_of("schedules", PYTHON, FINETUNE_SECOND, OTHER_DECAY | {"schedule.decay_steps": 3}),
    *rows_of("trained", PYTHON, "", {"resources.hosts": 2}),
    *rows_of("trained", "prompts", "fill_mask:tiny", {"fill_mask": ["A [MASK]."]}),
    *(
        (f"{named(run)}.published.{key}", "trained", None,
         {f"{TINY}.published": PUBLISHED | ANSWERS, f"{SMALL}.published": PUBLISHED, f"{PYTHON}.published": PUBLISHED},
         "compare_published")
        for run in (TINY, SMALL, PYTHON)
        for key in (*OTHER_PUBLISHED, "differs.NAME", *(["answers.NAME"] if run == TINY else []))
    ),
    *rows_of("trained", "prompts", "generate:python", {"generate": ["class "]}),
    *rows_of(
        "trained", "generation", "generate:python",
        {"k": 9, "temperature": 0.7, "max_new_tokens": 64, "samples": 4, "seed": 2},
    ),
    *rows_of_whole(
        "trained", "generation", "generate:python",
        {"sampler": "greedy", "max_length": 64, "samples": 2, "seed": 0}, "sampler", "max_length",
    ),
    *rows_of("trained", "generation", "", {"p": 0.8}),  # top_k does not read it
    *rows_of("more", "evaluation.harness.own", "read_harness_task:own", {"file": "text/other.yaml"}),
    *rows_of(
        "more", "evaluation.harness.known", "read_harness_task:known",
        {"task": "hellaswag", "revision": C, "limit": 9},
    ),
    *rows_of(
        "more", "evaluation.harness.known", "run_harness:known,base/small run_harness:known,finetune/python",
        {"examples": 5, "max_length": 32},
    ),
    *rows_of(
        "more", "evaluation.harness.own",
        "export_base_at_step:small,00000020 run_harness:own,base/small/00000020 "
        "run_harness:own,finetune/python/00000010 plot_checkpoints:base/small plot_checkpoints:finetune/python",
        {"checkpoints": "last"},
    ),
    *rows_of("trained", "evaluation", STEPS, {"checkpoints": "last"}),
    *rows_of(
        "trained", "evaluation.text", "sample_texts:corpus sample_texts:finetune-text",
        {"documents": 100, "characters": 500, "seed": 3},
    ),
    *rows_of("trained", "evaluation.text", "score_mlm:mlm/tiny", {"masked_documents": 9}),
    *rows_of("more", "evaluation.text", "generate:python", {"responses": 9}),
    *rows_of(
        "more", "evaluation.pairs.sets.mine", "fetch_pairs:mine",
        {"files": ["text/others.jsonl"], "phenomenon": "field"},
    ),
    *rows_of("more", "evaluation.pairs.sets.theirs", "fetch_pairs:theirs", OTHER_SET | {"split": "other"}),
    *rows_of("trained", "evaluation.overlap", OVERLAPS, {"ngram": 8}),
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
    *rows_of(
        "trained", "publish", "",
        {
            "hub": "me/models", "gcs": "gs://bucket", "artifacts": ["mlm"], "private": False, "branch": "second",
            "license": "mit",
        },
    ),
    ("publish.sync", "trained", "publish", {"hub": "me/models", "sync": "every 1"}, ""),  # not with patience
]  # fmt: skip


def of_either_text(key):
    """Return a key as that of the corpus, where it is one of the finetuning text."""
    return re.sub(r"^finetune\.text\.", "corpus.", key)


def test_every_key_of_the_schema_has_a_row():
    """The corpus and the finetuning text have the same keys and rules: a row of one is a row of both."""
    schema = read_yaml(SCHEMA)
    corpus, tuning = schema["properties"]["corpus"], schema["properties"]["finetune"]["properties"]["text"]
    assert corpus["$ref"] == tuning["$ref"]
    rows = [row[0] for row in ROWS]
    assert len(rows) == len(set(rows)) > 100
    assert {of_either_text(path) for path, _ in leaves(schema, schema)} == set(map(of_either_text, rows))


def write(workflow, name, config):
    (workflow / name).write_text(json.dumps(config))  # which is YAML, and quicker than its library


# Jobs that follow from nearly all others: the page, and the table of all runs.
OF_ALL = {"all", "compare_runs", "write_report"}


def name_of(rule, wildcards):
    return ":".join([rule, ",".join(wildcards)] if wildcards else [rule])


def jobs(printed):
    """Return the reasons of the jobs that a dry run lists, but OF_ALL, by rule:wildcard,wildcard."""
    lines = re.findall(r"^would run  (\w+) ?(\S+(?: \S+)*)?  reason: (.*)$", printed, re.M)
    return {name_of(rule, values.split()): reason for rule, values, reason in lines if rule not in OF_ALL}


def listed(workflow, *arguments):
    return {*jobs(workflow("-n", *arguments).stdout)}


def described(workflow):
    """Yield what Snakemake says of every job, as if nothing had been made: (job, rule, inputs, outputs, log)."""
    printed = workflow("-n", "--forceall", "--verbose").stdout
    for rule, lines in re.findall(r"^(?:local)?rule (\w+):\n((?:    .*\n)+)", printed, re.M):
        said = dict(line.strip().split(": ", 1) for line in lines.splitlines() if ": " in line)
        parts = defaultdict(list, {key: text.split(", ") for key, text in said.items()})
        job = name_of(rule, [wildcard.partition("=")[2] for wildcard in parts["wildcards"]])
        yield job, rule, parts["input"], parts["output"], said.get("log")


def graph_of(found):
    """Return the jobs that take an output of each job, by its name."""
    makers = {path: job for job, _, _, outputs, _ in found for path in outputs}
    graph = defaultdict(set)
    for job, _, inputs, *_ in found:
        for path in makers.keys() & set(inputs):
            graph[makers[path]] |= {job} - OF_ALL
    return graph


def followed(graph, text):
    """Return jobs and all that follow from them; then -JOB is left out, and OLD->NEW stands in all names."""
    words, found = text.split(), set()
    queue = [word for word in words if word[0] != "-" and "->" not in word]
    while queue:
        job = queue.pop()
        if job not in found:
            found.add(job)
            queue += graph.get(job, ())
    found -= {word[1:] for word in words}
    for old, _, new in (word.partition("->") for word in words if "->" in word):
        found = {job.replace(old, new) for job in found}
    return found


@pytest.fixture(scope="session")
def in_state(trained, tmp_path_factory):
    """Return a function that gives a folder for one of STATES, in which nothing is left to be done.

    Each is a copy of the fixture `trained`. Where the config is another, what it makes beside that is empty, and
    `--touch` has noted that all files are its own, which costs no training.
    """
    config = read_yaml(trained / "config.yaml")

    @cache
    def state(name):
        workflow = copied(trained, tmp_path_factory.mktemp("states") / name)
        workflow.steady = True
        workflow.config = json.loads(json.dumps(config_with(config, STATES[name])))  # in which nothing stands twice
        (workflow / "text").mkdir()
        for file in (*"abcd", *(f"train-{number}" for number in (0, 1, 2, 3, 7, 8, 9)), "validation", "test"):
            (workflow / f"text/{file}.txt").write_text(f"{file}\n")
            (workflow / f"text/{file}.tfrecord").write_text(file)
        for file in (*"abc", "pairs", "others", "data"):
            (workflow / f"text/{file}.jsonl").write_text("{}\n")
        for file in ("task", "other"):
            (workflow / f"text/{file}.yaml").write_text(TASK)
        write(workflow, "config.yaml", workflow.config)
        found = list(described(workflow))
        workflow.graph = graph_of(found)
        for _, rule, _, outputs, log in found:
            made = [workflow / path for path in outputs if not (workflow / path).exists()]
            for path in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch() if path.suffix else path.mkdir()
            if log and not (workflow.folder / ledger.path_of(log)).exists():
                write_record(workflow.folder, log, rule, 0, 1)
        if STATES[name]:
            workflow("--touch", "--forceall")
        return workflow

    return state


def after(workflow, rows):
    """Return the jobs that are listed after the changes of all these rows, with their reasons."""
    changes = {}
    for _, _, key, value, _ in rows:
        changes |= {key: value} if key else value
    write(workflow, "rows.yaml", config_with(workflow.config, changes))
    return jobs(workflow("-n", "--configfile", "rows.yaml").stdout)


# Keys that are in no recipe themselves, but in the knots of a schedule, [step, rate]; at which of these a decay begins.
IN_KNOTS = "shape", "learning_rate", "warmup_steps", "decay_steps", "final_learning_rate"
DECAY_BEGINS = {6: 14, 3: 7, 2: 2}


def told_of(row):
    """Return the last part of a row's key, and its new value."""
    schema_key, _, key, value, _ = row
    name = schema_key.rpartition(".")[2]
    if key is None:
        value = {named(changed_key): new for changed_key, new in value.items()}.get(schema_key)
    elif isinstance(value, dict):
        value = value.get(name, value)
    return name, value


def tells(reason, row):
    """Return whether the reason of a job says that a row's new value is in its recipe."""
    name, value = told_of(row)
    knots = re.search(r"schedule was .*? and is (\[\[.*?\]\]|\{.*?\})", reason)
    if knots and name in IN_KNOTS:
        told = DECAY_BEGINS[value] if name == "decay_steps" else value
        return re.search(rf"[\[ ']{re.escape(str(told))}[],']", knots[1]) is not None
    told = rf"(?:^|[ .]){name} was (?:(?! and is ).)* and is {re.escape(str(value))}(?:[,;]|$)"
    return re.search(rf"{told}|'{name}': {re.escape(repr(value))}[,}}]", reason) is not None


# Keys whose new values do not go with those of other rows of the same place.
EXCLUSIVE = "optimizer.name", "tasks.NAME.files", "tasks.NAME.predict"


def places_of(row):
    """Return the parts of the config that a row changes: texts, runs, tasks, and sections."""
    _, _, key, value, _ = row
    places = r"finetune\.text|(?:mlm\.runs|finetune\.runs|base|evaluation\.tasks)\.\w+|\w+"
    return {re.match(places, changed_key)[0] for changed_key in (value if key is None else [key])}


def together(rows, graph):
    """Return lists of rows that are changed together.

    Together are those that reach no job; of a section, those that reach jobs of the graph; others where they reach the
    same jobs. New values that do not go with others of their place are changed with those of other places.
    """
    present, groups, beside = graph.keys() | set().union(*graph.values()), defaultdict(list), []
    for row in rows:
        schema_key, _, key, value, text = row
        jobs, alone = frozenset(text.split()), isinstance(value, dict) or schema_key.endswith(EXCLUSIVE)
        if jobs - present or not jobs and not alone:
            groups[jobs].append(row)
        elif not alone:
            groups[re.match(r"corpus|finetune\.\w+|mlm|base|evaluation\.tasks|", schema_key)[0]].append(row)
        elif group := next((group for group in beside if goes_with(row, group)), None):
            group.append(row)
        else:
            beside.append([row])
    return [*groups.values(), *beside]


def goes_with(row, group):
    """Return whether a row makes the change of another one of a group, or one of its own at another place."""
    alike = any(row[2:4] == other[2:4] for other in group)
    return alike or all(not places_of(row) & places_of(other) and told_of(row) != told_of(other) for other in group)


@pytest.mark.parametrize("state", STATES)
def test_a_changed_key_reruns_just_what_it_decides(in_state, state):
    """Rows together rerun no more than each; each does, by what the reasons tell, or else by a run of its own."""
    workflow = in_state(state)
    for rows in together([row for row in ROWS if row[1] == state], workflow.graph):
        texts = {row[4]: followed(workflow.graph, row[4]) for row in rows}
        found, reached = after(workflow, rows), {job for text in texts for job in text.split()}
        assert {*found} == set.union(*texts.values()), [row[0] for row in rows]
        changes = {repr(row[2:4]): row for row in rows}.values()
        for row in changes if reached and len(changes) > 1 else ():
            told = {job for job in reached if tells(found.get(job, ""), row)}
            if not {*row[4].split()} <= told <= texts[row[4]]:
                assert {*after(workflow, [row])} == texts[row[4]], row[0]


TRAIN_SHARD = "results/tfrecords/train/00001-of-00004.tfrecord"


def test_deleted_shards_are_written_again_with_the_same_bytes(built):
    """Also after a kill in the job of one; nothing is trained again."""
    folders = [built / "results/tfrecords/train", built / f"results/{CORPUS_SET}"]
    counts = (folders[1] / "token_counts.npy").read_bytes()
    before = [fingerprints(folder) for folder in folders]
    (built / TRAIN_SHARD).unlink()
    assert listed(built) == set()  # every model is there: nothing needs it
    assert listed(built, "tfrecords") == {f"write_shard:tfrecords,{SHARDS[1]}", "merge_manifest:tfrecords", "tfrecords"}
    log = built / "logs/tfrecords/train/00001-of-00004.log"
    log.unlink()
    running = built.start("tfrecords")
    wait_for(log.exists, running, every=0.01)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert not (built / TRAIN_SHARD).exists() and any((built / ".snakemake/incomplete").iterdir())
    for folder in folders:
        shutil.rmtree(folder)
    built("tfrecords")
    (folders[1] / "token_counts.npy").write_bytes(counts)  # no records
    assert [fingerprints(folder) for folder in folders] == before
    assert "Nothing to be done" in built("-n").stdout


def refused(workflow, *arguments):
    """Return the sentence in which a run ends before its first job."""
    done = workflow(*arguments, check=False)
    assert done.returncode and "Traceback" not in done.stdout and "start   " not in done.stdout, done.stdout
    (sentence,) = re.findall(r"^error: (.*)$", done.stdout, re.M)
    return sentence


def test_a_deleted_shard_is_missed_before_a_segment_reads_it(built):
    """And only then: the segments that are finished read nothing any more."""
    decay = configured(built, {"base.small.schedule.decay_steps": 6}, "decay.yaml")
    shards = [built / f"results/{CORPUS_SET}/train/00000-of-00001.{kind}" for kind in ("tfrecord", "index")]
    before = [shard.read_bytes() for shard in shards]
    for shard in shards:
        shard.unlink()
    segment = "results/base/small/checkpoints/00000020/state.json", *decay
    sentence = refused(built, *segment)
    assert sentence.startswith(f"train/00000-of-00001.tfrecord and 1 more of results/{CORPUS_SET} were deleted")
    assert "snakemake tfrecords" in sentence
    fewer = configured(built, {"base.small.schedule.decay_steps": 6, "tfrecords.shards.train": 2})
    first = "results/mlm/tiny/checkpoints/00000010/state.json", *fewer
    (built / "results/tfrecords/test/00000-of-00001.index").unlink()  # no job of that run writes it
    assert refused(built, *first).startswith("test/00000-of-00001.index of results/tfrecords ")
    built("tfrecords", *fewer)
    assert [shard.read_bytes() for shard in shards] == before
    assert listed(built, *segment) == {BASE_SECOND}
    assert listed(built, *first) == {MLM}


def test_a_deleted_shard_is_missed_where_an_edit_needs_it(built):
    (built / "results/tfrecords/validation/00000-of-00001.tfrecord").unlink()
    edit(built, "scripts/report/plot_training.py", "", "EDITED = 1\n")  # reads no shards
    built("results/figures/training/mlm-tiny.svg")
    edit(built, "scripts/mlm/evaluate_mlm.py", "", "EDITED = 1\n")
    assert refused(built, "mlm").startswith("validation/00000-of-00001.tfrecord of results/tfrecords ")


def test_a_shard_with_other_bytes_reruns_nothing(built):
    """Its model was trained on the bytes that it had; tests/test_faults.py refuses and verifies these."""
    flip(built / TRAIN_SHARD)
    assert listed(built) == set()


def test_a_line_added_to_one_text_file(in_state, tmp_path):
    """It is the validation split of the corpus, and one of several files of the finetuning text."""
    graph, workflow = in_state("jax").graph, copied(in_state("jax"), tmp_path)
    edit(workflow, "text/b.txt", "", "one more line\n")
    parts = "read_part:corpus,00001 read_part:finetune-text,00000"
    assert listed(workflow) == followed(graph, parts)


def test_the_page_is_written_again_when_what_it_tells_has_changed(built):
    told = configured(built, {"title": "Other words", "report.cpu_watts": 20.0, "plan.prices": {"v5e-8": 9.6}})
    runs = dict(re.findall(r"^would run  (\w+)  reason: (.*)$", built("-n", *told).stdout, re.M))
    assert {*runs} == {"write_report", "all"}
    assert all(key in runs["write_report"] for key in ("title was ", "cpu_watts was ", "prices")), runs
    style = built / "report/page/page.css"
    before = style.read_text()
    style.write_text(f"{before}/* edited */\n")
    assert "would run  write_report" in built("-n").stdout
    style.write_text(before)
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
# Edits that do, together where they reach different jobs.
EDITS = [
    (
        (MLM, "scripts/tpulm/records/masked_batches.py", "", "EDITED = 1\n"),
        (FINETUNE, "scripts/finetune/train_finetune.py", "", "EDITED = 1\n"),
    ),
    ((f"{MLM} {BASE}", "scripts/tpulm/specs/schedule.py", "", "EDITED = 1\n"),),
    (
        ("export_lora:python", "scripts/tpulm/models/adapters.py", "", "EDITED = 1\n"),
        ("fill_mask:tiny", "scripts/samples/fill_mask.py", "", "EDITED = 1\n"),
    ),
    # What opens a base model's vocabulary imports keras-hub, and so JAX; its models and records follow.
    (("write_base_tokenizer:small", "envs/jax.txt", "\njax==", "\njax==9."),),
    ((MLM, "envs/tensorflow.txt", "\ntf-keras==", "\ntf-keras==9."),),
]


def edit(workflow, file, old, new):
    """Edit a file of the workflow; return what was in it."""
    workflow.steady = False
    text = (workflow / file).read_text()
    assert old in text, file
    (workflow / file).write_text(text.replace(old, new) if old else text + new)
    return text


def test_an_edit_reruns_what_computes_with_it(built, in_state):
    graph = in_state("trained").graph
    for change in IDLE_EDITS:
        edit(built, *change)
    assert listed(built) == set()
    for changes in EDITS:
        before = {file: edit(built, file, *words) for _, file, *words in changes}
        found = jobs(built("-n").stdout)
        assert {*found} == followed(graph, " ".join(text for text, *_ in changes)), before.keys()
        for file, text in before.items():
            (built / file).write_text(text)
    assert re.match(r"tf-keras was [\d.]+ and is 9\.[\d.]+$", found[MLM]), found[MLM]


def test_results_that_only_their_code_makes_stale_can_be_kept(built, in_state):
    """A comment would not do: the code of a trainer has changed, and a rate of another run, which stays stale."""
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (built / "results").rglob("*.*")}
    edit(built, "scripts/tpulm/records/masked_batches.py", "", "EDITED = 1\n")
    other_rate = configured(built, {"finetune.runs.python.schedule.warmup_steps": 3})
    printed = built("-n", *other_rate).stdout
    assert "note: mlm.runs.tiny trains again from step 0: records/masked_batches.py computes otherwise." in printed
    assert "train_finetune" in printed
    command = [sys.executable, "tools/keep_results.py", *other_rate]
    done = subprocess.run(command, cwd=built.folder, capture_output=True, text=True, check=False, timeout=300)
    kept = set(re.findall(r"^kept  (\w+)", done.stdout, re.M))
    assert {"train_mlm_tensorflow", "evaluate_mlm"} <= kept and "train_finetune" not in kept, done.stdout + done.stderr
    assert listed(built, *other_rate) == followed(in_state("trained").graph, FINETUNE)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before
    edit(built, "scripts/tpulm/records/masked_batches.py", "EDITED = 1", "EDITED = 2")
    assert MLM in listed(built)


def test_new_and_renamed_runs_are_built_and_swapped_values_are_seen(built, in_state):
    config, graph = read_yaml(built / "config.yaml"), in_state("trained").graph
    masked, tuned = config["mlm"]["runs"], config["finetune"]["runs"]
    runs = {"mlm.runs.other": masked["tiny"], "finetune.runs": {"snake": tuned["python"]}}
    swapped = {"mask_replace_prob": 0.1, "random_replace_prob": 0.8}
    other = configured(built, runs | {f"{TINY}.masking.{key}": value for key, value in swapped.items()})
    expected = [MLM, f"{MLM} tiny->other", f"{FINETUNE} python->snake"]
    assert listed(built, *other) == set.union(*(followed(graph, text) for text in expected))


def test_where_jobs_run_dates_and_the_folder_make_nothing_stale(built, monkeypatch):
    profile = built / "profiles/default/config.yaml"
    profile.write_text(profile.read_text().replace("cores: all", "cores: 1") + "restart-times: 2\n")
    assert listed(built, "--cores", "7", "--set-threads", "train_finetune=3") == set()
    (built / "profiles/elsewhere").mkdir()
    (built / "profiles/elsewhere/config.yaml").write_text(profile.read_text() + "default-resources: [mem_mb=1000]\n")
    monkeypatch.setenv("TPU_NAME", "local")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    folders = ("scripts", "envs", "schemas", "rules", "results", "profiles")
    dated = [path for folder in folders for path in (built / folder).rglob("*")]
    for path in (*dated, built / "config.yaml", built / "Snakefile"):
        path.touch()
    built.folder = built.folder.rename(built.folder.with_name("moved"))
    assert listed(built, "--workflow-profile", "profiles/elsewhere") == set()


def test_the_reason_is_given_in_old_and_new_values(built):
    longer = configured(built, {f"{TINY}.steps": 30, f"{SMALL}.batch_size": 32, "corpus.seed": 77})
    reasons = jobs(built("-n", *longer).stdout)
    knots = "[[10, 0.002], [12, 0.002], [20, 0.0]] and is [[10, 0.002], [20, 0.002]]"
    assert knots in reasons[MLM_SECOND] and "batch_size was 4 and is 32" in reasons[BASE]
    assert reasons["read_part:corpus,00000"] == "seed was 0 and is 77"


@pytest.mark.parametrize("segments", [500, pytest.param(2000, marks=pytest.mark.long)])
def test_a_long_chain_of_segments_dry_runs(fresh, segments):
    """Both need more recursion than Python allows by itself."""
    fresh.steady = True
    long = configured(fresh, {f"{TINY}.steps": 10 * segments, f"{TINY}.checkpoint_every": 10})
    printed = fresh("-n", "--quiet", "rules", *long).stdout
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
    before = fingerprints(results)
    said = built("clean").stdout
    assert re.search(r"results/mlm/old/model/ .*model\.safetensors.* 2\.0 MB", said)
    assert re.search(r"results/tfrecords/train/ .*\.00000-of-00004\.tfrecord\.partial", said)
    assert fingerprints(results) == before and half_written(built)
    built("clean_delete")
    assert not (results / "mlm/old").exists() and not half_written(built)
    assert before.keys() - fingerprints(results).keys() == {"mlm/old/model/model.safetensors"}
    assert "Nothing to be done" in built("-n").stdout
