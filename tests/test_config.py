"""The config: what is filled in, and the exact sentence for everything that can be wrong in it."""

import copy
from pathlib import Path

import pytest
from lib.config import complete, read_config, read_yaml
from lib.errors import UserError

ROOT = Path(__file__).parents[1]
DEFAULT = read_yaml(ROOT / "config.yaml")
DELETE = object()
NAMES = "allowed: up to 64 of a-z, 0-9, _ and -, the first a letter or a digit."
TINY, SMALL, PYTHON = "mlm.runs.tiny", "base.small", "lora.runs.python"


def changed(**changes):
    """Return the shipped config with values at dotted paths replaced, added or deleted."""
    config = copy.deepcopy(DEFAULT)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = config
        for key in parents:
            place = place.setdefault(key, {})
        if value is DELETE:
            del place[last]
        else:
            place[last] = value
    return config


# One row per mistake: what is changed in the shipped config, and the sentence after "config.yaml: ".
WRONG = [
    ({"corpsu": 1}, 'the config has no key "corpsu"; did you mean "corpus"?'),
    ({"corpus": DELETE}, "the config lacks the key corpus."),
    ({"cpu_threads": 0}, "cpu_threads is 0; allowed: a whole number, 1 or more, at most 1024."),
    ({"cpu_threads": "2"}, 'cpu_threads is "2"; allowed: a whole number, 1 or more, at most 1024.'),
    ({"title": None}, "title is empty; allowed: text."),
    ({"corpus.source": "web"}, 'corpus.source is "web"; allowed: python-docs, python-source, files, hub.'),
    ({"corpus.source": "files"}, "corpus.files is missing; source: files needs a list of globs."),
    ({"corpus.source": "hub"}, "corpus.dataset is missing; source: hub needs the name of a dataset."),
    (
        {"corpus.source": "hub", "corpus.dataset": "some/set"},
        "corpus.revision is missing; a dataset of the hub is pinned to a commit of 40 hexadecimal digits, "
        "so that it cannot change.",
    ),
    (
        {"corpus.source": "hub", "corpus.dataset": "some/set", "corpus.revision": "main"},
        'corpus.revision is "main"; allowed: a commit of 40 hexadecimal digits.',
    ),
    ({"corpus.files": ["a.txt"]}, "corpus.files is given with source: python-docs; it belongs to source: files."),
    (
        {"corpus.source": "files", "corpus.files": "a.txt"},
        'corpus.files is "a.txt"; allowed: a list of globs, or such a list for train, validation and test.',
    ),
    (
        {"corpus.held_out.test": 0.7},
        "corpus.held_out.test is 0.7; allowed: a number, more than 0, less than 0.5.",
    ),
    ({"tokenizer": {}}, "tokenizer needs one of vocab_size (train one) and pretrained (use one that exists)."),
    ({"tokenizer": DELETE}, "tokenizer is missing; mlm.runs need it."),
    (
        {"tokenizer": {"pretrained": "some/name"}},
        'tokenizer.pretrained is "some/name", which is no local folder; a name on the hub needs '
        "tokenizer.revision, a commit of 40 hexadecimal digits.",
    ),
    (
        {"tokenizer.revision": "a" * 40},
        "tokenizer.revision is given without tokenizer.pretrained; it pins a name on the hub.",
    ),
    ({"tokenizer.vocab_size": 3}, "tokenizer.vocab_size is 3; allowed: a whole number, 16 or more, at most 1000000."),
    (
        {"tfrecords.sequence_length": 1.5},
        "tfrecords.sequence_length is 1.5; allowed: a whole number, 8 or more, at most 65536.",
    ),
    ({"tfrecords.shards.dev": 1}, 'tfrecords.shards has no key "dev"; known: test, train, validation.'),
    ({"mlm.runs.Tiny": DEFAULT["mlm"]["runs"]["tiny"]}, f'mlm.runs has the name "Tiny"; {NAMES}'),
    ({f"lora.runs.{'x' * 70}": {}}, f'lora.runs has the name "{"x" * 70}"; {NAMES}'),
    ({f"{TINY}.backend": "torch"}, f'{TINY}.backend is "torch"; allowed: tensorflow, jax.'),
    ({f"{TINY}.steps": DELETE}, f"{TINY} lacks the key steps."),
    (
        {f"{TINY}.steps": 501, f"{TINY}.checkpoint_every": 250},
        f"{TINY}.steps is 501; allowed: a multiple of checkpoint_every, 250.",
    ),
    ({f"{TINY}.learning_rate": 0}, f"{TINY}.learning_rate is 0; allowed: a number, more than 0, at most 10."),
    (
        {f"{TINY}.schedule.shape": "step"},
        f'{TINY}.schedule.shape is "step"; allowed: constant, linear, wsd, cosine.',
    ),
    (
        {f"{TINY}.schedule.warmup_steps": 500, f"{TINY}.steps": 500, f"{TINY}.checkpoint_every": 250},
        f"{TINY}.schedule.warmup_steps is 500; allowed: less than steps, 500.",
    ),
    (
        {f"{TINY}.schedule": {"shape": "wsd"}},
        f"{TINY}.schedule.decay_steps is missing; shape: wsd needs it.",
    ),
    (
        {f"{TINY}.schedule": {"shape": "linear", "decay_steps": 5}},
        f"{TINY}.schedule.decay_steps is given with shape: linear; it belongs to wsd.",
    ),
    (
        {
            f"{TINY}.schedule": {"shape": "wsd", "warmup_steps": 400, "decay_steps": 200},
            f"{TINY}.steps": 500,
            f"{TINY}.checkpoint_every": 250,
        },
        f"{TINY}.schedule: warmup_steps 400 and decay_steps 200 add up to more than steps, 500.",
    ),
    (
        {f"{TINY}.schedule.final_learning_rate": 1.0, f"{TINY}.learning_rate": 0.5},
        f"{TINY}.schedule.final_learning_rate is 1; allowed: at most learning_rate, 0.5.",
    ),
    (
        {f"{TINY}.masking": {"mask": 0.9, "random": 0.2}},
        f"{TINY}.masking: mask 0.9 and random 0.2 add up to more than 1.",
    ),
    ({f"{TINY}.precision": "bfloat16"}, f"{TINY}.precision is bfloat16; allowed: float32, mixed_bfloat16."),
    (
        {f"{TINY}.batch_size": 9, f"{TINY}.cpu_devices": 2},
        f"{TINY}.batch_size is 9; allowed: a multiple of cpu_devices, 2.",
    ),
    (
        {f"{TINY}.model.hidden_size": 100, f"{TINY}.model.num_attention_heads": 3},
        f"{TINY}.model.hidden_size is 100; allowed: a multiple of num_attention_heads, 3.",
    ),
    (
        {f"{TINY}.model.max_position_embeddings": 128, "tfrecords.sequence_length": 128},
        f"{TINY}.model.max_position_embeddings is 128; allowed: 132 or more for tfrecords.sequence_length 128.",
    ),
    ({f"{TINY}.model.vocab_size": 9}, f"{TINY}.model.vocab_size is given; it comes from the tokenizer."),
    ({"base.small": {}}, f"{SMALL} needs preset (use a model) or model (train one here)."),
    (
        {f"{SMALL}.preset": "gemma_7b_en"},
        f"{SMALL} has preset and batch_size; a preset is used as it is, so only revision fits.",
    ),
    (
        {"base.small": {"preset": "hf://some/model"}},
        f'{SMALL}.revision is missing; "hf://some/model" is pinned to a commit of 40 hexadecimal digits, '
        "so that it cannot change.",
    ),
    (
        {"base.small": {"preset": "kaggle://keras/gemma/keras/gemma_7b_en"}},
        f'{SMALL}.preset is "kaggle://keras/gemma/keras/gemma_7b_en"; allowed: a kaggle handle that ends '
        "in its version, such as .../1.",
    ),
    (
        {"base.small": {"preset": "./nowhere"}},
        f'{SMALL}.preset is "./nowhere", which is no preset folder: it holds no config.json.',
    ),
    (
        {f"{SMALL}.model.num_query_heads": 8, f"{SMALL}.model.num_key_value_heads": 3},
        f"{SMALL}.model.num_query_heads is 8; allowed: a multiple of num_key_value_heads, 3.",
    ),
    ({f"{SMALL}.model.head_dim": 15}, f"{SMALL}.model.head_dim is 15; allowed: an even number."),
    ({f"{PYTHON}.base": "smal"}, f'{PYTHON}.base is "smal"; allowed: a name under base: small.'),
    ({f"{PYTHON}.rank": 0}, f"{PYTHON}.rank is 0; allowed: a whole number, 1 or more, at most 1024."),
    (
        {f"{PYTHON}.resources.hosts": 3},
        f"{PYTHON}.resources.hosts is 3; allowed: what cpu_devices, 8, can be divided by.",
    ),
    ({f"{TINY}.resources.hosts": 2}, f"{TINY}.resources.hosts is 2; allowed with backend: tensorflow: 1."),
    (
        {f"{PYTHON}.resources.accelerator": "v9-8"},
        f'{PYTHON}.resources.accelerator is "v9-8"; allowed: a TPU slice such as v5e-8, or GPUs such as h100:4.',
    ),
    (
        {f"{TINY}.backend": "jax", f"{TINY}.model": {"architecture": "roberta"}, "tfrecords.sequence_length": 512},
        f"{TINY}.model.max_position_embeddings is 512; allowed: 516 or more for tfrecords.sequence_length 512.",
    ),
    ({f"{PYTHON}.mesh": [1, 3]}, f"{PYTHON}.mesh is [1, 3], which does not fit cpu_devices, 8."),
    ({f"{PYTHON}.mesh": [1]}, f"{PYTHON}.mesh is a list of 1; allowed: a list, at least 2 entries, at most 2 entries."),
    (
        {f"{PYTHON}.mesh": [0, 8]},
        f"{PYTHON}.mesh is [0, 8]; allowed: two sizes of 1 or more, one of which may be -1.",
    ),
    (
        {f"{PYTHON}.mesh": [8, 1], f"{PYTHON}.batch_size": 12},
        f"{PYTHON}.batch_size is 12; allowed: a multiple of the batch axis of mesh, 8.",
    ),
    (
        {f"{SMALL}.precision": "bfloat16"},
        f"{SMALL}.precision is bfloat16; allowed where all parameters are trained: float32, mixed_bfloat16.",
    ),
    (
        {f"{PYTHON}.precision": "bfloat16", f"{PYTHON}.method": "full"},
        f"{PYTHON}.precision is bfloat16; allowed where all parameters are trained: float32, mixed_bfloat16.",
    ),
    ({"tuning": DELETE}, "tuning is missing; lora.runs need a text to tune on."),
    ({"prompts.fill_mask": ["no mask"]}, 'prompts.fill_mask[0] is "no mask", with 0 times [MASK]; allowed: one.'),
    ({"generation.sampler": "beam"}, 'generation.sampler is "beam"; allowed: greedy, top_k, top_p.'),
]


@pytest.mark.parametrize(
    ("changes", "message"), WRONG, ids=lambda value: None if isinstance(value, dict) else value[:50]
)
def test_wrong_config(changes, message):
    with pytest.raises(UserError) as error:
        complete(changed(**changes), "config.yaml")
    assert str(error.value) == f"config.yaml: {message}"


@pytest.mark.parametrize(
    "path", [ROOT / "config.yaml", *sorted((ROOT / "recipes").glob("*.yaml"))], ids=lambda p: p.name
)
def test_shipped_configs_are_right(path):
    config = read_config([path], {})
    assert config["corpus"]["seed"] == 0  # a default, filled in


def test_yaml_1_2(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("a: 1e-4\nb: yes\nc: 010\n")
    assert read_yaml(path) == {"a": 1e-4, "b": "yes", "c": 10}


def test_overrides_of_the_command_line_are_numbers():
    config = read_config([ROOT / "config.yaml"], {"mlm": {"runs": {"tiny": {"learning_rate": "1e-4"}}}})
    assert config["mlm"]["runs"]["tiny"]["learning_rate"] == 1e-4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", 'c.yaml, line 2: the key "a" stands twice.'),
        ("a: [1\n", "c.yaml, line 2: not valid YAML: expected ',' or ']', but got '<stream end>'."),
        ("- 1\n", "c.yaml holds a list; allowed: keys and values, such as `corpus: ...`."),
        ("", "c.yaml holds empty; allowed: keys and values, such as `corpus: ...`."),
    ],
)
def test_unreadable_config(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(text)
    with pytest.raises(UserError) as error:
        read_config(["c.yaml"], {})
    assert str(error.value) == message


def test_whole_floats_and_floats_mean_the_same():
    one = complete(changed(**{"mlm.runs.tiny.optimizer.clip_norm": 1}), "c")
    other = complete(changed(**{"mlm.runs.tiny.optimizer.clip_norm": 1.0}), "c")
    assert repr(one) == repr(other)


def test_the_order_of_keys_means_nothing():
    backwards = {key: DEFAULT[key] for key in reversed(DEFAULT)}
    backwards["generation"] = {key: DEFAULT["generation"][key] for key in reversed(DEFAULT["generation"])}
    assert repr(complete(backwards, "c")) == repr(complete(DEFAULT, "c"))
