"""No library is patched outside of one room, and a library that moves is named."""

import ast

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


def replaces_a_function(node: ast.AST, functions: set[str]) -> bool:
    """Return whether a statement puts a function of this file, or a lambda, in the place of another object's.

    Those of `sys` are hooks, which its manual has one set.
    """
    if not isinstance(node, ast.Assign):
        return False
    function = isinstance(node.value, ast.Lambda) or ast.unparse(node.value) in functions
    owners = [ast.unparse(one.value) for one in node.targets if isinstance(one, ast.Attribute)]
    return function and not set(owners) <= {"self", "sys"}


@pytest.mark.unit
def test_no_function_of_a_library_is_replaced_outside_of_the_room():
    """Ruff holds the rest: private names (SLF001), and modules named `src` (TID251)."""
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(tree):
            assert not replaces_a_function(node, functions), f"{path}:{node.lineno}: to scripts/tpulm/compat with it"


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
linear = {"linear_num_key_heads": 1, "linear_num_value_heads": 1, "layer_types": ["linear_attention"]}
linear |= {"linear_key_head_dim": 4, "linear_value_head_dim": 4, "head_dim": 4}
qwen = keras_hub.models.Qwen3_5Backbone(**sizes, **linear)
has("Qwen3_5", keras_hub.models.Qwen3_5CausalLM, "_build_cache")
takes("Qwen3_5._build_cache", keras_hub.models.Qwen3_5CausalLM._build_cache, "token_ids", "padding_mask")
found = {one.name for one in qwen.transformer_layers[0]._flatten_layers()}
missing.extend(f"Qwen3_5 layer {one}" for one in ("in_proj_a", "in_proj_b") if one not in found)
gemma4 = keras_hub.models.Gemma4Backbone(**sizes, head_dim=4, image_size=None)
if "position_ids" not in gemma4.input:
    missing.append("position_ids")
has("Gemma4", gemma4.transformer_layers[0].attention, "_use_fused_attention_op")
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
