"""Is the difference real: tests over items and seeds, and which models are held against each other."""

import itertools

import numpy as np
import pytest
from conftest import ROOT
from tpulm.config.outline import Outline
from tpulm.config.reading import complete, read_yaml
from tpulm.config.report import comparisons
from tpulm.core.errors import UserError
from tpulm.evaluation.significance import COLUMNS, Trained, compare_scores, holm, over_seeds, permuted
from tpulm.report.tables import table_of_tests
from tpulm.specs.scores import Score

pytestmark = pytest.mark.unit


def model(name, *runs, higher=True, metric="acc"):
    """Return a model by the values of the items of each of its runs."""
    scores, items = [], []
    for values in runs:
        value = float(np.mean(values))
        score = Score("pairs", metric, "made", value, None, None, higher, len(values))
        scores.append({score.name: score})
        items.append({score.name: {str(n): one for n, one in enumerate(values)}})
    return Trained(name, scores, items)


def test_few_items_are_permuted_exactly_and_many_drawn_by_a_seed():
    differences = np.array([0.5, 0.2, -0.1, 0.4, 0.3, 0.6])
    means = [abs(np.mean(differences * signs)) for signs in itertools.product((1, -1), repeat=6)]
    assert permuted(differences) == pytest.approx(np.mean(np.array(means) >= abs(differences.mean()) - 1e-12))
    assert permuted(np.zeros(5)) == 1.0
    differences = np.random.default_rng(0).normal(0.15, 1, 400)
    first, second = permuted(differences), permuted(differences)
    assert first == second and 0 < first < 0.05 < permuted(differences - differences.mean() + 0.02)


def test_a_difference_is_found_where_there_is_one():
    draw = np.random.default_rng(1)
    weak, strong = (draw.random(300) < 0.55).astype(float), (draw.random(300) < 0.75).astype(float)
    (row,) = compare_scores(model("a", weak), model("b", strong))
    assert row["verdict"] == "better" and "with one seed" in row["because"]
    assert row["low"] < row["difference"] < row["high"] and row["low"] > 0 and list(sorted(row)) == sorted(COLUMNS)
    (row,) = compare_scores(model("a", weak, higher=False), model("b", strong, higher=False))
    assert row["verdict"] == "worse"
    (row,) = compare_scores(model("a", weak), model("b", np.roll(weak, 1)))
    assert row["verdict"] == "cannot tell"
    (row,) = compare_scores(model("a", weak[:4]), model("b", weak[:4] + 1))
    assert row["verdict"] == "cannot tell" and row["p"] == pytest.approx(2 / 2**4)


def test_seeds_that_scatter_more_than_models_differ_cannot_tell():
    items = np.random.default_rng(2).random(200)
    close = compare_scores(model("a", items, items + 0.5), model("b", items + 0.1, items + 0.6))
    assert close[0]["p_items"] < 0.001 and close[0]["p_seeds"] > 0.5 and close[0]["verdict"] == "cannot tell"
    apart = compare_scores(model("a", items, items + 0.01), model("b", items + 0.5, items + 0.51))
    assert apart[0]["verdict"] == "better" and apart[0]["because"] == "" and apart[0]["seeds_first"] == 2
    assert over_seeds([1.0], [2.0, 3.0]) is None and over_seeds([1.0, 1.0], [2.0, 2.0]) is None


def seeded(name, *runs, items=None):
    """Return a model by the values of the seeds of a task, of each of its runs."""
    scores = [Score("task", "matthews", "cola", float(np.mean(run)), None, None, True, 9, seeds=run) for run in runs]
    key = scores[0].name
    return Trained(name, [{key: score} for score in scores], [{key: items} if items else {} for _ in runs])


def test_seeds_tell_where_there_are_no_items():
    weak, strong = [0.50, 0.51, 0.49, 0.50, 0.52], [0.70, 0.69, 0.71, 0.70, 0.72]
    (row,) = compare_scores(seeded("a", weak), seeded("b", strong))
    assert row["verdict"] == "better" and row["p"] == row["p_seeds"] == pytest.approx(over_seeds(weak, strong))
    assert (row["seeds_first"], row["seeds_second"], row["p_items"], row["low"]) == (5, 5, None, None)
    assert "says nothing of training them again" in row["because"]
    assert f"b is better ({row['because']})" in table_of_tests([row])
    # Of models that were trained several times, the runs are the sample, not the seeds within each.
    twice = [seeded(name, *([one] * 2 for one in values)) for name, values in (("a", weak), ("b", strong))]
    (row,) = compare_scores(*twice)
    assert (row["seeds_first"], row["verdict"]) == (5, "better") and "training them again" not in row["because"]
    # Of items that are not the same, seeds say nothing.
    (row,) = compare_scores(seeded("a", weak, items={"x": 0.5}), seeded("b", strong, items={"y": 0.7}))
    assert row["p"] is None and row["verdict"] == "cannot tell"


def test_a_difference_is_that_of_the_items_that_both_have():
    first, second = (Trained(name, one.scores, one.items) for name, one in
                     (("a", model("a", [0.5, 0.6] * 10 + [9.0])), ("b", model("b", [0.75, 0.85] * 10))))  # fmt: skip
    (row,) = compare_scores(first, second)
    assert (row["value_first"], row["value_second"], row["items"]) == (pytest.approx(0.55), pytest.approx(0.8), 20)
    assert row["difference"] == pytest.approx(0.25) and row["low"] <= row["difference"] <= row["high"]
    score = Score("text", "perplexity", "x", 3.0, None, None, False, 9)
    bare = Trained("a", [{score.name: score}], [{}])
    (row,) = compare_scores(bare, bare)
    assert row["verdict"] == "cannot tell"
    assert compare_scores(bare, model("b", [1.0])) == []


def test_several_scores_are_weighed_together():
    assert holm([0.01, None, 0.04, 0.03]) == [pytest.approx(0.03), None, pytest.approx(0.06), pytest.approx(0.06)]
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def config(**changes):
    found = read_yaml(ROOT / "config.yaml")
    found["mlm"]["runs"]["tiny"]["sweep"] = {"seed": [0, 1]}
    found["mlm"]["runs"]["wide"] = found["mlm"]["runs"]["tiny"] | {"batch_size": 32}
    del found["mlm"]["runs"]["wide"]["sweep"]
    return complete(found | {"evaluation": changes}, "config.yaml")


def test_which_models_are_held_against_each_other():
    found = config()
    rows = comparisons(found, Outline(found).runs.values())
    assert [(row["first"], row["second"]) for row in rows] == [
        ("mlm/tiny", "mlm/wide"), ("base/small", "finetune/python"),
    ]  # fmt: skip
    assert rows[0]["firsts"] == ["mlm/tiny-seed-0", "mlm/tiny-seed-1"] and rows[0]["seconds"] == ["mlm/wide"]
    found = config(compare=[["mlm/tiny-seed-1", "mlm/wide"]])
    assert [row["firsts"] for row in comparisons(found, Outline(found).runs.values())] == [["mlm/tiny-seed-1"]]
    found = config(compare=[["mlm/tiny", "mlm/none"]])
    with pytest.raises(UserError, match='^evaluation.compare has "mlm/none"; .*base/small'):
        comparisons(found, Outline(found).runs.values())
