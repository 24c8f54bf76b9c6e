"""What runs again after a change: for every key of the config, and for files, exactly the jobs that must.

A row names a key of the schema, the state that the change starts from, the new value, and the jobs that a dry run
must list then, as rule:wildcard,wildcard. A key without a row fails.
"""

import copy
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import ROOT, Workflow, copied
from lib.config import SCHEMA, read_yaml
from ruamel.yaml import YAML

DELETE = object()

# The jobs of the shipped config, by what they follow from.
MLM_REST = (
    "export_mlm:tiny evaluate_mlm:tiny fill_mask:tiny collect_history:mlm/tiny plot_training:mlm,tiny "
    "tabulate_metrics tabulate_predictions tabulate_timings"
)
MLM_SECOND = "train_mlm_tensorflow:tiny,00001500 " + MLM_REST
MLM = "train_mlm_tensorflow:tiny,00000750 " + MLM_SECOND
MLM_JAX = "train_mlm_jax:tiny,00000750 train_mlm_jax:tiny,00001500 " + MLM_REST
RECORDS = (
    "write_shard:train,00000,00004 write_shard:train,00001,00004 write_shard:train,00002,00004 "
    "write_shard:train,00003,00004 write_shard:validation,00000,00001 write_shard:test,00000,00001 "
    "merge_manifest plot_shards " + MLM
)
RANGES = "plan_shards:train plan_shards:validation plan_shards:test "
SAMPLES = "generate:python summarize_lora:python tabulate_generations:python tabulate_metrics"
MEASURES = "evaluate_lora:python summarize_lora:python tabulate_partitioning:python tabulate_metrics"
LORA_REST = (
    "export_lora:python collect_history:lora/python plot_training:lora,python tabulate_timings "
    + SAMPLES + " " + MEASURES
)  # fmt: skip
LORA_SECOND = "train_lora:python,00000600 " + LORA_REST
LORA = "train_lora:python,00000300 " + LORA_SECOND
BASE_REST = (
    "export_base:small evaluate_base:small collect_history:base-training/small plot_training:base,small "
    "tabulate_metrics tabulate_timings " + LORA
)
BASE_SECOND = "train_base:small,00000800 " + BASE_REST
BASE = "train_base:small,00000400 " + BASE_SECOND
TUNING_TOKENS = (
    "tokenize_causal:small,tuning,train tokenize_causal:small,tuning,validation tokenize_causal:small,tuning,test "
)
CORPUS_TOKENS = (
    "tokenize_causal:small,corpus,train tokenize_causal:small,corpus,validation tokenize_causal:small,corpus,test "
)
VOCABULARY = "train_base_vocabulary:small " + TUNING_TOKENS + CORPUS_TOKENS + BASE
TOKENIZER = "train_tokenizer evaluate_tokenizer tabulate_corpus " + RECORDS
CORPUS = "build_corpus:corpus " + RANGES + TOKENIZER + " " + VOCABULARY
TUNING = "build_corpus:tuning tabulate_corpus " + TUNING_TOKENS + LORA
# Where tokenizer and base model come from elsewhere, they do not depend on the corpus.
FETCHED_CORPUS = (
    "build_corpus:corpus evaluate_tokenizer tabulate_corpus tokenize_causal:small,corpus,validation "
    + RANGES + RECORDS + " " + MEASURES
)  # fmt: skip
FETCHED_BASE = "fetch_base:small tokenize_causal:small,corpus,validation " + TUNING_TOKENS + LORA
FETCHED_TOKENIZER = "fetch_tokenizer evaluate_tokenizer tabulate_corpus " + RECORDS

A, B = "a" * 40, "b" * 40
HUB = {
    "source": "hub", "dataset": "some/set", "name": "one", "revision": A,
    "splits": {"train": "train", "validation": "validation", "test": "test"},
}  # fmt: skip
LISTED = {"source": "files", "files": ["text/*.txt"], "held_out": {"validation": 0.1, "test": 0.1}}
NAMED = {"source": "files", "files": {"train": ["text/a.txt"], "validation": ["text/b.txt"], "test": ["text/c.txt"]}}
LINEAR = {"shape": "linear", "warmup_steps": 10}

JAX = {"mlm.runs.tiny.backend": "jax", "mlm.runs.tiny.cpu_devices": 2}

# States in which everything is up to date: the shipped config with keys replaced.
STATES = {
    "shipped": {},
    "listed": {"corpus": LISTED, "tuning": LISTED},
    "named": {"corpus": NAMED, "tuning": NAMED},
    "fetched": {
        "corpus": HUB, "tuning": HUB, "tokenizer": {"pretrained": "some/tokenizer", "revision": A},
        "base": {"small": {"preset": "hf://some/base", "revision": A}},
    },
    "schedules": {
        "mlm.runs.tiny.schedule": LINEAR,
        "base.small.schedule": LINEAR, "base.small.mesh": [-1, 1], "base.small.cpu_devices": 2,
        "lora.runs.python.schedule": {"shape": "wsd", "warmup_steps": 10, "decay_steps": 100},
        "lora.runs.python.mesh": [1, -1],
        "base.given": {"preset": "hf://some/base", "revision": A},
    },
    "jax": JAX,
}  # fmt: skip

# (key of the schema, state, key of the config, new value, jobs)
ROWS = [
    ("title", "shipped", "title", "Other words", ""),
    ("cpu_threads", "shipped", "cpu_threads", 2, MLM + " " + BASE),
    ("corpus.source", "shipped", "corpus.source", "python-source", CORPUS),
    ("corpus.files", "listed", "corpus.files", ["text/a.txt"], CORPUS),
    ("corpus.files.train", "named", "corpus.files.train", ["text/d.txt"], CORPUS),
    ("corpus.files.validation", "named", "corpus.files.validation", ["text/d.txt"], CORPUS),
    ("corpus.files.test", "named", "corpus.files.test", ["text/d.txt"], CORPUS),
    ("corpus.unit", "listed", "corpus.unit", "document", CORPUS),
    ("corpus.column", "listed", "corpus.column", "body", CORPUS),
    ("corpus.dataset", "fetched", "corpus.dataset", "some/other", FETCHED_CORPUS),
    ("corpus.name", "fetched", "corpus.name", "two", FETCHED_CORPUS),
    ("corpus.revision", "fetched", "corpus.revision", B, FETCHED_CORPUS),
    ("corpus.splits.train", "fetched", "corpus.splits.train", "train[:90%]", FETCHED_CORPUS),
    ("corpus.splits.validation", "fetched", "corpus.splits.validation", "test[:9%]", FETCHED_CORPUS),
    ("corpus.splits.test", "fetched", "corpus.splits.test", "test[9%:]", FETCHED_CORPUS),
    ("corpus.held_out.validation", "shipped", "corpus.held_out.validation", 0.06, CORPUS),
    ("corpus.held_out.test", "shipped", "corpus.held_out.test", 0.06, CORPUS),
    ("corpus.seed", "shipped", "corpus.seed", 1, CORPUS),
    ("corpus.min_characters", "shipped", "corpus.min_characters", 5, CORPUS),
    ("corpus.max_documents", "shipped", "corpus.max_documents", 5000, CORPUS),
    ("tokenizer.vocab_size", "shipped", "tokenizer.vocab_size", 2049, TOKENIZER),
    ("tokenizer.pretrained", "fetched", "tokenizer.pretrained", "some/other", FETCHED_TOKENIZER),
    ("tokenizer.revision", "fetched", "tokenizer.revision", B, FETCHED_TOKENIZER),
    ("tfrecords.sequence_length", "shipped", "tfrecords.sequence_length", 127, RECORDS),
    (
        "tfrecords.shards.train", "shipped", "tfrecords.shards.train", 2,
        "plan_shards:train write_shard:train,00000,00002 write_shard:train,00001,00002 merge_manifest plot_shards "
        + MLM,
    ),
    (
        "tfrecords.shards.validation", "shipped", "tfrecords.shards.validation", 2,
        "plan_shards:validation write_shard:validation,00000,00002 write_shard:validation,00001,00002 "
        "merge_manifest plot_shards " + MLM,
    ),
    # The trainer reads no test shard, but the manifest names all.
    (
        "tfrecords.shards.test", "shipped", "tfrecords.shards.test", 2,
        "plan_shards:test write_shard:test,00000,00002 write_shard:test,00001,00002 merge_manifest plot_shards " + MLM,
    ),
    ("mlm.runs.NAME.backend", "shipped", "mlm.runs.tiny.backend", "jax", MLM_JAX),
    ("mlm.runs.NAME.mesh", "jax", "mlm.runs.tiny.mesh", [1, 2], MLM_JAX),
    ("mlm.runs.NAME.accumulate", "jax", "mlm.runs.tiny.accumulate", 2, MLM_JAX),
    ("mlm.runs.NAME.rematerialise", "jax", "mlm.runs.tiny.rematerialise", True, MLM_JAX),
    ("mlm.runs.NAME.steps_per_dispatch", "jax", "mlm.runs.tiny.steps_per_dispatch", 10, MLM_JAX),
    ("mlm.runs.NAME.model.architecture", "shipped", "mlm.runs.tiny.model.architecture", "bert", MLM),
    ("mlm.runs.NAME.model.hidden_size", "shipped", "mlm.runs.tiny.model.hidden_size", 64, MLM),
    ("mlm.runs.NAME.model.num_attention_heads", "shipped", "mlm.runs.tiny.model.num_attention_heads", 4, MLM),
    ("mlm.runs.NAME.model.max_position_embeddings", "shipped", "mlm.runs.tiny.model.max_position_embeddings", 140, MLM),
    ("mlm.runs.NAME.steps", "shipped", "mlm.runs.tiny.steps", 2250, "train_mlm_tensorflow:tiny,00002250 " + MLM_SECOND),
    (
        "mlm.runs.NAME.checkpoint_every", "shipped", "mlm.runs.tiny.checkpoint_every", 500,
        "train_mlm_tensorflow:tiny,00000500 train_mlm_tensorflow:tiny,00001000 " + MLM_SECOND,
    ),
    ("mlm.runs.NAME.batch_size", "shipped", "mlm.runs.tiny.batch_size", 32, MLM),
    ("mlm.runs.NAME.learning_rate", "shipped", "mlm.runs.tiny.learning_rate", 0.002, MLM),
    ("mlm.runs.NAME.schedule.shape", "schedules", "mlm.runs.tiny.schedule.shape", "cosine", MLM),
    ("mlm.runs.NAME.schedule.warmup_steps", "shipped", "mlm.runs.tiny.schedule.warmup_steps", 50, MLM),
    ("mlm.runs.NAME.schedule.decay_steps", "shipped", "mlm.runs.tiny.schedule.decay_steps", 500, MLM_SECOND),
    (
        "mlm.runs.NAME.schedule.final_learning_rate", "shipped", "mlm.runs.tiny.schedule.final_learning_rate", 1e-4,
        MLM_SECOND,
    ),
    # It takes two evaluations until patience can run out: there is no third segment.
    ("mlm.runs.NAME.patience", "shipped", "mlm.runs.tiny.patience", 1, ""),
    (
        "mlm.runs.NAME.keep_checkpoints", "shipped", "mlm.runs.tiny.keep_checkpoints", "last",
        "thin_checkpoint:mlm/tiny,00000750",
    ),
    ("mlm.runs.NAME.optimizer.weight_decay", "shipped", "mlm.runs.tiny.optimizer.weight_decay", 0.02, MLM),
    ("mlm.runs.NAME.optimizer.beta_1", "shipped", "mlm.runs.tiny.optimizer.beta_1", 0.8, MLM),
    ("mlm.runs.NAME.optimizer.beta_2", "shipped", "mlm.runs.tiny.optimizer.beta_2", 0.98, MLM),
    ("mlm.runs.NAME.optimizer.epsilon", "shipped", "mlm.runs.tiny.optimizer.epsilon", 1e-6, MLM),
    ("mlm.runs.NAME.optimizer.clip_norm", "shipped", "mlm.runs.tiny.optimizer.clip_norm", None, MLM),
    ("mlm.runs.NAME.masking.rate", "shipped", "mlm.runs.tiny.masking.rate", 0.2, MLM),
    ("mlm.runs.NAME.masking.mask", "shipped", "mlm.runs.tiny.masking.mask", 0.7, MLM),
    ("mlm.runs.NAME.masking.random", "shipped", "mlm.runs.tiny.masking.random", 0.2, MLM),
    ("mlm.runs.NAME.precision", "shipped", "mlm.runs.tiny.precision", "mixed_bfloat16", MLM),
    ("mlm.runs.NAME.cpu_devices", "shipped", "mlm.runs.tiny.cpu_devices", 2, MLM),
    ("mlm.runs.NAME.resources.accelerator", "shipped", "mlm.runs.tiny.resources.accelerator", "v5e-8", ""),
    ("mlm.runs.NAME.resources.hosts", "jax", "mlm.runs.tiny.resources.hosts", 2, ""),
    ("mlm.runs.NAME.resources.memory_gb", "shipped", "mlm.runs.tiny.resources.memory_gb", 16, ""),
    ("mlm.runs.NAME.resources.minutes", "shipped", "mlm.runs.tiny.resources.minutes", 30, ""),
    ("mlm.runs.NAME.seed", "shipped", "mlm.runs.tiny.seed", 1, MLM),
    ("base.NAME.preset", "fetched", "base.small.preset", "hf://some/other", FETCHED_BASE),
    ("base.NAME.revision", "fetched", "base.small.revision", B, FETCHED_BASE),
    ("base.NAME.model.num_layers", "shipped", "base.small.model.num_layers", 3, BASE),
    ("base.NAME.model.num_query_heads", "shipped", "base.small.model.num_query_heads", 16, BASE),
    ("base.NAME.model.num_key_value_heads", "shipped", "base.small.model.num_key_value_heads", 4, BASE),
    ("base.NAME.model.hidden_dim", "shipped", "base.small.model.hidden_dim", 64, BASE),
    ("base.NAME.model.intermediate_dim", "shipped", "base.small.model.intermediate_dim", 512, BASE),
    ("base.NAME.model.head_dim", "shipped", "base.small.model.head_dim", 8, BASE),
    ("base.NAME.model.layer_norm_epsilon", "shipped", "base.small.model.layer_norm_epsilon", 1e-5, BASE),
    ("base.NAME.model.dropout", "shipped", "base.small.model.dropout", 0.1, BASE),
    ("base.NAME.vocab_size", "shipped", "base.small.vocab_size", 2049, VOCABULARY),
    ("base.NAME.sequence_length", "shipped", "base.small.sequence_length", 32, BASE),
    ("base.NAME.steps", "shipped", "base.small.steps", 1200, "train_base:small,00001200 " + BASE_SECOND),
    (
        "base.NAME.checkpoint_every", "shipped", "base.small.checkpoint_every", 200,
        "train_base:small,00000200 train_base:small,00000600 " + BASE,
    ),
    ("base.NAME.batch_size", "shipped", "base.small.batch_size", 8, BASE),
    ("base.NAME.learning_rate", "shipped", "base.small.learning_rate", 0.002, BASE),
    ("base.NAME.schedule.shape", "schedules", "base.small.schedule.shape", "cosine", BASE),
    ("base.NAME.schedule.warmup_steps", "shipped", "base.small.schedule.warmup_steps", 50, BASE),
    ("base.NAME.schedule.decay_steps", "shipped", "base.small.schedule.decay_steps", 300, BASE_SECOND),
    ("base.NAME.schedule.final_learning_rate", "shipped", "base.small.schedule.final_learning_rate", 1e-4, BASE_SECOND),
    ("base.NAME.patience", "shipped", "base.small.patience", 1, ""),
    (
        "base.NAME.keep_checkpoints", "shipped", "base.small.keep_checkpoints", "every 2",
        "thin_checkpoint:base-training/small,00000400",
    ),
    ("base.NAME.optimizer.weight_decay", "shipped", "base.small.optimizer.weight_decay", 0.02, BASE),
    ("base.NAME.optimizer.beta_1", "shipped", "base.small.optimizer.beta_1", 0.8, BASE),
    ("base.NAME.optimizer.beta_2", "shipped", "base.small.optimizer.beta_2", 0.98, BASE),
    ("base.NAME.optimizer.epsilon", "shipped", "base.small.optimizer.epsilon", 1e-6, BASE),
    ("base.NAME.optimizer.clip_norm", "shipped", "base.small.optimizer.clip_norm", None, BASE),
    ("base.NAME.precision", "shipped", "base.small.precision", "mixed_bfloat16", BASE),
    ("base.NAME.accumulate", "shipped", "base.small.accumulate", 2, BASE),
    ("base.NAME.rematerialise", "shipped", "base.small.rematerialise", True, BASE),
    ("base.NAME.steps_per_dispatch", "shipped", "base.small.steps_per_dispatch", 10, BASE),
    ("base.NAME.mesh", "shipped", "base.small.mesh", [1, -1], BASE),
    ("base.NAME.cpu_devices", "schedules", "base.small.cpu_devices", 4, BASE),
    ("base.NAME.resources.accelerator", "shipped", "base.small.resources.accelerator", "v5e-8", ""),
    ("base.NAME.resources.hosts", "schedules", "base.small.resources.hosts", 2, ""),
    ("base.NAME.resources.memory_gb", "shipped", "base.small.resources.memory_gb", 16, ""),
    ("base.NAME.resources.minutes", "shipped", "base.small.resources.minutes", 30, ""),
    ("base.NAME.seed", "shipped", "base.small.seed", 1, VOCABULARY),
    ("tuning.source", "shipped", "tuning.source", "python-docs", TUNING),
    ("tuning.files", "listed", "tuning.files", ["text/a.txt"], TUNING),
    ("tuning.files.train", "named", "tuning.files.train", ["text/d.txt"], TUNING),
    ("tuning.files.validation", "named", "tuning.files.validation", ["text/d.txt"], TUNING),
    ("tuning.files.test", "named", "tuning.files.test", ["text/d.txt"], TUNING),
    ("tuning.unit", "listed", "tuning.unit", "document", TUNING),
    ("tuning.column", "listed", "tuning.column", "body", TUNING),
    ("tuning.dataset", "fetched", "tuning.dataset", "some/other", TUNING),
    ("tuning.name", "fetched", "tuning.name", "two", TUNING),
    ("tuning.revision", "fetched", "tuning.revision", B, TUNING),
    ("tuning.splits.train", "fetched", "tuning.splits.train", "train[:90%]", TUNING),
    ("tuning.splits.validation", "fetched", "tuning.splits.validation", "test[:9%]", TUNING),
    ("tuning.splits.test", "fetched", "tuning.splits.test", "test[9%:]", TUNING),
    ("tuning.held_out.validation", "shipped", "tuning.held_out.validation", 0.06, TUNING),
    ("tuning.held_out.test", "shipped", "tuning.held_out.test", 0.06, TUNING),
    ("tuning.seed", "shipped", "tuning.seed", 1, TUNING),
    ("tuning.min_characters", "shipped", "tuning.min_characters", 5, TUNING),
    ("tuning.max_documents", "shipped", "tuning.max_documents", 5000, TUNING),
    (
        "lora.runs.NAME.base", "schedules", "lora.runs.python.base", "given",
        LORA + " tokenize_causal:given,corpus,validation tokenize_causal:given,tuning,train "
        "tokenize_causal:given,tuning,validation tokenize_causal:given,tuning,test",
    ),
    (
        "lora.runs.NAME.method", "shipped", "lora.runs.python.method", "full",
        LORA.replace("export_lora:python", "export_full:python"),
    ),
    ("lora.runs.NAME.rank", "shipped", "lora.runs.python.rank", 4, LORA),
    ("lora.runs.NAME.sequence_length", "shipped", "lora.runs.python.sequence_length", 32, LORA),
    ("lora.runs.NAME.steps", "shipped", "lora.runs.python.steps", 900, "train_lora:python,00000900 " + LORA),
    (
        "lora.runs.NAME.checkpoint_every", "shipped", "lora.runs.python.checkpoint_every", 200,
        "train_lora:python,00000200 train_lora:python,00000400 " + LORA_SECOND,
    ),
    ("lora.runs.NAME.batch_size", "shipped", "lora.runs.python.batch_size", 8, LORA),
    ("lora.runs.NAME.learning_rate", "shipped", "lora.runs.python.learning_rate", 0.01, LORA),
    ("lora.runs.NAME.schedule.shape", "shipped", "lora.runs.python.schedule.shape", "cosine", LORA),
    ("lora.runs.NAME.schedule.warmup_steps", "shipped", "lora.runs.python.schedule.warmup_steps", 50, LORA),
    ("lora.runs.NAME.schedule.decay_steps", "schedules", "lora.runs.python.schedule.decay_steps", 200, LORA_SECOND),
    (
        "lora.runs.NAME.schedule.final_learning_rate", "schedules", "lora.runs.python.schedule.final_learning_rate",
        1e-4, LORA_SECOND,
    ),
    ("lora.runs.NAME.patience", "shipped", "lora.runs.python.patience", 1, ""),
    (
        "lora.runs.NAME.keep_checkpoints", "shipped", "lora.runs.python.keep_checkpoints", "last",
        "thin_checkpoint:lora/python,00000300",
    ),
    ("lora.runs.NAME.optimizer.weight_decay", "shipped", "lora.runs.python.optimizer.weight_decay", 0.02, LORA),
    ("lora.runs.NAME.optimizer.beta_1", "shipped", "lora.runs.python.optimizer.beta_1", 0.8, LORA),
    ("lora.runs.NAME.optimizer.beta_2", "shipped", "lora.runs.python.optimizer.beta_2", 0.98, LORA),
    ("lora.runs.NAME.optimizer.epsilon", "shipped", "lora.runs.python.optimizer.epsilon", 1e-6, LORA),
    ("lora.runs.NAME.optimizer.clip_norm", "shipped", "lora.runs.python.optimizer.clip_norm", None, LORA),
    ("lora.runs.NAME.precision", "shipped", "lora.runs.python.precision", "mixed_bfloat16", LORA),
    ("lora.runs.NAME.accumulate", "shipped", "lora.runs.python.accumulate", 2, LORA),
    ("lora.runs.NAME.rematerialise", "shipped", "lora.runs.python.rematerialise", True, LORA),
    ("lora.runs.NAME.steps_per_dispatch", "shipped", "lora.runs.python.steps_per_dispatch", 10, LORA),
    ("lora.runs.NAME.mesh", "shipped", "lora.runs.python.mesh", [2, 4], LORA),
    ("lora.runs.NAME.cpu_devices", "schedules", "lora.runs.python.cpu_devices", 4, LORA),
    ("lora.runs.NAME.resources.accelerator", "shipped", "lora.runs.python.resources.accelerator", "v5e-8", ""),
    ("lora.runs.NAME.resources.hosts", "shipped", "lora.runs.python.resources.hosts", 2, ""),
    ("lora.runs.NAME.resources.memory_gb", "shipped", "lora.runs.python.resources.memory_gb", 16, ""),
    ("lora.runs.NAME.resources.minutes", "shipped", "lora.runs.python.resources.minutes", 30, ""),
    ("lora.runs.NAME.seed", "shipped", "lora.runs.python.seed", 1, LORA),
    ("prompts.fill_mask", "shipped", "prompts.fill_mask", ["A [MASK]."], "fill_mask:tiny tabulate_predictions"),
    ("prompts.generate", "shipped", "prompts.generate", ["class "], SAMPLES),
    ("generation.sampler", "shipped", "generation.sampler", "greedy", SAMPLES),
    ("generation.k", "shipped", "generation.k", 9, SAMPLES),
    ("generation.p", "shipped", "generation.p", 0.8, ""),  # top_k does not read it
    ("generation.temperature", "shipped", "generation.temperature", 0.7, SAMPLES),
    ("generation.max_length", "shipped", "generation.max_length", 64, SAMPLES),
    ("generation.samples", "shipped", "generation.samples", 4, SAMPLES),
    ("generation.seed", "shipped", "generation.seed", 1, SAMPLES),
    # No plan is an input of anything that is trained.
    ("plan.topologies", "shipped", "plan.topologies", ["v6e-8"], ""),
    ("plan.prices.NAME", "shipped", "plan.prices.v5e-8", 9.6, ""),
    ("plan.changes", "shipped", "plan.changes", True, ""),
    ("plan.spending_limit", "shipped", "plan.spending_limit", 5.0, ""),
]  # fmt: skip


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
    with open(workflow / name, "w") as file:
        YAML(typ="safe", pure=True).dump(config, file)


def jobs(printed):
    """Return the jobs that a dry run lists, as rule:wildcard,wildcard."""
    found, rule = set(), None
    for line in printed.splitlines():
        head = re.match(r"(?:local)?rule (\w+):$", line)
        if head:
            rule = head[1]
            found.add(rule)
        elif rule and line.startswith("    wildcards: "):
            values = [part.split("=", 1)[1] for part in line.removeprefix("    wildcards: ").split(", ")]
            found.remove(rule)
            found.add(f"{rule}:{','.join(values)}")
            rule = None
    return found - {"all"}


def listed(workflow, *arguments):
    return jobs(workflow("-n", *arguments).stdout)


@pytest.fixture(scope="session")
def states(finished, tmp_path_factory):
    """A folder for each of STATES, in which nothing is left to be done.

    Each is the finished run of the shipped config; where the config is another, `--touch` has noted that the files are
    its own, which costs no training.
    """
    shipped = read_yaml(ROOT / "config.yaml")
    made = {}
    for name, changes in STATES.items():
        folder = tmp_path_factory.mktemp("states") / name
        shutil.copytree(finished.folder, folder, symlinks=True)
        workflow = made[name] = Workflow.__new__(Workflow)
        workflow.folder = folder
        (folder / "text").mkdir()
        for file in "abcd":
            (folder / f"text/{file}.txt").write_text(f"{file}\n")
        write(workflow, "state.yaml", changed(shipped, changes))
        if changes:
            if "base.given" in changes:
                shutil.copytree(folder / "results/base/small", folder / "results/base/given")
                shutil.copy(folder / "results/base/small.json", folder / "results/base/given.json")
            workflow("--touch", "--configfile", "state.yaml")
        assert "Nothing to be done" in workflow("-n", "--configfile", "state.yaml").stdout, name
    return made


@pytest.fixture(scope="session")
def dry_runs(states):
    """The jobs that each row's change gives."""

    def run(numbered):
        number, (_, state, key, value, _) = numbered
        workflow = states[state]
        name = f"row{number}.yaml"
        write(workflow, name, changed(read_yaml(workflow / "state.yaml"), {key: value}))
        return listed(workflow, "--configfile", name)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip([row[0] for row in ROWS], pool.map(run, enumerate(ROWS)), strict=True))


@pytest.mark.parametrize(("leaf", "expected"), [(row[0], row[4]) for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_changed_key_reruns_just_what_it_decides(dry_runs, leaf, expected):
    assert dry_runs[leaf] == set(expected.split())


@pytest.fixture
def built(states, tmp_path):
    """A copy of the finished run of the shipped config, to be changed."""
    return copied(states["shipped"], tmp_path)


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
    assert listed(built, "tfrecords") == {"write_shard:train,00001,00004", "merge_manifest", "tfrecords"}
    built("tfrecords")
    assert shard.read_bytes() == before
    assert "Nothing to be done" in built("-n").stdout


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


def test_a_line_added_to_one_text_file(states, tmp_path):
    workflow = copied(states["listed"], tmp_path)
    append(workflow / "text/b.txt", "one more line\n")
    assert listed(workflow, "--configfile", "state.yaml") == set(CORPUS.split()) | set(TUNING.split())


REPORT = (
    "collect_history:mlm/tiny collect_history:base-training/small collect_history:lora/python summarize_lora:python "
    "plot_training:mlm,tiny plot_training:base,small plot_training:lora,python plot_shards tabulate_metrics "
    "tabulate_predictions tabulate_generations:python tabulate_partitioning:python tabulate_corpus tabulate_timings"
)
EDITED = [
    ("scripts/plot_shards.py", "plot_shards"),
    ("scripts/train_lora.py", LORA),
    ("scripts/fill_mask.py", "fill_mask:tiny tabulate_predictions"),
    ("scripts/lib/python_likeness.py", "summarize_lora:python tabulate_metrics"),
    ("scripts/lib/masking.py", MLM),  # through lib/mlm_data.py
    ("scripts/lib/schedule.py", MLM + " " + BASE),
    ("scripts/lib/generation.py", SAMPLES),
    ("scripts/lib/adapter.py", "export_lora:python"),
    ("scripts/lib/retraining.py", ""),  # only the workflow itself imports it
    ("scripts/verify.py", ""),
    ("envs/report.txt", REPORT),
    ("envs/tensorflow.txt", MLM),
    ("envs/controller.txt", ""),
]


def test_an_edited_file_reruns_what_stands_on_it(built):
    for file, expected in EDITED:
        text = (built / file).read_text()
        append(built / file, "# edited\n")
        assert listed(built) == set(expected.split()), file
        (built / file).write_text(text)
    assert listed(built) == set()


def test_a_new_run_builds_itself_and_is_compared(built):
    config = read_yaml(built / "config.yaml")
    config["mlm"]["runs"]["other"] = copy.deepcopy(config["mlm"]["runs"]["tiny"])
    write(built, "more.yaml", config)
    assert listed(built, "--configfile", "more.yaml") == set(MLM.replace("tiny", "other").split())


def test_a_renamed_run_is_a_new_one(built):
    config = read_yaml(built / "config.yaml")
    config["lora"]["runs"]["snake"] = config["lora"]["runs"].pop("python")
    write(built, "renamed.yaml", config)
    assert listed(built, "--configfile", "renamed.yaml") == set(LORA.replace("python", "snake").split())


def test_two_values_swapped_are_seen(built):
    config = read_yaml(built / "config.yaml")
    config["mlm"]["runs"]["tiny"]["masking"] |= {"mask": 0.1, "random": 0.8}
    write(built, "swapped.yaml", config)
    assert listed(built, "--configfile", "swapped.yaml") == set(MLM.split())


def test_where_jobs_run_makes_nothing_stale(built, monkeypatch):
    profile = built / "profiles/default/config.yaml"
    profile.write_text(profile.read_text().replace("cores: all", "cores: 1") + "restart-times: 2\n")
    assert listed(built) == set()
    assert listed(built, "--cores", "7", "--set-threads", "train_lora=3") == set()
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
    append(built / "scripts/train_mlm_tensorflow.py", "# a comment\n")
    append(built / "scripts/lib/masking.py", "# another\n")
    assert listed(built) == set(MLM.split())
    built("--touch", "mlm")
    assert listed(built) == set()
    assert contents(built / "results") == before


def test_the_reason_is_given_in_words(built):
    config = read_yaml(built / "config.yaml")
    config["mlm"]["runs"]["tiny"]["steps"] = 2250
    config["lora"]["runs"]["python"]["steps"] = 900
    config["base"]["small"]["batch_size"] = 32
    write(built, "longer.yaml", config)
    printed = built("-n", "--configfile", "longer.yaml").stdout
    assert (
        "note: mlm.runs.tiny trains again from step 750: schedule was [[750, 0.003], [900, 0.003], [1500, 0.0]] and is "
        "[[750, 0.003], [1500, 0.003]].\n" in printed
    )
    assert "note: base.small trains again from step 0: batch_size was 16 and is 32.\n" in printed
    assert (
        "note: lora.runs.python trains again from step 0: schedule was [[0, 0.0], [20, 0.02], [300, 0.010344827586]] "
        "and is [[0, 0.0], [20, 0.02], [300, 0.013636363636]] (linear and cosine spread over all steps; constant and "
        "wsd keep what more steps leave as it was).\n" in printed
    )
    assert "reason: Params have changed since last execution" in printed
    (built / "results/mlm/tiny/checkpoints/00000750/weights.safetensors").unlink()
    assert "note: mlm.runs.tiny trains again from step 0: " in built("-n", "--configfile", "longer.yaml").stdout


def test_a_chain_of_2000_segments_dry_runs(fresh):
    config = read_yaml(fresh / "config.yaml")
    config["mlm"]["runs"]["tiny"] |= {"steps": 20_000, "checkpoint_every": 10}
    write(fresh, "long.yaml", config)
    printed = fresh("-n", "--quiet", "rules", "--configfile", "long.yaml").stdout
    assert re.search(r"^train_mlm_tensorflow +2000$", printed, re.M)


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
