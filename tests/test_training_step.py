"""The description of a training step: the same from a plan and from a segment; sizes of published models."""

import pytest
from conftest import ROOT
from tpulm.config.model_sizes import published
from tpulm.config.reading import read_config
from tpulm.config.runs import runs_of
from tpulm.core.errors import UserError
from tpulm.specs.training_step import TrainingStep, check_batch_size

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("text", [{}, {"source": "files", "files": ["a"], "template": "{q}", "response": "{a}"}])
def test_what_is_planned_is_what_trains(text):
    """A segment's recipe, with what its job knows from its inputs, and a plan's describe one training step."""
    config = read_config([str(ROOT / "config.yaml")], {"finetune": {"text": text}})
    runs = runs_of(config)
    assert [run.stage for run in runs] == ["mlm", "base", "finetune"]
    for run in runs:
        segment, plan = run.segment(run.segment_ends[0]), run.plan()
        inputs = ("sequence_length", "packing", "vocabulary", "vocab_size", "base")
        known = {key: plan[key] for key in inputs if key in plan}
        trains = TrainingStep.of(run.stage, run.key, segment, **known)
        assert trains == TrainingStep.of(run.stage, plan["where"], plan)
        assert trains.responses == run.records.responses == (run.stage == "finetune" and "response" in text)


def test_a_batch_that_no_mesh_can_share():
    check_batch_size("base.x", 8, 2, 4)
    check_batch_size("base.x", 9, 3, 1)
    with pytest.raises(UserError, match=r"^base\.x\.batch_size is 8; .* 4 times microbatches, 4"):
        check_batch_size("base.x", 8, 4, 4)


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
