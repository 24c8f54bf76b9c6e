"""What scores say in words, and the scores of checkpoints: what is waited for, what is gone."""

import pytest
from conftest import ROOT
from tpulm.config.evaluations import Evaluation
from tpulm.config.outline import Outline
from tpulm.config.reading import complete, read_yaml
from tpulm.core.errors import UserError
from tpulm.specs.scores import Score

pytestmark = pytest.mark.unit


def text(value, low, high, on="corpus test", **more):
    return Score("text", "bits_per_byte", on, value, low, high, False, 200, **more)


def test_a_score_says_what_it_is_beside_chance_and_simpler_models():
    score = text(2.0, 1.9, 2.1, baselines={"unigram": 4.0, "5-gram": 2.05})
    assert score.comparison == "better than unigram; no significant difference from 5-gram"
    pairs = Score("pairs", "accuracy", "made", 0.7, 0.6, 0.8, True, 40, chance=0.5, baselines={"5-gram": 0.9})
    assert pairs.comparison == "worse than 5-gram; better than chance"
    unknown = text(2.0, None, None, baselines={"a": 2.0, "b": 1.5})
    assert unknown.comparison == "no significant difference from a; worse than b"
    pseudo = Score("text", "pseudo_bits_per_byte", "x", 2.3, 2.2, 2.4, False, 9, baselines={"5-gram": 1.5})
    assert pseudo.comparison == "", "it is no likelihood"
    assert Score("task", "mcc", "cola", 0.1, None, None, True, 9).comparison == ""


# Checkpoints


def chains(**tiny):
    found = read_yaml(ROOT / "config.yaml")
    found["mlm"]["runs"]["tiny"] |= {"steps": 1500, "checkpoint_every": 500} | tiny
    return Outline(complete(found, "config.yaml")).runs


@pytest.fixture
def scored(tmp_path):
    """Return a function that gives the scores of checkpoints of the shipped config, in a folder."""

    def scored(which, **tiny):
        runs = chains(**tiny)
        return Evaluation("evaluation.checkpoints", which, runs, runs, lambda path: (tmp_path / path).exists())

    return scored


def touch(folder, *files):
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()


RUN = "<results>/mlm/tiny/checkpoints"
SCORES = "<results>/evaluation/mlm/tiny"


def test_the_config_names_the_checkpoints_that_are_scored_and_thinning_waits_for_them(scored, tmp_path):
    steps = {which: scored(which).steps["mlm/tiny"] for which in ("best", "last", "all")}
    assert steps == {"best": [], "last": [1500], "all": [500, 1000, 1500]}
    assert scored("last").of_steps("mlm/tiny") == [f"{SCORES}/00001500/scores.json"]
    assert chains()["mlm/tiny"].tokens_per_step == 8 * 128
    with pytest.raises(UserError, match=r"^evaluation\.checkpoints is all, .*mlm\.runs\.tiny has patience.* best"):
        scored("all", patience=2)
    assert scored("best").before_pruning("mlm/tiny", 500) == []
    assert scored("all").before_pruning("mlm/tiny", 500) == [f"{SCORES}/00000500/scores.json"]
    touch(tmp_path, f"{RUN}/00000500/pruned.json", f"{SCORES}/00000500/scores.json")
    for which in ("all", "best"):  # what it waited for stays an input, so that nothing is thinned again
        assert scored(which).before_pruning("mlm/tiny", 500) == [f"{SCORES}/00000500/scores.json"]


def test_checkpoints_that_are_gone_are_named_and_not_trained_again(scored, tmp_path):
    touch(tmp_path, f"{RUN}/00000500/pruned.json", f"{RUN}/00001000/pruned.json", f"{SCORES}/00001000/scores.json")
    found = scored("all", keep_checkpoints="last")
    assert found.of_steps("mlm/tiny") == [f"{SCORES}/0000{step}/scores.json" for step in (1000, 1500)]
    assert found.before_pruning("mlm/tiny", 500) == []
    for named in ("evaluation.checkpoints", "mlm.runs.tiny.keep_checkpoints", "step 500"):
        assert named in found.notes[0], named
    assert len(found.notes) == 1 and scored("best").notes == []
    assert [path for path in found.models if path.startswith("mlm/tiny/")] == ["mlm/tiny/00001500"]
