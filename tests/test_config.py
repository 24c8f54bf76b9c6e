"""The config: what is filled in, that all that can be wrong in it is named, and what its schema says."""

from pathlib import Path

import conftest
import jsonschema
import pytest
from conftest import DELETE, ROOT
from tpulm.config.reading import complete, read_config, read_yaml, schema
from tpulm.core.errors import UserError
from tpulm.specs.artifacts import SPLITS
from tpulm.specs.causal_families import FAMILIES, TARGETS
from tpulm.specs.recipes import JAX_KEYS
from tpulm.specs.training_step import MOST_HOST_DEVICES

pytestmark = pytest.mark.unit

DEFAULT = read_yaml(ROOT / "config.yaml")
TINY, SMALL, PYTHON, TASK = "mlm.runs.tiny", "base.small", "finetune.runs.python", "evaluation.tasks.modules"


def default_with(**changes):
    return conftest.config_with(DEFAULT, changes)


JAX = {f"{TINY}.backend": "jax", f"{TINY}.model": {"architecture": "modernbert"}}
TENSORFLOW = {f"{TINY}.backend": "tensorflow", f"{TINY}.model": {"architecture": "roberta"}}
POSITIONS, MODEL = f"{TINY}.model.max_position_embeddings", f"{SMALL}.model"
FILED = {"source": "files", "sequence_length": 128, "files": {split: ["x"] for split in SPLITS}}
FIGURES = {"source": "x", "train_loss": 1}
MASKED = dict.fromkeys(("tokenizer", "tfrecords", "mlm"), DELETE)  # what a config without masked models lacks
SHORT = {f"{TINY}.steps": 500, f"{TINY}.checkpoint_every": 250}
COMMIT = {"revision": "a" * 40}
HUB = "a commit of 40 hexadecimal digits"
# What is changed in the shipped config, how the sentence begins: with the key and what was found; what else it says.
WRONG = [
    # keys
    ({"random": 1}, 'the config has no key "random"; known: archive, base, corpus,'),
    ({"corpsu": 1}, 'the config has no key "corpsu"', '"corpus"'),
    ({"tuning": {}}, 'the config has no key "tuning"', "finetune.text"),
    ({f"{TINY}.accumulate": 2}, f'{TINY} has no key "accumulate"', "microbatches"),
    ({"evaluation.select_by": "loss"}, "evaluation.select_by was removed in version 0.3.0: the loss on the validation"),
    ({"trackers": ["wandb", "trackio"]}, 'trackers[1] is "trackio", which version 0.3.0 removed: list tensorboard'),
    ({"corpus": DELETE}, "corpus is missing; mlm.runs needs corpus, tokenizer and tfrecords."),
    ({"corpus": DELETE, **MASKED, "base": DELETE}, "the config has neither corpus", "base, a model to finetune"),
    ({f"{TINY}.steps": DELETE}, f"{TINY} lacks the key steps"),
    ({f"{TINY}.model.vocab_size": 9}, f'{TINY}.model has the key "vocab_size"', "tokenizer"),
    ({"mlm.runs.Tiny": DEFAULT["mlm"]["runs"]["tiny"]}, 'mlm.runs has the name "Tiny"', "64 of a-z, 0-9, _ and -"),
    *(({"mlm.runs": {name: {}}}, "mlm.runs has the name ") for name in ("../x", "-n", "größe", "", "tiny\n")),
    ({"experiment": "sums"}, "experiment", "snakemake -d experiments/NAME"),
    # values
    ({"cpu_threads": 0}, "cpu_threads is 0", "1 or more, at most 256"),
    ({"cpu_threads": "2"}, 'cpu_threads is "2"', "whole number"),
    ({"cpu_threads": True}, "cpu_threads is true"),
    ({"corpus.held_out.test": 0.7}, "corpus.held_out.test is 0.7", "less than 0.5"),
    ({f"{TINY}.learning_rate": 0}, f"{TINY}.learning_rate is 0", "more than 0, at most 10"),
    ({f"{TINY}.backend": "torch"}, f'{TINY}.backend is "torch"', "tensorflow, jax"),
    ({f"{TASK}.models": ["base/small"]}, f'{TASK}.models[0] is "base/small"', "mlm/RUN", "0.3.0", "evaluation.harness"),
    ({f"{TINY}.keep_checkpoints": "every 0"}, f'{TINY}.keep_checkpoints is "every 0"', "every 10"),
    ({f"{TASK}.modules": ["asyncio", "nosuch"]}, f"{TASK}.modules has nosuch", "at least two modules"),
    ({f"{PYTHON}.sequence_length": 100}, f"{PYTHON}.sequence_length is 100", "base.small, 64"),
    ({f"{PYTHON}.targets": ["query", "head"]}, f'{PYTHON}.targets[1] is "head"', "query, key, value, output, ffn"),
    ({f"{MODEL}.head_dim": 15}, f"{MODEL}.head_dim is 15", "2 or more, at most 4096, a multiple of 2"),
    ({"plan.topologies": ["v5e-8", "v5e-8"]}, "plan.topologies is a list of 2", "duplicates"),
    ({"plan.topologies": ["v9-8"]}, 'plan.topologies: "v9-8"', "v5e"),
    ({f"{TINY}.resources.accelerator": "v5e-7"}, f'{TINY}.resources.accelerator: "v5e-7"', "allowed for v5e: "),
    ({f"{PYTHON}.resources.accelerator": "v9-8"}, f'{PYTHON}.resources.accelerator is "v9-8"', "v5e-8", "h100:4"),
    (TENSORFLOW | {f"{TINY}.resources.accelerator": "tpu7x-8"}, f"{TINY}.resources.accelerator is tpu7x-8"),
    ({"prompts.fill_mask": ["no mask"]}, 'prompts.fill_mask[0] is "no mask"', "[MASK] 0 times"),
    # texts
    ({"corpus": {"held_out": {}}}, "corpus needs one of source ", "sources"),
    ({"corpus": {"sources": {"a": {"source": "python-docs"}}, "files": ["a.txt"]}}, "corpus.source is missing"),
    ({"corpus": {"sources": {"a": {"source": "files"}}}}, "corpus.sources.a.files is missing", "globs"),
    ({"corpus.source": "files"}, "corpus.files is missing", "globs"),
    ({"corpus.source": "files", "corpus.files": "a.txt"}, 'corpus.files is "a.txt"', "a list of globs"),
    ({"corpus.files": ["a.txt"]}, "corpus.files is given with source: python-docs", "source: files"),
    ({"corpus.source": "hub", "corpus.dataset": "some/set"}, 'corpus.dataset is "some/set"', f"corpus.revision, {HUB}"),
    ({"corpus.source": "hub", "corpus.dataset": "../set", "corpus.revision": "a" * 40}, 'corpus.dataset is "../set"'),
    ({"finetune.text": DELETE}, "finetune.text is missing", "finetune.runs"),
    *(
        ({"corpus": {"source": "files", "files": ["a.jsonl"]} | changes}, f"corpus{beginning}", *said)
        for changes, beginning, *said in (
            ({"chat_template": "gemma"}, ".chat_template is set, but no source has messages"),
            ({"messages": "talk"}, ".chat_template is missing", "corpus.messages"),
            ({"messages": "talk", "chat_template": "none.jinja"}, ".chat_template is none.jinja"),
            ({"messages": "talk", "chat_template": "some/model"}, '.chat_template is "some/model"'),
            ({"messages": "talk", "chat_template_revision": "a" * 40}, ".chat_template is missing"),
            ({"template": "a {b"}, ".template cannot be read"),
            ({"template": "a {} b"}, ".template has a field "),
            ({"template": "a {b:>3}"}, ".template has a field "),
            ({"template": "a"}, ".template has no field"),
            ({"template": "{a}", "response": "b"}, ".response has no field"),
            ({"template": "{a}", "column": "b"}, " has column and template"),
            ({"response": "{a}"}, ".template is missing"),
            ({"template": "{a}", "response": "{b}", "filters": {"c4": {}}}, ".filters.c4 "),
            ({"filters": {"gopher_quality": {"min_words": -1}}}, ".filters.gopher_quality.min_words is -1"),
            ({"filters": {"gopher": {}}}, '.filters has no key "gopher"', '"gopher_quality"'),
        )
    ),
    # tokenizer and records
    ({"tokenizer.pretrained": "x"}, "tokenizer needs one of vocab_size ", "pretrained"),
    ({"tokenizer": DELETE, "tfrecords": DELETE}, "tokenizer is missing", "mlm.runs"),
    ({"tokenizer": {"pretrained": "some/name"}}, 'tokenizer.pretrained is "some/name"', f"tokenizer.revision, {HUB}"),
    ({"tokenizer": {"pretrained": "README.md"}}, 'tokenizer.pretrained is "README.md", a file', "the folder"),
    ({"tokenizer.revision": "a" * 40}, "tokenizer.pretrained is missing", "tokenizer.revision"),
    ({"tfrecords": FILED}, "tfrecords.source is files", "tokenizer.pretrained"),
    ({"tokenizer": {"pretrained": "scripts"}, "tfrecords": FILED | {"packing": "segments"}}, "tfrecords.packing is"),
    (TENSORFLOW | {"tfrecords.packing": "segments"}, "tfrecords.packing is segments", TINY, "backend: tensorflow"),
    # steps and schedules
    (SHORT | {f"{TINY}.steps": 501}, f"{TINY}.steps is 501", "checkpoint_every, 250"),
    (SHORT | {f"{TINY}.schedule.warmup_steps": 500}, f"{TINY}.schedule.warmup_steps is 500", "less than steps, 500"),
    ({f"{TINY}.schedule": {"shape": "wsd"}}, f"{TINY}.schedule.decay_steps is missing"),
    ({f"{TINY}.schedule": {"shape": "linear", "decay_steps": 5}}, f"{TINY}.schedule.decay_steps "),
    (SHORT | {f"{TINY}.schedule": {"shape": "wsd", "warmup_steps": 400, "decay_steps": 200}}, f"{TINY}.schedule: "),
    ({f"{TINY}.schedule.final_learning_rate": 1.0}, f"{TINY}.schedule.final_learning_rate is 1", "learning_rate"),
    ({f"{SMALL}.profile": {"steps": [20, 10]}}, f"{SMALL}.profile.steps is [20, 10]", "800", "400"),
    ({f"{SMALL}.profile": {"steps": [390, 410]}}, f"{SMALL}.profile.steps is [390, 410]", "800", "400"),
    ({f"{SMALL}.profile": {"steps": [391, 399]}, f"{SMALL}.steps_per_execution": 10}, f"{SMALL}.profile.steps "),
    ({f"{SMALL}.evaluate_every": 5, f"{SMALL}.steps_per_execution": 2}, f"{SMALL}.evaluate_every is 5"),
    # masked models
    (TENSORFLOW | {f"{TINY}.mesh": [1, 1]}, f"{TINY}.mesh is given with backend: tensorflow", "backend: jax"),
    (TENSORFLOW | {f"{TINY}.resources.hosts": 2}, f"{TINY}.resources.hosts is 2", "backend: tensorflow: 1"),
    ({f"{TINY}.model": DELETE}, f"{TINY} needs one of model ", "init", "pretrained"),
    ({f"{TINY}.init": COMMIT | {"pretrained": "x"}}, f"{TINY} needs one of model "),
    ({f"{TINY}.model": DELETE, f"{TINY}.init": COMMIT | {"pretrained": "x"}}, f"{TINY}.init "),
    ({"mlm.runs.other": {"pretrained": "x"}}, 'mlm.runs.other.pretrained is "x"', f"mlm.runs.other.revision, {HUB}"),
    ({"mlm.runs.other": {"pretrained": "x", "steps": 3}}, 'mlm.runs.other has pretrained and "steps"'),
    (TENSORFLOW | {f"{TINY}.model.architecture": "longformer"}, f'{TINY}.model.architecture is "longformer"'),
    (TENSORFLOW | {f"{TINY}.model.architecture": "robeta"}, f'{TINY}.model.architecture is "robeta"', '"roberta"?'),
    (TENSORFLOW | {f"{TINY}.model.architecture": "modernbert"}, f'{TINY}.model.architecture is "modernbert"'),
    *(
        (JAX | {f"{TINY}.model": {"architecture": architecture, key: value}}, f"{TINY}.model.{found}", allowed)
        for architecture, key, value, found, allowed in (
            ("bert", "hidden_size", 8, 'architecture is "bert"', "roberta, modernbert"),
            ("roberta", "hidden_act", "relu", 'hidden_act is "relu"', "gelu"),
            ("roberta", "attention_probs_dropout_prob", 0.2, "attention_probs_dropout_prob is 0.2", "0.1 or 0"),
            ("modernbert", "attention_dropout", 0.1, "attention_dropout is 0.1", "0.0"),
            ("modernbert", "num_attention_heads", 256, "hidden_size is 768", "twice num_attention_heads, 512"),
        )
    ),
    (TENSORFLOW | {"tfrecords.sequence_length": 128, POSITIONS: 128}, f"{POSITIONS} is 128", "132 or more"),
    (JAX | {"tfrecords.sequence_length": 9000}, f"{POSITIONS} is 8192", "9000 or more"),
    ({f"{TINY}.masking": {"mask_replace_prob": 0.9, "random_replace_prob": 0.2}}, f"{TINY}.masking: "),
    (TENSORFLOW | {f"{TINY}.microbatches": 3}, f"{TINY}.batch_size is 8", "microbatches, 3"),
    (TENSORFLOW | {f"{TINY}.microbatches": 4, f"{TINY}.host_device_count": 8}, f"{TINY}.batch_size is 8"),
    ({f"{TINY}.model.hidden_size": 100, f"{TINY}.model.num_attention_heads": 3}, f"{TINY}.model.hidden_size is 100"),
    # causal models
    ({SMALL: {}}, f"{SMALL} needs preset ", "model"),
    ({f"{SMALL}.preset": "gemma_7b_en"}, f'{SMALL} has preset and "model"'),
    ({SMALL: {"preset": "hf://some/model"}}, f"{SMALL}.revision is missing", HUB),
    ({SMALL: COMMIT | {"preset": "gemma_7b_en"}}, f"{SMALL}.revision is given", "hf://"),
    ({SMALL: {"preset": 5}}, f"{SMALL}.preset is 5", "hf://", "kaggle://"),
    ({SMALL: {"preset": "kaggle://keras/gemma/keras/gemma_7b_en"}}, f'{SMALL}.preset is "kaggle://', ".../1"),
    ({SMALL: {"preset": "gemma_2b_enn"}}, f'{SMALL}.preset is "gemma_2b_enn"', '; did you mean "gemma_2b_en"?'),
    ({SMALL: {"preset": "google/gemma-2b"}}, f'{SMALL}.preset is "google/', '; did you mean "hf://google/gemma-2b"?'),
    ({SMALL: {"preset": "bert_base_en"}}, f'{SMALL}.preset is "bert_base_en"', "a causal preset"),
    ({SMALL: {"preset": "schemas"}}, f'{SMALL}.preset is "schemas"', "config.json"),
    ({SMALL: {"preset": "./nowhere"}}, f'{SMALL}.preset is "./nowhere", and there is no such folder', "allowed: "),
    ({SMALL: {"preset": "kaggle://keras/bart/keras/bart_base_en/1"}}, f"{SMALL}.preset is ", "no counterpart"),
    ({f"{MODEL}.num_query_heads": 8, f"{MODEL}.num_key_value_heads": 3}, f"{MODEL}.num_query_heads is 8"),
    ({f"{MODEL}.architecture": "llama3"}, f"{MODEL}.head_dim is given with architecture: llama3", "qwen3"),
    ({f"{MODEL}.head_dim": DELETE}, f"{MODEL} lacks the key head_dim"),
    ({f"{MODEL}.architecture": "qwen2", f"{MODEL}.head_dim": DELETE, f"{MODEL}.hidden_dim": 18}, f"{MODEL}.hidden_dim"),
    ({f"{MODEL}.architecture": "mistral", f"{SMALL}.packing": "segments"}, f"{SMALL}.packing is segments", "mistral"),
    ({f"{MODEL}.architecture": "mistral", f"{SMALL}.tokenizer": "byte-level-bpe"}, f"{SMALL}.tokenizer is byte-level"),
    ({f"{SMALL}.optimizer": {"name": "lion", "beta_1": 0}}, f"{SMALL}.optimizer.beta_1 is 0", "name: lion"),
    ({f"{PYTHON}.optimizer": {"name": "muon"}}, f"{PYTHON}.optimizer.name is muon", "method: lora: adamw"),
    (TENSORFLOW | {f"{TINY}.optimizer": {"name": "muon"}}, f"{TINY}.optimizer.name is muon"),
    ({f"{PYTHON}.base": "smal"}, f'{PYTHON}.base is "smal"', "base: small"),
    ({f"{PYTHON}.init": "python"}, f'{PYTHON}.init is "python"', "finetune.runs"),
    ({f"{PYTHON}.base_precision": "float32", f"{PYTHON}.precision": "bfloat16"}, f"{PYTHON}.base_precision "),
    ({f"{PYTHON}.precision": "bfloat16", f"{PYTHON}.method": "full"}, f'{PYTHON}.precision is "bfloat16"'),
    ({f"{PYTHON}.layout": {".*kernel": ["batch", "modle"]}}, f'{PYTHON}.layout..*kernel[1] is "modle"', "batch, model"),
    ({f"{PYTHON}.layout": {"(kernel": ["batch"]}}, f'{PYTHON}.layout: "(kernel"', "regular expression"),
    ({f"{PYTHON}.layout": {".*kernel": ["model", "model"]}}, f'{PYTHON}.layout: ".*kernel"', "model twice"),
    ({f"{PYTHON}.resources.hosts": 3}, f"{PYTHON}.resources.hosts is 3", "host_device_count, 8"),
    ({f"{PYTHON}.mesh": [1, 3]}, f"{PYTHON}.mesh is [1, 3]", "host_device_count, 8"),
    ({f"{PYTHON}.mesh": [0, 8]}, f"{PYTHON}.mesh is [0, 8]", "1 or more, one of which may be -1"),
    ({f"{PYTHON}.mesh": [8, 1], f"{PYTHON}.batch_size": 12}, f"{PYTHON}.batch_size is 12", "mesh, 8"),
    # evaluation
    ({"evaluation": {"harness": {"piqa": {"examples": 0}}}}, "evaluation.harness.piqa needs file or revision", HUB),
    ({f"{TASK}.metrics": ["pearson"]}, f"{TASK}.metrics has pearson"),
    ({f"{TASK}.models": ["mlm/none"]}, f'{TASK}.models has "mlm/none"', "mlm/tiny"),
    (TENSORFLOW | {f"{TINY}.model.architecture": "bert", f"{TASK}.models": ["mlm/tiny"]}, f"{TASK}.models "),
    ({f"{TASK}.sequence_length": 8193}, f"{TASK}.sequence_length is 8193", "8192", TINY),
    ({f"{TASK}.steps": 5, f"{TASK}.checkpoint_every": 2}, f"{TASK}.steps is 5", "checkpoint_every, 2"),
    ({f"{TASK}.mesh": [1, 2], f"{TASK}.host_device_count": 1}, f"{TASK}.mesh is [1, 2]", "host_device_count, 1"),
    ({f"{TASK}.learning_rates": []}, f"{TASK}.learning_rates is a list of 0"),
    # sweeps
    ({f"{TINY}.sweep": [1]}, f"{TINY}.sweep is a list", "{seed: [0, 1, 2]}"),
    ({f"{TINY}.sweep": {}}, f"{TINY}.sweep is empty", "{seed: [0, 1, 2]}"),
    ({f"{TINY}.sweep": {"seed": []}}, f"{TINY}.sweep.seed is an empty list", "[0, 1, 2]"),
    ({f"{TINY}.sweep": {"learning_rate": [1e-4, 0.0001]}}, f"{TINY}.sweep.learning_rate holds 1e-4 twice"),
    ({f"{TINY}.sweep": {"seed": [0]}, "mlm.runs.tiny-seed-0": DEFAULT["mlm"]["runs"]["tiny"]}, f"{TINY}.sweep creates"),
    ({f"{TINY}.sweep": {"sede": [0]}}, 'mlm.runs.tiny-sede-0 has no key "sede"', '"seed"'),
    ({f"{TINY}.sweep": {"steps.more": [1]}}, f"{TINY}.sweep.steps.more is given"),
    ({f"{TINY}.sweep": {"seed": list(range(40)), "batch_size": list(range(1, 41))}}, f"{TINY}.sweep creates 1,600 "),
    ({f"{TINY}.sweep": {"keep_checkpoints": ["x" * 60]}}, f"{TINY}.sweep creates a run named tiny-keep"),
    # published figures
    ({f"{TINY}.published": {"source": "x"}}, f"{TINY}.published", "train_loss"),
    ({f"{TINY}.published": FIGURES | {"last_steps": 9999}}, f"{TINY}.published.last_steps", "9999", "2100"),
    ({f"{TINY}.published": FIGURES | {"answers": {"A [MASK].": ["b"]}}}, f"{TINY}.published.answers", "fill_mask"),
    ({f"{PYTHON}.published": FIGURES | {"answers": {"[MASK]": ["b"]}}}, f'{PYTHON}.published has no key "answers"'),
    ({f"{SMALL}.published": FIGURES | {"differs": {"train_accuracy": "y"}}}, f"{SMALL}.published.differs", SMALL),
    ({f"{SMALL}.published": {"train_loss": 1}}, f"{SMALL}.published", "source"),
    ({"tfrecords.shards": 4}, "tfrecords.shards is 4", "mapping"),
    # archives and publishing
    ({"publish": {"private": True}}, "publish needs hub ", "gcs"),
    ({"publish": {"gcs": "gs://bucket/"}}, 'publish.gcs is "gs://bucket/"', "gs://BUCKET or gs://BUCKET/PREFIX"),
    ({"publish": {"gcs": "gs://bucket", "branch": "b"}}, "publish.hub is missing", "publish.branch"),
    ({"publish": {"hub": "me/a", "artifacts": ["mlm", "mlm/tin"]}}, 'publish.artifacts[1] is "mlm/tin"'),
    ({"publish": {"hub": "me/a-"}}, 'publish.hub names a repository "a--tokenizer"', "at most 96 characters"),
    ({"publish": {"hub": "me/a", "sync": "every 1"}, f"{TINY}.keep_checkpoints": "last"}, "publish.sync is every 1"),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case[1][:50])
def test_wrong_config(case):
    changes, beginning, *said = case
    with pytest.raises(UserError) as error:
        complete(default_with(**changes), "config.yaml")
    sentence = str(error.value)
    assert sentence.startswith(f"config.yaml: {beginning}") and sentence[-1] in ".?" and "\n" not in sentence
    assert [text for text in said if text not in sentence] == []


@pytest.mark.parametrize(("mesh", "devices"), [([2, 4], 8), ([-1, 2], 2), ([1, -1], 1)])
def test_devices_on_cpus_follow_from_the_mesh(mesh, devices):
    """Not from where the run trains: several hosts may bring the devices of -1."""
    for place in ({}, {f"{PYTHON}.resources": {"hosts": 2, "accelerator": "v5e-16"}}):
        changes = {f"{PYTHON}.mesh": mesh, f"{PYTHON}.host_device_count": DELETE} | place
        config = conftest.config_with(DEFAULT, changes)
        assert complete(config, "config.yaml")["finetune"]["runs"]["python"]["host_device_count"] == devices


def test_yaml_1_2(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("a: 1e-4\nb: yes\nc: 010\n")
    assert read_yaml(path) == {"a": 1e-4, "b": "yes", "c": 10}
    # Runs that are one by an anchor are two, each with its defaults.
    config = default_with()
    config["mlm"]["runs"]["other"] = config["mlm"]["runs"]["tiny"]
    runs = complete(config, "c")["mlm"]["runs"]
    assert runs["other"] == runs["tiny"] == complete(DEFAULT, "c")["mlm"]["runs"]["tiny"]


def test_values_of_the_command_line_are_numbers_where_numbers_are_meant():
    config = read_config([ROOT / "config.yaml"], {"mlm": {"runs": {"tiny": {"learning_rate": "1e-4"}}}})
    assert config["mlm"]["runs"]["tiny"]["learning_rate"] == 1e-4
    sizes = {"mlm": {"runs": {"tiny": {"model": {"initializer_range": "2e-2"}}}}}
    assert read_config([ROOT / "config.yaml"], sizes)["mlm"]["runs"]["tiny"]["model"]["initializer_range"] == 0.02
    given = {"title": "2024", "archive": {"version": "1"}, "corpus": {"source": "files", "files": ["1", "2.txt"]}}
    config = read_config([ROOT / "config.yaml"], given)
    assert (config["title"], config["archive"]["version"], config["corpus"]["files"]) == ("2024", "1", ["1", "2.txt"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", 'c.yaml, line 2: the key "a"'),
        ("a: [1\n", "c.yaml, line 2: not valid YAML"),
        ("a: !!python/object/apply:os.system ['touch owned']\n", "c.yaml, line 1: not valid YAML: "),
        ("title: &a [*a]\n", "c.yaml: title[0][0] is nested deeper "),
        ("- 1\n", "c.yaml holds a list"),
        ("", "c.yaml is empty"),
    ],
)
def test_unreadable_config(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(text)
    with pytest.raises(UserError) as error:
        read_config(["c.yaml"], {})
    # With its whole path: this is not the folder of the workflow.
    assert str(error.value).startswith(f"{tmp_path}/{message}") and "\n" not in str(error.value)
    assert not Path("owned").exists()


def test_neither_the_order_of_keys_nor_how_a_number_is_written_matters():
    one = complete(default_with(**{"mlm.runs.tiny.optimizer.global_clipnorm": 1}), "c")
    other = complete(default_with(**{"mlm.runs.tiny.optimizer.global_clipnorm": 1.0}), "c")
    assert repr(one) == repr(other)
    backwards = {key: DEFAULT[key] for key in reversed(DEFAULT)}
    backwards["generation"] = {key: DEFAULT["generation"][key] for key in reversed(DEFAULT["generation"])}
    assert repr(complete(backwards, "c")) == repr(complete(DEFAULT, "c"))


def test_the_schema_agrees_with_the_code():
    jsonschema.Draft202012Validator.check_schema(schema())
    parts = schema()["$defs"]
    run = parts["mlm_run"]["properties"]
    only = {*JAX_KEYS, "determinism", "profile", "z_loss", "phases"} - {"microbatches"}
    assert parts["mlm_run"]["only_with"] == {key: {"backend": ["jax"]} for key in only}
    for name in ("training", "mlm_run", "base", "finetune_run"):
        assert parts[name]["properties"]["host_device_count"]["maximum"] == MOST_HOST_DEVICES
    model, tuned = parts["base"]["properties"]["model"], parts["finetune_run"]["properties"]
    assert model["properties"]["architecture"]["enum"] == list(FAMILIES)
    assert model["only_with"]["head_dim"]["architecture"] == [name for name in FAMILIES if FAMILIES[name].head_dim]
    assert tuned["targets"]["items"]["enum"] == list(TARGETS)
    names, optimizer = run["optimizer"]["properties"]["name"]["enum"], run["optimizer"]
    assert list(optimizer["default_by"]["name"]) == names
    for name, given in optimizer["default_by"]["name"].items():
        assert {key for key, rule in optimizer["only_with"].items() if name in rule["name"]} == set(given)
