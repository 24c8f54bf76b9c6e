"""Sweeps of the config, and the table that compares runs."""

import copy
from dataclasses import asdict

import pytest
from conftest import ROOT
from tpulm.config.outline import Outline
from tpulm.config.reading import complete, read_yaml
from tpulm.config.sweeps import groups_of, in_a_name
from tpulm.report.tables import comparison_rows, markdown
from tpulm.specs.scores import token_scores

pytestmark = pytest.mark.unit


def config(sweep, stage="mlm", **more):
    """Return the shipped config with a sweep in one of its runs, and more runs beside it."""
    found = read_yaml(ROOT / "config.yaml")
    runs = found["base"] if stage == "base" else found[stage]["runs"]
    (name,) = runs
    runs[name]["sweep"] = sweep
    for other, changes in more.items():
        runs[other] = {key: value for key, value in copy.deepcopy(runs[name]).items() if key != "sweep"} | changes
    return found


def names(found):
    return [run.name for run in Outline(complete(found, "config.yaml")).runs.values()]


def test_a_sweep_is_a_run_for_each_combination():
    sweep = {"learning_rate": [1e-4, 3e-4], "seed": [0, 1, 2]}
    found = complete(config(sweep), "config.yaml")
    expected = [f"tiny-learning_rate-{rate}-seed-{seed}" for rate in ("1e-4", "3e-4") for seed in (0, 1, 2)]
    assert list(found["mlm"]["runs"]) == expected
    run = found["mlm"]["runs"]["tiny-learning_rate-3e-4-seed-2"]
    assert (run["learning_rate"], run["seed"]) == (3e-4, 2) and "sweep" not in run
    plain = complete(read_yaml(ROOT / "config.yaml"), "config.yaml")["mlm"]["runs"]["tiny"]
    assert run | {"learning_rate": 2e-3, "seed": 0} == plain


def test_nested_keys_lists_and_required_keys_are_swept():
    found = config({"optimizer.weight_decay": [0, 0.1], "mesh": [[1, 8], [8, 1]]}, "finetune")
    expected = [f"python-weight_decay-{decay}-mesh-{mesh}" for decay in ("0", "0_1") for mesh in ("1x8", "8x1")]
    assert names(found)[-4:] == expected
    found = config({"steps": [2100, 3150]})
    del found["mlm"]["runs"]["tiny"]["steps"]  # the sweep gives it
    assert names(found)[:2] == ["tiny-steps-2100", "tiny-steps-3150"]
    found = config({"seed": [0, 1]}, "base")
    found["finetune"]["runs"]["python"]["sweep"] = {"base": ["small-seed-0", "small-seed-1"]}
    assert "python-base-small-seed-1" in names(found)


@pytest.mark.parametrize(
    ("value", "name"),
    [(0.00025, "2_5e-4"), (0.15, "0_15"), (2.0, "2"), (-0.8, "-0_8"), (0.0, "0"), (True, "true"),
     ("every 10", "every_10"), (None, "none"), ([1, -1], "1x-1"), (3e-2, "3e-2"), (10**6, "1000000")],
)  # fmt: skip
def test_values_stand_in_names(value, name):
    assert in_a_name(value) == name


def test_runs_that_differ_by_their_seed_are_a_row_with_mean_and_spread():
    found = config({"learning_rate": [1e-4, 3e-4], "seed": [0, 1, 2]}, own={"batch_size": 32})
    runs = [run for run in Outline(complete(found, "config.yaml")).runs.values() if run.stage != "base"]
    groups = groups_of(runs)
    assert [(group["name"], group["runs"]) for group in groups] == [
        ("own", 1), ("tiny-learning_rate-1e-4", 3), ("tiny-learning_rate-3e-4", 3), ("python", 1),
    ]  # fmt: skip
    assert groups[1]["settings"] == {"batch_size": 8, "learning_rate": 1e-4} and groups[3]["settings"] == {}

    def metrics(loss, text="corpus"):
        figures = {"loss": loss, "accuracy": 0.5, "predictions": 9}
        splits = (token_scores(text, split, "all", figures, {}) for split in ("validation", "test"))
        return {"scores": [asdict(score) for scores in splits for score in scores]}

    rows = comparison_rows(groups, [*map(metrics, range(7)), metrics(3.0, "finetune-text")])
    assert [(row["validation_loss"], row["validation_loss_std"]) for row in rows] == [(0, ""), (2, 1), (5, 1), (3, "")]
    (row,) = (line for line in markdown(rows).splitlines() if "tiny-learning_rate-1e-4" in line)
    assert "batch_size=8 learning_rate=0.0001" in row and "2.0000 +- 1.0000" in row
    assert markdown(comparison_rows([], [])) == ""
