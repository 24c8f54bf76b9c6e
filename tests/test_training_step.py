"""The description of a training step: the same from a plan and from a segment."""

import pytest
from conftest import ROOT
from tpulm.config.outline import Outline
from tpulm.config.reading import read_config
from tpulm.core.errors import UserError
from tpulm.specs.training_step import ModelSpec, TrainingStep, check_batch_size

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("text", [{}, {"source": "files", "files": ["a"], "template": "{q}", "response": "{a}"}])
def test_what_is_planned_is_what_trains(text):
    """A segment's recipe, with what its job knows from its inputs, and a plan's describe one training step."""
    config = read_config([str(ROOT / "config.yaml")], {"finetune": {"text": text}})
    runs = Outline(config).runs.values()
    assert [run.stage for run in runs] == ["mlm", "base", "finetune"]
    for run in runs:
        segment, plan = run.segment(run.segment_ends[0]), run.plan_recipe()
        inputs = ("sequence_length", "packing", "vocabulary", "vocab_size", "base")
        known = {key: plan[key] for key in inputs if key in plan}
        trains = TrainingStep.of(run.stage, run.key, segment, **known)
        assert trains == TrainingStep.of(run.stage, plan["where"], plan)
        for packing in ("concat", "segments", "pad"):
            full = TrainingStep.of(run.stage, run.key, plan | {"packing": packing}).model.full
            assert full == (packing == "concat")
        assert not ModelSpec.of(run.stage, run.key, plan).full  # it may read prompts with padding
        assert trains.responses == run.records.responses == (run.stage == "finetune" and "response" in text)


def test_a_batch_that_no_mesh_can_share():
    check_batch_size("base.x", 8, 2, 4)
    check_batch_size("base.x", 9, 3, 1)
    with pytest.raises(UserError, match=r"^base\.x\.batch_size is 8; .* 4 times microbatches, 4"):
        check_batch_size("base.x", 8, 4, 4)
