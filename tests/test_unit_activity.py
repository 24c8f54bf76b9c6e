"""Dead units of feed-forward layers, after a training that made them, and after one that did not."""

from functools import partial

import numpy as np
import pytest
import test_causal
from test_causal import OPTIMIZER, RECIPE, SIZES, trainer_of
from test_lora import MODELS
from tpulm.records.causal_batches import held_out_batches, training_batch
from tpulm.specs.causal_families import FAMILIES, constructor
from tpulm.specs.training_step import CausalArchitecture
from tpulm.training.history import History

jax_backend, packed, vocabulary = test_causal.jax_backend, test_causal.packed, test_causal.vocabulary


@pytest.mark.parametrize(("rate", "least", "most"), [(1e-2, 0, 0), (1.0, 0.05, 1)])
def test_a_high_learning_rate_kills_units(jax_backend, packed, rate, least, most):
    from tpulm.training.evaluation import Evaluator

    optimizer = OPTIMIZER | {"global_clipnorm": None}
    trainer = trainer_of("base", model=SIZES, vocab_size=330, mesh=(1, 1), optimizer=optimizer)
    run, steps = trainer.run, 60
    history = History(0, steps, 1, lambda line: None)
    trainer.train(partial(training_batch, packed, RECIPE), 0, np.full(steps, rate, np.float32), history)
    data = list(held_out_batches(packed, {"batch_size": 4, "microbatches": 1}))
    before = trainer.evaluate(data)
    figures = Evaluator(run.model, run.distribution, run.task, units=True).measure(
        trainer.state.trainable, trainer.frozen, data
    )
    assert least <= figures.pop("dead_units") <= most
    assert figures == pytest.approx(before, rel=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_units_of_each_family_are_noted(jax_backend, name):
    from tpulm.models.building import construct_causal
    from tpulm.training.unit_activity import UnitActivity

    model = construct_causal(CausalArchitecture(*constructor(MODELS[name] | {"num_layers": 2}), 330))
    activity, ids = UnitActivity(model), np.ones((1, 4), np.int32)
    model({"token_ids": ids, "padding_mask": ids})
    inner = MODELS[name]["intermediate_dim"] // (2 if name in ("gemma", "gemma2") else 1)
    assert [units.shape for units in activity.take()] == [(inner,)] * 2


def test_dead_is_what_never_reaches_a_thousandth_of_what_is_large(jax_backend):
    from tpulm.training.unit_activity import dead_share

    assert dead_share([np.array([2.0, 2.0, 0.0021, 0.0019, 0.0]), np.array([1.0, 1.0])]) == pytest.approx(2 / 7)
    assert dead_share([np.zeros(4)]) == 1
    assert dead_share([np.array([2500.0, *[1.0] * 999])]) == 0
