"""The config: what is filled in, the exact sentence for all that can be wrong in it, and what its schema says."""

import ast
import copy
from pathlib import Path

import jsonschema
import pytest
from tpulm.config.reading import complete, read_config, read_yaml, schema
from tpulm.config.runs import JAX_KEYS
from tpulm.core.accelerators import TPUS
from tpulm.core.errors import UserError
from tpulm.specs.artifacts import SPLITS
from tpulm.specs.causal_families import FAMILIES, TARGETS
from tpulm.specs.masked_architectures import ARCHITECTURES
from tpulm.specs.messages import RENAMED
from tpulm.specs.training_step import MOST_HOST_DEVICES

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[1]
DEFAULT = read_yaml(ROOT / "config.yaml")
DELETE = object()
NAMES = "allowed: up to 64 of a-z, 0-9, _ and -, the first a letter or a digit."
TINY, SMALL, PYTHON = "mlm.runs.tiny", "base.small", "finetune.runs.python"
LONGFORMER = "XLA cannot compile the gradient of its attention"
TOP = sorted(schema()["properties"])
TRAINABLE = [name for name, architecture in ARCHITECTURES.items() if not architecture.refused]


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


ONE_MODEL = (
    "needs one of model (train from scratch), init (go on from a model) and pretrained (only ask and measure a model)."
)
ONE_TOKENIZER = "tokenizer needs one of vocab_size (train one) and pretrained (use one that exists)."
PRESETS = "a preset, a local folder, an hf:// handle, or a kaggle:// handle that ends in its version, such as .../1"
EVEN = "a whole number, 2 or more, at most 4096, a multiple of 2"
# Keys of earlier versions: where they stood, and what they are named now.
MOVED = {
    "accumulate": (TINY, "microbatches"), "changes": ("plan", "alternatives"),
    "clip_norm": (f"{TINY}.optimizer", "global_clipnorm"), "cpu_devices": (PYTHON, "host_device_count"),
    "lora": ("", "finetune"), "mask": (f"{TINY}.masking", "mask_replace_prob"),
    "memory_gb": (f"{TINY}.resources", "mem_gb"), "minutes": (f"{TINY}.resources", "runtime"),
    "random": (f"{TINY}.masking", "random_replace_prob"), "rate": (f"{TINY}.masking", "mlm_probability"),
    "rematerialise": (SMALL, "remat"), "steps_per_dispatch": (SMALL, "steps_per_execution"),
    "tuning": ("", "finetune.text"), "unit": ("corpus", "sample_by"),
}  # fmt: skip
# One row per mistake: what is changed in the shipped config, and the sentence after "config.yaml: ".
WRONG = [
    *(
        ({f"{place}.{old}".lstrip("."): {}}, f'{place or "the config"} has no key "{old}"; it is named {new}.')
        for old, (place, new) in MOVED.items()
    ),
    ({"random": 1}, f'the config has no key "random"; known: {", ".join(TOP)}.'),
    ({"corpsu": 1}, 'the config has no key "corpsu"; did you mean "corpus"?'),
    (
        {"publish": {"private": True}},
        "publish needs one of hub (repositories of the Hugging Face Hub) and gcs (a folder of a bucket), or both.",
    ),
    ({"publish": {"hub": "me"}}, 'publish.hub is "me"; allowed: OWNER/NAME, of letters, digits, dots, - and _.'),
    (
        {"publish": {"gcs": "gs://bucket/"}},
        'publish.gcs is "gs://bucket/"; allowed: gs://BUCKET or gs://BUCKET/PREFIX, without a slash at the end and '
        "with BUCKET in lower case.",
    ),
    ({"publish": {"gcs": "gs://bucket", "branch": "b"}}, "publish.hub is missing; publish.branch needs it."),
    (
        {"publish": {"hub": "me/a", "artifacts": ["mlm", "mlm/tin"]}},
        'publish.artifacts[1] is "mlm/tin"; allowed: tokenizer, tfrecords, tokens/small/corpus/concat-64, '
        "tokens/small/finetune-text/pad-64, mlm/tiny, base/small, transformers/base/small, finetune/python, archive, "
        "or the beginning of one up to a slash.",
    ),
    (
        {"publish": {"hub": "me/a-"}},
        'publish.hub makes "a--tokenizer" the name of a repository; allowed: at most 96 characters, without -- and .., '
        "the last a letter, a digit or _.",
    ),
    ({"publish": {"hub": "me/a", "sync": "often"}}, 'publish.sync is "often"; allowed: every N, such as every 10.'),
    (
        {"publish": {"hub": "me/a", "sync": "every 1"}, f"{TINY}.keep_checkpoints": "last"},
        "publish.sync is every 1, and mlm.runs.tiny.keep_checkpoints is last, which lets some of these checkpoints go; "
        "allowed: to publish every Nth that is kept.",
    ),
    ({"corpus": DELETE}, "the config lacks the key corpus."),
    ({"cpu_threads": 0}, "cpu_threads is 0; allowed: a whole number, 1 or more, at most 1024."),
    ({"cpu_threads": "2"}, 'cpu_threads is "2"; allowed: a whole number, 1 or more, at most 1024.'),
    ({"title": None}, "title is empty; allowed: text."),
    (
        {"corpus": {"held_out": {}}},
        "corpus needs one of source (where the text comes from) and sources (several, by name).",
    ),
    (
        {"corpus": {"sources": {"a": {"source": "python-docs"}}, "files": ["a.txt"]}},
        "corpus.source is missing; corpus.files needs it.",
    ),
    (
        {"corpus": {"sources": {"a": {"source": "files"}}}},
        "corpus.sources.a.files is missing; source: files needs a list of globs.",
    ),
    (
        {"corpus": {"sources": {"a": {"source": "hub", "dataset": "some/set"}}}},
        "corpus.sources.a.revision is missing; a dataset of the hub is pinned to a commit of 40 hexadecimal digits, "
        "so that it cannot change.",
    ),
    (
        {"corpus": {"sources": {"a": {"source": "python-docs", "weight": 0}}}},
        "corpus.sources.a.weight is 0; allowed: a number, more than 0, at most 100.",
    ),
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
    (
        {"corpus": {"source": "files", "files": ["a.txt"], "name": "x"}},
        "corpus.name is given with source: files; it belongs to source: hub.",
    ),
    (
        {"corpus.column": "body"},
        "corpus.column is given with source: python-docs; it belongs to source: files and source: hub.",
    ),
    ({"finetune.text.source": "hub"}, "finetune.text.dataset is missing; source: hub needs the name of a dataset."),
    (
        {"corpus.files": ["a.txt"], "corpus.source": "web"},
        'corpus.source is "web"; allowed: python-docs, python-source, files, hub.',
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
    ({"tokenizer": {}}, ONE_TOKENIZER),
    ({"tokenizer": DELETE, "tfrecords": DELETE}, "tokenizer is missing; mlm.runs needs it."),
    ({"tokenizer": DELETE}, "tokenizer is missing; tfrecords needs it."),
    ({"tfrecords": DELETE}, "tfrecords is missing; mlm.runs needs it."),
    ({"tokenizer.pretrained": "x"}, ONE_TOKENIZER),
    (
        {"tokenizer": {"pretrained": "some/name"}},
        'tokenizer.pretrained is "some/name", which is no local folder; a name on the hub needs '
        "tokenizer.revision, a commit of 40 hexadecimal digits.",
    ),
    (
        {"tokenizer.revision": "a" * 40},
        "tokenizer.pretrained is missing; tokenizer.revision needs it.",
    ),
    ({"tokenizer.vocab_size": 3}, "tokenizer.vocab_size is 3; allowed: a whole number, 6 or more, at most 1000000."),
    (
        {"tfrecords.sequence_length": 1.5},
        "tfrecords.sequence_length is 1.5; allowed: a whole number, 8 or more, at most 65536.",
    ),
    ({"tfrecords.shards.dev": 1}, 'tfrecords.shards has no key "dev"; known: test, train, validation.'),
    ({"mlm.runs.Tiny": DEFAULT["mlm"]["runs"]["tiny"]}, f'mlm.runs has the name "Tiny"; {NAMES}'),
    ({f"finetune.runs.{'x' * 70}": {}}, f'finetune.runs has the name "{"x" * 70}"; {NAMES}'),
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
        f"{TINY}.schedule.decay_steps is given with shape: linear; it belongs to shape: wsd.",
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
        {f"{TINY}.schedule": {"shape": "constant", "final_learning_rate": 1e-4}},
        f"{TINY}.schedule.final_learning_rate is given with shape: constant, which has no end.",
    ),
    (
        {f"{TINY}.schedule": {"final_learning_rate": 1e-4}},
        f"{TINY}.schedule.final_learning_rate is given with shape: constant, which has no end.",
    ),
    (
        {f"{TINY}.keep_checkpoints": "every 0"},
        f'{TINY}.keep_checkpoints is "every 0"; allowed: all, last, or every N, such as every 10.',
    ),
    *(
        ({f"{TINY}.{key}": value}, f"{TINY}.{key} is given with backend: tensorflow; it belongs to backend: jax.")
        for key, value in (
            ("mesh", [1, 1]),
            ("microbatches", 2),
            ("remat", True),
            ("determinism", "steps"),
            ("steps_per_execution", 2),
        )
    ),
    (
        {f"{PYTHON}.init": "python"},
        f'{PYTHON}.init is "python"; allowed: a name under finetune.runs that does not start from this run: none.',
    ),
    ({f"{TINY}.model": DELETE}, f"{TINY} {ONE_MODEL}"),
    ({f"{TINY}.init": {"pretrained": "x", "revision": "a" * 40}}, f"{TINY} {ONE_MODEL}"),
    (
        {f"{TINY}.model": DELETE, f"{TINY}.init": {"pretrained": "x"}},
        f'{TINY}.init.pretrained is "x", which is no local folder; a name on the hub needs {TINY}.init.revision, a '
        "commit of 40 hexadecimal digits.",
    ),
    (
        {f"{TINY}.model": DELETE, f"{TINY}.init": {"pretrained": "x", "revision": "a" * 40}},
        f"{TINY}.init is x at revision {'a' * 40}, but the tokenizer is trained here; allowed: tokenizer.pretrained "
        "and revision as in init, since a model reads records of its own tokenizer only.",
    ),
    (
        {"mlm.runs.other": {"pretrained": "x"}},
        'mlm.runs.other.pretrained is "x", which is no local folder; a name on the hub needs mlm.runs.other.revision, '
        "a commit of 40 hexadecimal digits.",
    ),
    (
        {"mlm.runs.other": {"pretrained": "x", "steps": 3}},
        'mlm.runs.other has pretrained and "steps"; a pretrained model is used as it is, so only revision and '
        "backend fit.",
    ),
    (
        {f"{TINY}.model.architecture": "longformer"},
        f'{TINY}.model.architecture is "longformer", which cannot be trained here: {LONGFORMER}; '
        f"allowed: {', '.join(TRAINABLE)}.",
    ),
    ({f"{TINY}.model.architecture": "robeta"}, f'{TINY}.model.architecture is "robeta"; did you mean "roberta"?'),
    (
        {f"{TINY}.model.architecture": "modernbert"},
        f'{TINY}.model.architecture is "modernbert", which transformers does not have in TensorFlow; allowed for it: '
        "backend: jax.",
    ),
    (
        {f"{TINY}.backend": "jax", f"{TINY}.model": {"architecture": "bert"}},
        f"{TINY}.model.architecture is bert; allowed with backend: jax: roberta, modernbert.",
    ),
    (
        {f"{TINY}.backend": "jax", f"{TINY}.model": {"architecture": "modernbert", "attention_dropout": 0.1}},
        f"{TINY}.model.attention_dropout is 0.1; allowed with backend: jax: 0.0.",
    ),
    (
        {f"{TINY}.backend": "jax", f"{TINY}.model": {"architecture": "modernbert", "local_rope_theta": 0}},
        f"{TINY}.model.local_rope_theta is 0; allowed: a number of more than 0.",
    ),
    (
        {f"{TINY}.backend": "jax", f"{TINY}.model": {"architecture": "modernbert", "num_attention_heads": 256}},
        f"{TINY}.model.hidden_size is 768; allowed: a multiple of twice num_attention_heads, 512.",
    ),
    (
        {f"{TINY}.backend": "jax", f"{TINY}.model": {"architecture": "modernbert"}, "tfrecords.sequence_length": 9000},
        f"{TINY}.model.max_position_embeddings is 8192; allowed: 9000 or more for tfrecords.sequence_length 9000.",
    ),
    ({f"{TINY}.z_loss": 1e-4}, f"{TINY}.z_loss is given with backend: tensorflow; it belongs to backend: jax."),
    (
        {f"{TINY}.model.architecture": "gpt2"},
        f'{TINY}.model.architecture is "gpt2"; allowed: {", ".join(TRAINABLE)}.',
    ),
    (
        {f"{TINY}.model.architecture": "mpnet", f"{TINY}.model.max_position_embeddings": 131},
        f"{TINY}.model.max_position_embeddings is 131; allowed: 132 or more for tfrecords.sequence_length 128.",
    ),
    (
        {f"{TINY}.model.architecture": "bert", f"{TINY}.model.max_position_embeddings": 127},
        f"{TINY}.model.max_position_embeddings is 127; allowed: 128 or more for tfrecords.sequence_length 128.",
    ),
    (
        {f"{TINY}.masking": {"mask_replace_prob": 0.9, "random_replace_prob": 0.2}},
        f"{TINY}.masking: mask_replace_prob 0.9 and random_replace_prob 0.2 add up to more than 1.",
    ),
    ({f"{TINY}.precision": "bfloat16"}, f'{TINY}.precision is "bfloat16"; allowed: float32, mixed_bfloat16.'),
    (
        {f"{TINY}.batch_size": 9, f"{TINY}.host_device_count": 2},
        f"{TINY}.batch_size is 9; allowed: a multiple of host_device_count, 2.",
    ),
    (
        {f"{TINY}.model.hidden_size": 100, f"{TINY}.model.num_attention_heads": 3},
        f"{TINY}.model.hidden_size is 100; allowed: a multiple of num_attention_heads, 3.",
    ),
    (
        {f"{TINY}.model.max_position_embeddings": 128, "tfrecords.sequence_length": 128},
        f"{TINY}.model.max_position_embeddings is 128; allowed: 132 or more for tfrecords.sequence_length 128.",
    ),
    ({f"{TINY}.model.vocab_size": 9}, f'{TINY}.model has the key "vocab_size", which comes from the tokenizer.'),
    ({f"{TINY}.model.pad_token_id": 9}, f'{TINY}.model has the key "pad_token_id", which comes from the tokenizer.'),
    ({"base.small": {}}, f"{SMALL} needs preset (use a model) or model (train one here)."),
    (
        {f"{SMALL}.preset": "gemma_7b_en"},
        f'{SMALL} has preset and "model"; a preset is used as it is, so only revision and adapter fit.',
    ),
    (
        {"base.small": {"preset": "hf://some/model"}},
        f"{SMALL}.revision is missing; an hf:// preset is pinned to a commit of 40 hexadecimal digits, so that it "
        "cannot change.",
    ),
    (
        {"base.small": {"preset": "gemma_7b_en", "revision": "a" * 40}},
        f"{SMALL}.revision is given; it belongs to hf:// presets.",
    ),
    ({f"{SMALL}.revision": "a" * 40}, f"{SMALL}.revision is given; it belongs to hf:// presets."),
    ({f"{SMALL}.vocab_size": DELETE}, f"{SMALL} lacks the key vocab_size."),
    (
        {"base.small": {"preset": 5}},
        f"{SMALL}.preset is 5; allowed: {PRESETS}.",
    ),
    (
        {"base.small": {"preset": "kaggle://keras/gemma/keras/gemma_7b_en"}},
        f'{SMALL}.preset is "kaggle://keras/gemma/keras/gemma_7b_en"; allowed: {PRESETS}.',
    ),
    (
        {"base.small": {"preset": "./nowhere"}},
        f'{SMALL}.preset is "./nowhere", which is no preset folder: it holds no config.json.',
    ),
    (
        {f"{SMALL}.model.num_query_heads": 8, f"{SMALL}.model.num_key_value_heads": 3},
        f"{SMALL}.model.num_query_heads is 8; allowed: a multiple of num_key_value_heads, 3.",
    ),
    ({f"{SMALL}.model.head_dim": 15}, f"{SMALL}.model.head_dim is 15; allowed: {EVEN}."),
    ({f"{PYTHON}.base": "smal"}, f'{PYTHON}.base is "smal"; allowed: a name under base: small.'),
    ({f"{PYTHON}.rank": 0}, f"{PYTHON}.rank is 0; allowed: a whole number, 1 or more, at most 1024."),
    (
        {f"{PYTHON}.targets": ["query", "head"]},
        f'{PYTHON}.targets[1] is "head"; allowed: query, key, value, output, ffn.',
    ),
    (
        {f"{PYTHON}.targets": []},
        f"{PYTHON}.targets is a list of 0; allowed: a list of query, key, value, output and ffn, none of them twice.",
    ),
    (
        {f"{PYTHON}.base_precision": "int4"},
        f'{PYTHON}.base_precision is "int4"; allowed: float32, bfloat16, int8 or null.',
    ),
    (
        {f"{PYTHON}.base_precision": "int8", f"{PYTHON}.method": "full"},
        f"{PYTHON}.base_precision is given with method: full; it belongs to method: lora.",
    ),
    *(
        (
            {"base.small.profile": {"steps": traced}},
            f"base.small.profile.steps is {traced}; allowed: two steps up to 800, the first one smaller, and no "
            "checkpoint between them (one every 400).",
        )
        for traced in ([20, 10], [390, 410], [790, 810])
    ),
    (
        {"base.small.profile": {"steps": [391, 399]}, "base.small.steps_per_execution": 10},
        "base.small.profile.steps is [391, 399]; allowed: multiples of steps_per_execution, 10.",
    ),
    (
        {f"{PYTHON}.base_precision": "float32", f"{PYTHON}.precision": "bfloat16"},
        f"{PYTHON}.base_precision is float32 with precision: bfloat16; weights in float32 under arithmetic in bfloat16 "
        "are precision: mixed_bfloat16.",
    ),
    (
        {f"{PYTHON}.layout": {".*kernel": ["batch", "modle"]}},
        f'{PYTHON}.layout..*kernel[1] is "modle"; allowed: batch, model or null.',
    ),
    (
        {f"{PYTHON}.layout": {"(kernel": ["batch"]}},
        f'{PYTHON}.layout: "(kernel" is no regular expression: missing ), unterminated subpattern at position 0.',
    ),
    (
        {f"{PYTHON}.layout": {".*kernel": ["model", "model"]}},
        f'{PYTHON}.layout: ".*kernel" names the axis model twice; allowed: each axis of the mesh once.',
    ),
    (
        {f"{TINY}.layout": {".*kernel": ["model", "model"]}},
        f"{TINY}.layout is given with backend: tensorflow; it belongs to backend: jax.",
    ),
    ({f"{SMALL}.optimizer": {"name": "adam"}}, f'{SMALL}.optimizer.name is "adam"; allowed: adamw, lion, adafactor.'),
    (
        {f"{SMALL}.optimizer": {"name": "lion", "epsilon": 1e-8}},
        f"{SMALL}.optimizer.epsilon is given with name: lion; it belongs to name: adamw.",
    ),
    (
        {f"{SMALL}.optimizer": {"name": "lion", "beta_1": 0}},
        f"{SMALL}.optimizer.beta_1 is 0; allowed with name: lion: more than 0, less than 1.",
    ),
    (
        {f"{TINY}.optimizer": {"name": "lion"}},
        f"{TINY}.optimizer.name is lion; allowed with backend: tensorflow: adamw.",
    ),
    (
        {f"{SMALL}.model.architecture": "llama"},
        f'{SMALL}.model.architecture is "llama"; allowed: gemma, gemma2, gemma3, llama3, mistral, qwen2, qwen3.',
    ),
    (
        {f"{SMALL}.model.architecture": "llama3"},
        f"{SMALL}.model.head_dim is given with architecture: llama3; it belongs to architecture: gemma and "
        "architecture: gemma2 and architecture: gemma3 and architecture: mistral and architecture: qwen3.",
    ),
    ({f"{SMALL}.model.head_dim": DELETE}, f"{SMALL}.model lacks the key head_dim."),
    (
        {f"{SMALL}.model.architecture": "qwen2", f"{SMALL}.model.head_dim": DELETE, f"{SMALL}.model.hidden_dim": 18},
        f"{SMALL}.model.hidden_dim is 18; allowed: a multiple of twice num_query_heads, 16.",
    ),
    (
        {f"{SMALL}.model.architecture": "mistral", f"{SMALL}.packing": "segments"},
        f"{SMALL}.packing is segments, which mistral cannot read; allowed with it: concat, pad.",
    ),
    (
        {f"{PYTHON}.resources.hosts": 3},
        f"{PYTHON}.resources.hosts is 3; allowed: what host_device_count, 8, can be divided by.",
    ),
    ({f"{TINY}.resources.hosts": 2}, f"{TINY}.resources.hosts is 2; allowed with backend: tensorflow: 1."),
    (
        {"tfrecords.source": "files"},
        "tfrecords.files is missing; source: files needs a list of globs for each split.",
    ),
    (
        {"tfrecords": {"sequence_length": 128, "files": {split: ["x"] for split in SPLITS}}},
        "tfrecords.files is given with source: corpus; it belongs to source: files.",
    ),
    (
        {"tfrecords": {"source": "files", "sequence_length": 128, "files": {split: ["x"] for split in SPLITS}}},
        "tfrecords.source is files, but the tokenizer is trained here; allowed: tokenizer.pretrained, the one that the "
        "files were made with.",
    ),
    (
        {
            "tokenizer": {"pretrained": "scripts"},
            "tfrecords": {
                "source": "files",
                "sequence_length": 128,
                "packing": "segments",
                "files": {split: ["x"] for split in SPLITS},
            },
        },
        "tfrecords.packing is segments with source: files, whose records do not tell documents apart; allowed: concat, "
        "pad.",
    ),
    (
        {"tfrecords.packing": "segments"},
        f"tfrecords.packing is segments, which {TINY} cannot read with backend: tensorflow; allowed with it: concat, "
        "pad.",
    ),
    ({f"{PYTHON}.packing": "none"}, f'{PYTHON}.packing is "none"; allowed: concat, segments, pad.'),
    (
        {f"{PYTHON}.resources.accelerator": "v9-8"},
        f'{PYTHON}.resources.accelerator is "v9-8"; allowed: a TPU slice such as v5e-8, or GPUs such as h100:4.',
    ),
    (
        {f"{TINY}.backend": "jax", f"{TINY}.model": {"architecture": "roberta"}, "tfrecords.sequence_length": 512},
        f"{TINY}.model.max_position_embeddings is 512; allowed: 516 or more for tfrecords.sequence_length 512.",
    ),
    ({f"{PYTHON}.mesh": [1, 3]}, f"{PYTHON}.mesh is [1, 3], which does not fit host_device_count, 8."),
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
        f'{SMALL}.precision is "bfloat16"; allowed: float32, mixed_bfloat16.',
    ),
    (
        {f"{PYTHON}.precision": "bfloat16", f"{PYTHON}.method": "full"},
        f'{PYTHON}.precision is "bfloat16"; allowed with method: full: float32, mixed_bfloat16.',
    ),
    ({"finetune.text": DELETE}, "finetune.text is missing; finetune.runs needs a text to tune on."),
    (
        {"plan.topologies": ["v5e-8", "v5e-8"]},
        "plan.topologies is a list of 2; allowed: a list, none of them twice.",
    ),
    (
        {"plan.topologies": ["v9-8"]},
        f'plan.topologies: "v9-8" is no TPU slice; allowed: one of {", ".join(TPUS)}, and a size, such as v5e-8.',
    ),
    ({"prompts.fill_mask": ["no mask"]}, 'prompts.fill_mask[0] is "no mask", with 0 times [MASK]; allowed: one.'),
    ({"generation.sampler": "beam"}, 'generation.sampler is "beam"; allowed: greedy, top_k, top_p.'),
    (
        {"evaluation": {"text": {"documents": -1}}},
        "evaluation.text.documents is -1; allowed: a whole number, 0 or more, at most 1000000.",
    ),
    (
        {"evaluation": {"pairs": {"sets": {"made": {"files": ["a.jsonl"]}}}}},
        "evaluation.pairs.sets.made has the name of the pairs that are made of the corpus; allowed: another name.",
    ),
    (
        {"evaluation": {"pairs": {"sets": {"mine": {"split": "train"}}}}},
        "evaluation.pairs.sets.mine needs one of files (on this machine) and dataset (of the Hugging Face Hub).",
    ),
    (
        {"evaluation": {"pairs": {"sets": {"blimp": {"dataset": "nyu-mll/blimp"}}}}},
        "evaluation.pairs.sets.blimp.revision is missing; a dataset of the hub is pinned to a commit of 40 hexadecimal "
        "digits, so that it cannot change.",
    ),
    (
        {"evaluation": {"harness": {"piqa": {"examples": 0}}}},
        "evaluation.harness.piqa.revision is missing; the examples of a task that comes with the harness are a dataset "
        "of the hub, pinned to a commit of 40 hexadecimal digits so that they cannot change.",
    ),
]


@pytest.mark.parametrize(
    ("changes", "message"), WRONG, ids=lambda value: None if isinstance(value, dict) else value[:50]
)
def test_wrong_config(changes, message):
    with pytest.raises(UserError) as error:
        complete(changed(**changes), "config.yaml")
    assert str(error.value) == f"config.yaml: {message}"


@pytest.mark.parametrize("steps", [[390, 400], [400, 410], [1, 2]])
def test_steps_of_one_segment_can_be_traced(steps):
    config = read_config([str(ROOT / "config.yaml")], {"base": {"small": {"profile": {"steps": steps}}}})
    assert config["base"]["small"]["profile"] == {"steps": steps}


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
        ("", "c.yaml is empty; recipes/ has complete configs to begin with."),
    ],
)
def test_unreadable_config(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(text)
    with pytest.raises(UserError) as error:
        read_config(["c.yaml"], {})
    assert str(error.value) == message


def test_whole_floats_and_floats_mean_the_same():
    one = complete(changed(**{"mlm.runs.tiny.optimizer.global_clipnorm": 1}), "c")
    other = complete(changed(**{"mlm.runs.tiny.optimizer.global_clipnorm": 1.0}), "c")
    assert repr(one) == repr(other)


def test_the_order_of_keys_means_nothing():
    backwards = {key: DEFAULT[key] for key in reversed(DEFAULT)}
    backwards["generation"] = {key: DEFAULT["generation"][key] for key in reversed(DEFAULT["generation"])}
    assert repr(complete(backwards, "c")) == repr(complete(DEFAULT, "c"))


def test_every_renamed_key_has_a_row():
    assert {old: new for old, (_, new) in MOVED.items()} == RENAMED


def schemas(part, path="config"):
    """Yield the path and the schema of every value that a config can hold; what a run shares is there for each."""
    if "$ref" in part:
        part = schema()["$defs"][part["$ref"].rsplit("/", 1)[1]] | part
    yield path, part
    for key, inner in part.get("properties", {}).items():
        yield from schemas(inner, f"{path}.{key}")
    if isinstance(part.get("additionalProperties"), dict) and "properties" not in part:
        yield from schemas(part["additionalProperties"], f"{path}.NAME")
    for kind in part.get("anyOf", []):
        if "properties" in kind:
            yield from schemas(kind | {"description": "in another way"}, path)


def test_the_schema_is_one_and_describes_every_key():
    jsonschema.Draft202012Validator.check_schema(schema())
    found = list(schemas(schema() | {"description": "the whole"}))
    assert len(found) > 140
    assert [path for path, part in found if not path.endswith("prices.NAME") and not part.get("description")] == []
    assert [path for path, part in found if "default" in part and not {"type", "enum"} & set(part)] == []


def test_the_schema_agrees_with_the_code():
    properties, parts = schema()["properties"], schema()["$defs"]
    text = parts["text"]["properties"]
    assert tuple(properties["tfrecords"]["properties"]["shards"]["properties"]) == SPLITS
    assert tuple(text["splits"]["properties"]) == tuple(text["files"]["anyOf"][1]["properties"]) == SPLITS
    assert tuple(text["held_out"]["properties"]) == SPLITS[1:]
    run = parts["mlm_run"]["properties"]
    assert parts["mlm_run"]["only_with"] == {key: {"backend": ["jax"]} for key in (*JAX_KEYS, "profile", "z_loss")}
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


def test_architectures_are_those_of_transformers():
    from transformers.models.auto.modeling_tf_auto import TF_MODEL_FOR_MASKED_LM_MAPPING_NAMES

    assert list(ARCHITECTURES) == sorted(ARCHITECTURES) and set(ARCHITECTURES) == set(
        TF_MODEL_FOR_MASKED_LM_MAPPING_NAMES
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_is_as_transformers_has_it(name):
    """As its source says, which is read and not imported: that would take TensorFlow."""
    import transformers
    from transformers.models.auto.modeling_tf_auto import TF_MODEL_FOR_MASKED_LM_MAPPING_NAMES

    module = name.replace("-", "_")
    source = Path(transformers.__file__).with_name("models") / module / f"modeling_tf_{module}.py"
    text = source.read_text()
    nodes = list(ast.walk(ast.parse(text)))
    functions = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    assert ("create_position_ids_from_input_ids" in functions) == ARCHITECTURES[name].after_pad
    model = TF_MODEL_FOR_MASKED_LM_MAPPING_NAMES[name]
    (body,) = (node.body for node in nodes if isinstance(node, ast.ClassDef) and node.name == model)
    (call,) = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == "call")
    taken = "token_type_ids" in {argument.arg for argument in call.args.args}
    several = "type_vocab_sizes" in text  # of each token
    assert (taken and not several) == ARCHITECTURES[name].token_types
