"""The sizes that memory and disk follow from are those of the models that Keras builds."""

import json
from dataclasses import replace

import pytest
import warm
from conftest import ROOT
from tpulm.config.model_sizes import (
    FLOAT32,
    assumed,
    checkpoint_bytes,
    is_converted,
    masked_size,
    model_size,
    weight_bytes,
)
from tpulm.config.outline import Outline
from tpulm.config.reading import read_config
from tpulm.workflow.resources import mem_mb

BUILD = """
import json, math, sys
from tpulm.training import runtime
runtime.start(1)
import jax
import numpy as np
from tpulm.specs.training_step import TrainingStep
from tpulm.planning.abstract_run import AbstractRun

def count(variables):
    return sum(math.prod(variable.shape) for variable in variables)

def size(variables):
    return sum(math.prod(variable.shape) * np.dtype(variable.dtype).itemsize for variable in variables)

found = []
for stage, recipe in json.loads(sys.argv[1]):
    run = AbstractRun(TrainingStep.of(stage, "the.run", recipe), jax.devices()[:1])
    trained = run.model.trainable_variables
    found.append([count(run.model.variables), count(trained), 2 * size(trained) + size(run.optimizer.variables)])
print("RESULT" + json.dumps(found))
"""
SIZES = {"num_layers": 2, "num_query_heads": 4, "num_key_value_heads": 2, "hidden_dim": 24, "intermediate_dim": 40}
TRAINING = {
    "steps": 2, "checkpoint_every": 2, "batch_size": 2, "learning_rate": 1e-3, "mesh": [1, 1], "sequence_length": 16,
}  # fmt: skip
ALL = ["query", "key", "value", "output", "ffn"]


def config():
    """Return a config with a base model of every family, LoRA on each of them, and a masked model."""
    families = {name: {"head_dim": 8} for name in ("gemma", "gemma2", "gemma3", "mistral", "qwen3")}
    families |= {"llama3": {}, "qwen2": {}}
    base = {
        name: TRAINING | {"model": SIZES | more | {"architecture": name}, "vocab_size": 320}
        for name, more in families.items()
    }
    lora = {name: TRAINING | {"base": name, "rank": 3, "targets": ALL, "host_device_count": 1} for name in families}
    optimizers = {
        f"gemma-{name}": base["gemma"] | {"optimizer": {"name": name, "weight_decay": 0.01}}
        for name in ("lion", "adafactor")
    }
    return {"base": base | optimizers, "finetune": {"text": {"source": "python-source"}, "runs": lora}}


def test_every_family_has_the_size_that_is_expected_of_it(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({"corpus": {"source": "python-docs"}} | config()))
    runs = Outline(read_config([str(path)], {})).runs.values()
    found = warm.result(warm.run("jax", BUILD, json.dumps([[run.stage, run.plan_recipe()] for run in runs])))
    assert len(runs) == 16
    for run, (total, trained, checkpoint) in zip(runs, found, strict=True):
        size = model_size(run)
        # Beside the parameters, Keras counts the states of dropout.
        assert 0 <= total - size.parameters - size.adapters < 20, run.key
        assert FLOAT32 * trained == weight_bytes(run), run.key
        # The optimizer also counts steps; Adafactor's rows and columns are about as many as is said.
        assert abs(checkpoint - checkpoint_bytes(run)) <= (0.2 * checkpoint if "adafactor" in run.name else 16), run.key


def base_model(preset):
    """Return a base model that is fetched."""
    known = Outline(read_config([str(ROOT / "recipes/imdb-gemma-7b.yaml")], {})).of_stage("base")["gemma-7b"]
    return replace(known, base={"preset": preset})


@pytest.mark.unit
@pytest.mark.parametrize(
    ("name", "sizes", "parameters"),
    [  # layers, width, heads, heads of keys, width of a head, of the dense layers, vocabulary; as published
        ("gemma", (28, 3072, 16, 16, 256, 24_576, 256_000), 8_537_680_896),
        ("gemma2", (26, 2304, 8, 4, 256, 9216, 256_000), 2_614_341_888),
        ("gemma3_text", (26, 1152, 4, 1, 256, 6912, 262_144), 999_885_952),
        ("llama", (32, 4096, 32, 8, None, 14_336, 128_256), 8_030_261_248),
        ("mistral", (32, 4096, 32, 8, None, 14_336, 32_000), 7_241_732_096),
        ("qwen2", (24, 896, 14, 2, None, 4864, 151_936), 494_032_768),
        ("qwen3", (28, 1024, 16, 8, 128, 3072, 151_936), 596_049_920),
    ],
)
def test_the_size_of_a_folder_of_transformers(tmp_path, name, sizes, parameters):
    keys = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    config = dict(zip((*keys, "intermediate_size", "vocab_size"), sizes, strict=True)) | {"model_type": name}
    if name.startswith("qwen"):
        config["tie_word_embeddings"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    base = base_model(str(tmp_path))
    assert model_size(base).parameters == parameters and assumed(base) is None
    assert is_converted(base) and mem_mb(base, "fetch_base") > 4 * parameters / 1e6  # converted in float32
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    assert assumed(base) == "Gemma 7B"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("preset", "parameters"),
    [
        ("gemma_7b_en", 8_537_680_896),
        ("mistral_0.3_instruct_7b_en", 7_248_023_552),  # counted: the sizes of its layers are not known here
        ("gemma4_instruct_2b", 4_628_569_379),  # of 5.1e9; without what reads images and sound
        ("kaggle://keras/qwen/keras/qwen2.5_0.5b_en/1", 494_032_768),
        ("hf://someone/llama3_8b", None),
    ],
)
def test_published_models_have_the_parameters_that_keras_hub_says(preset, parameters):
    base = base_model(preset)
    assert (None if assumed(base) else model_size(base).parameters) == parameters


def test_the_size_of_a_masked_model():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    recipe = {"model": {"architecture": "roberta", "max_position_embeddings": 24} | sizes, "batch_size": 2}
    masking = {"mlm_probability": 0.15, "mask_replace_prob": 0.8, "random_replace_prob": 0.1}
    run = recipe | {"masking": masking, "vocabulary": {"size": 320, "pad": 3}, "sequence_length": 16, "mesh": [1, 1]}
    run |= {"precision": "float32", "microbatches": 1, "steps_per_execution": 1, "remat": False, "optimizer": {}}
    ((total, trained, _),) = warm.result(warm.run("jax", BUILD, json.dumps([["mlm", run]])))
    # keras-hub's has neither the positions up to the pad id nor types of tokens, which transformers has.
    assert masked_size(recipe["model"], 320).parameters == trained + (4 + 1) * 32
    # RobertaForMaskedLM of transformers.
    assert masked_size({"max_position_embeddings": 514}, 50_265).parameters == 124_697_433
