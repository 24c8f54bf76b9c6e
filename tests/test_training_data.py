"""The order of records, the learning-rate schedules and the masking: pure functions that training stands on."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tpulm.config.reading import schema
from tpulm.core.random_streams import generator
from tpulm.records.masked_batches import mask_batch
from tpulm.records.order import BLOCK, batch_records, epoch_order, record_range
from tpulm.records.token_counts import masked_loss
from tpulm.specs.record_arrays import masked_arrays
from tpulm.specs.schedule import learning_rates, segment_schedule

pytestmark = pytest.mark.unit

SCHEDULES = schema()["$defs"]["mlm_run"]["properties"]["schedule"]["properties"]["shape"]["enum"]
SPECIAL = [0, 1, 2, 3, 4]
BERT = {"mlm_probability": 0.15, "mask_replace_prob": 0.8, "random_replace_prob": 0.1}


@given(records=st.integers(1, 40_000), seed=st.integers(0, 9), epoch=st.integers(0, 5))
@settings(max_examples=10, deadline=None)
def test_an_epoch_is_a_permutation(records, seed, epoch):
    order = epoch_order(records, seed, epoch, 0, records)
    assert np.array_equal(np.sort(order), np.arange(records))


@given(
    records=st.integers(1, 3_000), cuts=st.lists(st.integers(0, 9_000), min_size=2, max_size=6), seed=st.integers(0, 9)
)
@settings(max_examples=15, deadline=None)
def test_the_order_starts_anywhere(records, cuts, seed):
    cuts = sorted(cuts)
    whole = record_range(records, seed, cuts[0], cuts[-1])
    parts = [record_range(records, seed, a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
    assert np.array_equal(whole, np.concatenate(parts))


def test_the_order_depends_on_seed_and_epoch_mixes_blocks_and_goes_on():
    records = 20 * BLOCK
    first, other = epoch_order(records, 0, 0, 0, records), epoch_order(records, 1, 0, 0, records)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, epoch_order(records, 0, 1, 0, records))
    assert len(set(first[:BLOCK] // BLOCK)) == 16  # a window's blocks all turn up in its first block's length
    batches = np.concatenate([batch_records(10, 3, 4, step) for step in range(5)])
    assert np.array_equal(batches, record_range(10, 3, 0, 20))
    assert np.array_equal(np.bincount(batches), np.full(10, 2))


def test_keys_of_another_length_and_other_purposes_are_other_streams():
    """SeedSequence fills short keys up with zeros: (7, 1) would be (7, 1, 0)."""
    keys = [("masks", 7, 1), ("masks", 7, 1, 0), ("masks", 7), ("initial weights", 7, 1), ("masks", 7, 2)]
    assert len({generator(*key).random() for key in keys}) == len(keys)
    assert generator("masks", 7, 1).random() == generator("masks", 7, 1).random()


def curve(shape, **more):
    rates = {"learning_rate": 2e-3, "final_learning_rate": 1e-4}
    return rates | {"shape": shape, "warmup_steps": 10, "decay_steps": 30} | more


@given(
    shape=st.sampled_from(SCHEDULES),
    warmup=st.integers(0, 39),
    decay=st.integers(1, 60),
    every=st.sampled_from([1, 2, 5, 10, 20, 50]),
)
@settings(max_examples=100, deadline=None)
def test_a_schedule_cut_into_segments_equals_the_whole(shape, warmup, decay, every):
    recipe = curve(shape, warmup_steps=warmup, decay_steps=decay)
    whole = learning_rates(segment_schedule(recipe, 100, 0, 100), 0, 100)
    parts = [
        learning_rates(segment_schedule(recipe, 100, first, first + every), first, first + every)
        for first in range(0, 100, every)
    ]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-6, atol=1e-11)


def test_rates_of_each_shape():
    rates = {shape: learning_rates(segment_schedule(curve(shape), 100, 0, 100), 0, 100) for shape in SCHEDULES}
    for values in rates.values():
        np.testing.assert_allclose(values[:11], np.linspace(0, 2e-3, 11), rtol=1e-6)
    np.testing.assert_allclose(rates["constant"][10:], 2e-3, rtol=1e-6)
    np.testing.assert_allclose(rates["linear"][55], (2e-3 + 1e-4) / 2, rtol=1e-6)
    np.testing.assert_allclose(rates["wsd"][[69, 70, 85]], [2e-3, 2e-3, (2e-3 + 1e-4) / 2], rtol=1e-6)
    half = 1e-4 + (2e-3 - 1e-4) * 0.5 * (1 + math.cos(math.pi * 0.5))
    np.testing.assert_allclose(rates["cosine"][55], half, rtol=1e-6)


def test_a_longer_run_keeps_the_segments_before_its_decay():
    before = [segment_schedule(curve("wsd"), 100, s, s + 20) for s in range(0, 100, 20)]
    after = [segment_schedule(curve("wsd"), 160, s, s + 20) for s in range(0, 100, 20)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, True, False, False]
    assert segment_schedule(curve("constant"), 100, 20, 40) == segment_schedule(curve("constant"), 500, 20, 40)
    assert segment_schedule(curve("linear"), 100, 20, 40) != segment_schedule(curve("linear"), 500, 20, 40)
    assert segment_schedule(curve("cosine"), 100, 20, 40) != segment_schedule(curve("cosine"), 500, 20, 40)


def tokens(records, length, seed=0):
    ids = np.random.default_rng(seed).integers(5, 1000, (records, length)).astype(np.int32)
    ids[:, 0], ids[:, -1] = 0, 1
    return ids


def test_masking_takes_15_percent_and_splits_it_80_10_10():
    ids = tokens(2000, 128)
    batch = mask_batch(ids, ("masks", 0, 7), BERT, 4, SPECIAL, 1000)
    chosen = batch["weights"].astype(bool)
    ordinary = 2000 * 126
    share = chosen.sum() / ordinary
    assert abs(share - 0.15) < 4 * math.sqrt(0.15 * 0.85 / ordinary)
    put = np.take_along_axis(batch["input_ids"], batch["positions"], 1)[chosen]
    true = batch["labels"][chosen]
    n = len(true)
    for found, expected in [((put == 4).mean(), 0.8), ((put == true).mean(), 0.1 + 0.1 / 995)]:
        assert abs(found - expected) < 4 * math.sqrt(expected * (1 - expected) / n)
    assert not np.isin(true, SPECIAL).any()
    assert not np.isin(put[put != 4], SPECIAL).any()


@given(length=st.integers(8, 200), rate=st.floats(0.01, 0.99), key=st.integers(0, 99), records=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_masking_changes_only_chosen_tokens_and_repeats(length, rate, key, records):
    ids = tokens(records, length, key)
    masking = {"mlm_probability": rate, "mask_replace_prob": 0.8, "random_replace_prob": 0.1}
    batch = mask_batch(ids, ("masks", 1, key), masking, 4, SPECIAL, 1000)
    again = mask_batch(ids, ("masks", 1, key), masking, 4, SPECIAL, 1000)
    assert all(np.array_equal(batch[name], again[name]) for name in batch)
    arrays = masked_arrays(length, rate, "concat")
    described = {name: ((records, *shape), dtype) for name, (shape, dtype) in arrays.items()}
    assert {name: (array.shape, str(array.dtype)) for name, array in batch.items()} == described
    restored = batch["input_ids"].copy()
    for row in range(records):
        chosen = batch["weights"][row] == 1
        places = batch["positions"][row][chosen]
        assert len(set(places)) == len(places)
        restored[row, places] = batch["labels"][row][chosen]
    assert np.array_equal(restored, ids)


@pytest.mark.parametrize("shares", [(0.8, 0.1), (0.5, 0.2), (0.8, 0.2)])
@pytest.mark.parametrize("counts", [(5, 0, 3, 1), (1, 1), (100, 1, 0, 0, 7)])
def test_the_loss_by_frequencies_is_that_of_the_best_prediction_without_context(shares, counts):
    """Over every pair of a true token, by the held-out text, and the one that is seen; predicted by training text."""
    mask, random = shares
    masking = {"mask_replace_prob": mask, "random_replace_prob": random}
    ids, trained = range(len(counts)), np.array(counts[::-1])
    known = (trained + 1) / (trained + 1).sum()
    kept, expected = 1 - mask - random, 0.0
    for true in ids:
        expected -= counts[true] / sum(counts) * mask * math.log(known[true])
        for seen in ids:
            chance = kept * (seen == true) + random / len(counts)
            likely = chance * known[true] / (kept * known[seen] + random / len(counts))
            expected -= counts[true] / sum(counts) * chance * math.log(likely)
    assert masked_loss(np.array(counts), trained, masking) == pytest.approx(expected)


@pytest.mark.parametrize("length", [8, 9])
def test_a_record_of_special_tokens_only_predicts_nothing(length):
    batch = mask_batch(np.full((2, length), 3, np.int32), ("masks", 0), BERT, 4, SPECIAL, 1000)
    assert batch["weights"].sum() == 0
