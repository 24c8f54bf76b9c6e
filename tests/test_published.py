"""Figures of published runs beside those of runs that repeat them."""

from dataclasses import asdict

import pytest
from tpulm.report.published import answers_beside, beside_published, markdown, verdict
from tpulm.specs.scores import token_scores

pytestmark = pytest.mark.unit
HISTORY = {"loss": [9.0, 3.0, 1.0], "accuracy": [0.0, 0.25, 0.75]}
TIMINGS = {"seconds_per_step": [9.0, 0.5, 0.4], "devices": ['{"TPU v3": 8}'] * 3}
FIGURES = {"loss": 2.5, "accuracy": 0.5, "predictions": 100}
SCORES = [score for split in ("validation", "test") for score in token_scores("corpus", split, "all", FIGURES, {})]
METRICS = {"scores": list(map(asdict, SCORES))}
MASK = "Return the [MASK] of the list."


@pytest.mark.parametrize(
    ("published", "reached", "higher", "words"),
    [
        (2.0, 2.0, False, "reached"), (2.0, 1.5, False, "reached"), (2.0, 2.1, False, "missed by 5 %"),
        (0.5, 0.6, True, "reached"), (0.5, 0.4, True, "missed by 20 %"), (1.0, 1.0004, False, "missed by 0.04 %"),
    ],
)  # fmt: skip
def test_a_figure_is_reached_or_missed(published, reached, higher, words):
    assert verdict(published, reached, higher) == words


def test_each_published_figure_has_a_row():
    published = {
        "source": "a card", "last_steps": 2, "train_loss": 2.0, "train_accuracy": 0.6, "validation_loss": 2.0,
        "seconds_per_step": 0.4, "differs": {"validation_loss": "another text"},
    }  # fmt: skip
    rows = beside_published(published, METRICS, HISTORY, TIMINGS)
    assert [(row["published"], row["reached"], row["verdict"]) for row in rows] == [
        (2.0, 2.0, "reached"), (0.6, 0.5, "missed by 17 %"), (2.0, 2.5, "not the same: another text"),
        (0.4, 0.5, "missed by 25 %"),
    ]  # fmt: skip
    assert "last 2 steps" in rows[0]["figure"] and "TPU v3" in rows[3]["figure"]
    whole = beside_published({"source": "a card", "train_loss": 1.0, "last_steps": 9}, METRICS, HISTORY, TIMINGS)
    assert whole[0]["reached"] == pytest.approx(13 / 3) and "last 3 steps" in whole[0]["figure"]  # it stopped early
    assert "a card" in markdown([{"run": "mlm/tiny", "source": "a card", "rows": rows}])


def test_answers_that_are_the_same_are_counted():
    answers = [{"prompt": MASK, "answers": [{"token_str": " be"}, {"token_str": ""}, {"token_str": "end"}]}]
    (row,) = answers_beside({MASK: ["be", "", "work"]}, answers)
    assert (row["published"], row["reached"]) == ("be, (nothing), work", "be, (nothing), end")
    assert row["verdict"] == "2 of 3 are the same"
