"""The description of a training step: what it is made of, what it says, what it refuses."""

import subprocess
import sys

import pytest
from conftest import ROOT
from tpulm.config.model_sizes import published
from tpulm.config.reading import read_config
from tpulm.config.runs import runs_of
from tpulm.core.errors import UserError
from tpulm.specs.training_step import (
    CausalArchitecture,
    MaskedArchitecture,
    ModelSpec,
    Preset,
    TrainingStep,
    check_batch_size,
)

pytestmark = pytest.mark.unit
RECIPE = {
    "batch_size": 8, "microbatches": 4, "steps_per_execution": 1, "remat": False, "optimizer": {}, "mesh": [2, -1],
    "precision": "float32", "seed": 7, "sequence_length": 32,
}  # fmt: skip
MASKING = {"mlm_probability": 0.15, "mask_replace_prob": 0.8, "random_replace_prob": 0.1}


def test_a_masked_step():
    recipe = RECIPE | {"model": {"architecture": "roberta", "hidden_size": 24}, "masking": MASKING}
    step = TrainingStep.of("mlm", "mlm.runs.x", recipe, vocabulary={"size": 64, "pad": 3})
    assert (step.task, step.microbatch_size, step.tokens_per_step) == ("masked", 2, 8 * 32)
    assert step.record_arrays == {
        "input_ids": ((32,), "int32"), "positions": ((5,), "int32"), "labels": ((5,), "int32"),
        "weights": ((5,), "float32"),
    }  # fmt: skip
    for packing, more in (("segments", "segment_ids"), ("pad", "attention_mask")):
        other = TrainingStep.of("mlm", "x", recipe, vocabulary={"size": 64, "pad": 3}, packing=packing)
        assert other.record_arrays == step.record_arrays | {more: ((32,), "int32")}
        assert other.model.segments == (packing == "segments")
    assert (step.predictions_per_record, step.model.mesh) == (5, (2, -1))
    model = step.model.architecture
    assert isinstance(model, MaskedArchitecture)
    assert (model.name, model.vocabulary_size, model.pad_id) == ("roberta", 64, 3)
    assert (model.sizes["hidden_size"], model.sizes["num_hidden_layers"]) == (24, 12)
    with pytest.raises(UserError, match=r"^mlm\.runs\.x\.model\.hidden_size is 25; allowed: a multiple of"):
        TrainingStep.of("mlm", "mlm.runs.x", recipe | {"model": recipe["model"] | {"hidden_size": 25}}, vocabulary={})


def test_a_causal_step():
    base = {"model": {"num_layers": 1}, "vocab_size": 100}
    trained = TrainingStep.of("base", "base.x", RECIPE | base)
    assert trained.task == "causal" and not trained.masking and not trained.model.only_lora
    assert trained.record_arrays == {"tokens": ((33,), "int32"), "mask": ((33,), "bool")}
    apart = TrainingStep.of("base", "base.x", RECIPE | base | {"packing": "segments"})
    assert apart.record_arrays == trained.record_arrays | {"segment_ids": ((33,), "int32")} and apart.model.segments
    asked = TrainingStep.of("base", "base.x", RECIPE | base | {"responses": True})
    assert asked.record_arrays == trained.record_arrays | {"loss_mask": ((33,), "int32")} and asked.responses
    lora = {"method": "lora", "rank": 4}
    planned = TrainingStep.of("finetune", "finetune.runs.x", RECIPE | lora | {"base": base})
    assert planned.model.architecture == CausalArchitecture("GemmaBackbone", {"num_layers": 1}, 100)
    assert planned.predictions_per_record == 32
    tuned = TrainingStep.of("finetune", "finetune.runs.x", RECIPE | lora, base={"preset": "results/base/x/preset"})
    assert tuned.model.source == Preset("results/base/x/preset") and tuned.model.only_lora and tuned.model.rank == 4
    with pytest.raises(ValueError, match="is loaded from the preset results/base/x/preset, not built"):
        _ = tuned.model.architecture
    full = TrainingStep.of("finetune", "finetune.runs.x", RECIPE | {"method": "full"}, base={"preset": "gemma_2b_en"})
    assert full.model.rank is None and not full.model.only_lora


@pytest.mark.parametrize("text", [{}, {"source": "files", "files": ["a"], "template": "{q}", "response": "{a}"}])
def test_what_is_planned_is_what_trains(text):
    """A segment's recipe, with what its job knows from its inputs, and a plan's describe one training step."""
    changes = {"mlm": {"runs": {"tiny": {"backend": "jax"}}}, "finetune": {"text": text}}
    config = read_config([str(ROOT / "config.yaml")], changes)
    runs = runs_of(config)
    assert [run.stage for run in runs] == ["mlm", "base", "finetune"]
    for run in runs:
        segment, plan = run.segment(run.segment_ends[0]), run.plan()
        inputs = ("sequence_length", "packing", "vocabulary", "vocab_size", "base")
        known = {key: plan[key] for key in inputs if key in plan}
        trains = TrainingStep.of(run.stage, run.key, segment, **known)
        assert trains == TrainingStep.of(run.stage, plan["where"], plan)
        assert trains.responses == run.records.responses == (run.stage == "finetune" and "response" in text)


def test_a_model_needs_no_step():
    recipe = {"mesh": [1, 1], "precision": "float32", "preset": "results/base/x/preset"}
    assert ModelSpec.of("base", "base.x", recipe).source == Preset("results/base/x/preset")


def test_a_batch_that_no_mesh_can_share():
    check_batch_size("base.x", 8, 2, 4)
    check_batch_size("base.x", 9, 3, 1)
    with pytest.raises(UserError) as error:
        check_batch_size("base.x", 8, 4, 4)
    assert str(error.value) == (
        "base.x.batch_size is 8; allowed: a multiple of the batch axis of mesh, 4 times microbatches, 4."
    )


def test_the_description_imports_nothing_heavy():
    code = "import sys; sys.path.insert(0, sys.argv[1]); import tpulm.specs.training_step; "
    code += "assert not {'numpy', 'jax', 'keras'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code, str(ROOT / "scripts")], check=True)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gemma_7b_en", 8_537_680_896),
        ("llama3_instruct_8b_en", 8_030_261_248),
        ("mistral_0.2_instruct_7b_en", None),  # another vocabulary's version would be another model
        ("mistral_instruct_7b_en", 7_241_732_096),
        ("kaggle://keras/qwen/keras/qwen2.5_0.5b_en/1", 494_032_768),
        ("qwen3_4b_en", 4_022_468_096),
        ("hf://someone/llama3_8b", None),
    ],
)
def test_published_models_have_the_parameters_that_keras_hub_says(name, parameters):
    found = published(name)
    assert (found is None) == (parameters is None)
    if found is None:
        return
    family, sizes = found
    hidden, width = sizes["hidden_dim"], sizes.get("head_dim") or sizes["hidden_dim"] // sizes["num_query_heads"]
    heads, groups = sizes["num_query_heads"], sizes["num_key_value_heads"]
    halves = 2 if family == "GemmaBackbone" else 1  # both halves of the gate count there
    tables = 1 if sizes.get("tie_word_embeddings", family.startswith(("Gemma", "Qwen"))) else 2
    more = {"QwenBackbone": (heads + 2 * groups) * width, "Qwen3Backbone": 2 * width}.get(family, 0)
    block = 2 * hidden * width * (heads + groups) + 3 * hidden * sizes["intermediate_dim"] // halves + 2 * hidden + more
    assert tables * sizes["vocabulary_size"] * hidden + hidden + sizes["num_layers"] * block == parameters
