"""Insides of libraries are used in one room only, and a library that moves is named."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm
from conftest import ROOT

ROOM = ROOT / "scripts/tpulm/compat"
SOURCES = [
    path
    for folder in ("scripts", "tools", "profiles")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if ROOM not in path.parents
]
# Names with an underscore that their manuals describe: of named tuples, and of `os`.
DESCRIBED = {"_asdict", "_replace", "_fields", "_exit"}
# Attributes that the manuals of their libraries have one set.
SETTABLE = {
    "tokenizers": {"normalizer", "pre_tokenizer", "post_processor", "decoder", "ignore_merges"},
    "keras": {"trainable", "preprocessor", "lora_alpha", "unsplittable_tokens"},
    "tensorflow": {"enabled", "auto_shard_policy"},
    "transformers": {"torch_dtype", "architectures"},
    "protobuf": {"map_entry"},
    "numpy": {"writeable"},
    "zipfile": {"compress_type", "create_system", "external_attr", "comment"},
    "http.server": {"daemon_threads"},
    "jinja2": {"filters", "globals"},
    "sys": {"unraisablehook"},
    "os": {"environ"},
}
# Where a profile brings an executor that is made from another plugin's, it is that plugin's insides.
PROFILES = {
    "profiles/gke/snakemake_executor_plugin_gke/__init__.py": {
        "_kubernetes_retry", "_reauthenticate_and_retry", "change",
    },
    "profiles/gke/snakemake_executor_plugin_gke/manifest.py": {
        "labels", "ttl_seconds_after_finished", "env", "active_deadline_seconds", "node_selector", "tolerations",
        "pod_failure_policy", "completion_mode", "completions", "parallelism", "success_policy", "subdomain", "args",
        "sub_path", "amounts",
    },
}  # fmt: skip


def of_itself(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def own_attributes(tree: ast.AST) -> set[str]:
    """Return the names of attributes that classes give themselves: fields, and what they assign to self."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and of_itself(node.value):
            found.add(node.attr)
        if isinstance(node, ast.ClassDef):
            found |= {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}
    return found


OWN = set().union(*(own_attributes(ast.parse(path.read_text())) for path in SOURCES))


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__") and name not in DESCRIBED


def is_function(node: ast.AST, functions: set[str]) -> bool:
    """Return whether a value is a function: a lambda, one of this file, or a `partial`."""
    if isinstance(node, ast.Tuple):
        return any(is_function(one, functions) for one in node.elts)
    called = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("partial")
    return isinstance(node, ast.Lambda) or called or (isinstance(node, ast.Name) and node.id in functions)


def insides(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of what a file uses of the insides of others: private names, and attributes that it sets."""
    tree = ast.parse(path.read_text())
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    known = own_attributes(tree) | functions
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if not of_itself(node.value) or node.attr not in known:
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ast.unparse(node.args[1])
            if is_private(name) or (ast.unparse(node.func) == "setattr" and not of_itself(node.args[0])):
                yield node.lineno, name
        elif isinstance(node, ast.ImportFrom | ast.Import):
            module = getattr(node, "module", "") or ""
            names = [part for alias in node.names for part in f"{module}.{alias.name}".split(".")]
            yield from ((node.lineno, name) for name in names if is_private(name) or name == "src")
        elif isinstance(node, ast.Delete):
            yield from (
                (node.lineno, one.attr)
                for one in node.targets
                if isinstance(one, ast.Attribute) and not of_itself(one.value)
            )
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in (one for whole in targets for one in ast.walk(whole)):
                if isinstance(target, ast.Subscript) and ast.unparse(target.value) == "sys.modules":
                    yield node.lineno, "sys.modules"
                if not isinstance(target, ast.Attribute) or not isinstance(target.ctx, ast.Store):
                    continue
                if of_itself(target.value) or target.attr in set().union(*SETTABLE.values()):
                    continue
                if target.attr not in OWN or (node.value is not None and is_function(node.value, functions)):
                    yield node.lineno, target.attr


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("layer._call(1)", ["_call"]),
        ("getattr(layer, '_call')", ["_call"]),
        ("layer.call = lambda x: x", ["call"]),
        ("keras.layers.Dropout.call = dropped", ["call"]),
        ("def dropped(): ...\nlayer.dropout = dropped", ["dropout"]),
        ("sys.modules['pandas'] = None", ["sys.modules"]),
        ("del layer.kernel", ["kernel"]),
        ("from keras.src import backend", ["src"]),
        ("tokenizer.normalizer = None\nself.x = 1\nfound._asdict()\nos._exit(1)", []),
    ],
)
def test_what_counts_as_insides(tmp_path, text, names):
    (tmp_path / "one.py").write_text(text)
    assert [name for _, name in insides(tmp_path / "one.py")] == names


@pytest.mark.unit
def test_insides_of_libraries_are_used_in_one_room():
    found = []
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        found += [f"{name}:{line}: {one}" for line, one in insides(path) if one not in PROFILES.get(name, ())]
    assert not found, "to scripts/tpulm/compat with it, or a public way: " + ", ".join(found)


@pytest.mark.unit
def test_each_says_why_it_is_there_and_until_when():
    for path in ROOM.glob("*.py"):
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                said = ast.get_docstring(node) or ""
                said += said and (ast.get_docstring(tree) or "")  # which says it of all of them, where it is the same
                assert "Why" in said and "ntil" in said, f"{path.name}: {node.name}"


# What the room takes of each library, by the names that it takes; a name that is gone is told.
ON_JAX = """
import json, sys
from tpulm.training import runtime
runtime.start(1)
import inspect, keras, keras_hub

missing = []

def has(what, thing, *names):
    missing.extend(f"{what}.{name}" for name in names if not hasattr(thing, name))

def takes(what, function, *names):
    found = inspect.signature(function).parameters
    missing.extend(f"{what}({name})" for name in names if name not in found)

sizes = {"vocabulary_size": 8, "num_layers": 1, "num_query_heads": 2, "num_key_value_heads": 1, "hidden_dim": 8,
         "intermediate_dim": 8}
for name in ("Gemma", "Gemma3"):
    more = {"head_dim": 4} | ({"image_size": None} if name == "Gemma3" else {})
    block = getattr(keras_hub.models, f"{name}Backbone")(**sizes, **more).transformer_layers[0]
    has(name, block, "attention", "_compute_attention_mask", "hidden_dim")
    has(f"{name}.attention", block.attention, "_compute_attention", "rope_layer", "head_dim", "num_query_heads",
        "query_head_dim_normalize", "sliding_window_size", "use_sliding_window_attention", "logit_soft_cap",
        "_use_fused_attention_op")
    takes(f"{name}.attention.call", block.attention.call, "x", "attention_mask")
    takes(f"{name}.attention.rope_layer.call", block.attention.rope_layer.call, "positions")
    if list(inspect.signature(block._compute_attention_mask).parameters)[-2:-1] != ["cache"]:
        missing.append(f"{name}._compute_attention_mask(cache)")
for name in ("Llama", "Llama3", "Mistral", "Qwen", "Qwen3"):
    more = {"head_dim": 4} if name == "Qwen3" else {}
    block = getattr(keras_hub.models, f"{name}Backbone")(**sizes, **more).transformer_layers[0]
    has(name, block, "_self_attention_layer", "_compute_self_attention_mask")
    layer = block._self_attention_layer
    has(f"{name}.attention", layer, "_compute_attention", "_inv_norm_factor", "_query_dense")
    has(f"{name}.attention.query", layer._query_dense, "partial_output_shape")
    if name == "Mistral":
        has(name, block, "sliding_window")
    takes(f"{name}.mask", block._compute_self_attention_mask, "decoder_sequence", "decoder_padding_mask",
          "self_attention_cache")
    if name == "Qwen3":
        has(name, layer, "_query_dense_layer_norm", "_key_dense_layer_norm")
        found = {one.name for one in block._flatten_layers()}
        missing.extend(f"Qwen3 layer {one}" for one in ("query_dense_layernorm", "key_dense_layernorm")
                       if one not in found)
has("Layer", keras.layers.Layer, "_flatten_layers")
has("EinsumDense", keras.layers.EinsumDense, "_adjust_scale_for_dequant")
dense = keras.layers.Dense(8, dtype="int8_from_float32")
dense.build((1, 8))
has("Dense int8", dense, "inputs_quantizer")
keras.distribution.set_distribution(keras.distribution.DataParallel())
has("Variable", keras.Variable([0.0]), "_layout")
from keras_hub.src.utils import preset_utils
has("preset_utils", preset_utils, "load_json")
if not preset_utils.BUILTIN_PRESETS["gemma_2b_en"]["kaggle_handle"]:
    missing.append("kaggle_handle")
from tokenizers import pre_tokenizers
from tpulm.compat.keras_hub_tokenizers import tokenizer_of
vocabulary = {one: number for number, one in enumerate([*pre_tokenizers.ByteLevel.alphabet(), "<|endoftext|>"])}
tokenizer = keras_hub.models.GPT2Tokenizer(vocabulary=vocabulary, merges=[])
if not hasattr(tokenizer_of(tokenizer), "encode_batch"):
    missing.append("BytePairTokenizer._tokenizer")
print("RESULT" + json.dumps(missing))
"""
ON_TENSORFLOW = """
import json
from tpulm.training.tensorflow_runtime import transformers
from tpulm.training.tensorflow_model import construct

missing = []
model = construct(transformers.RobertaConfig(vocab_size=8, hidden_size=4, num_hidden_layers=1, num_attention_heads=1,
                                             intermediate_size=4, pad_token_id=3))
layers = model._flatten_layers(recursive=True, include_self=False)
drawing = [layer._random_generator for layer in layers if hasattr(layer, "_random_generator")]
if not drawing:
    missing.append("Layer._random_generator")
for source in drawing[:1]:
    source._maybe_init()
    missing += [name for name in ("_generator",) if not hasattr(source, name)]
layers = model._flatten_layers(recursive=True, include_self=False)
if 3 not in [getattr(layer, "padding_idx", None) for layer in layers]:
    missing.append("padding_idx")
print("RESULT" + json.dumps(missing))
"""


@pytest.mark.parametrize(("backend", "program"), [("jax", ON_JAX), ("tensorflow", ON_TENSORFLOW)])
def test_what_the_room_takes_of_libraries_is_there(backend, program):
    assert warm.result(warm.run(backend, program)) == []


@pytest.mark.unit
def test_the_harness_has_what_pins_its_tasks():
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_defaults=False)
    assert hasattr(manager._factory, "_load_full_config")
