"""Phases of a run: text, record length, batch size and rotary positions by part of the training."""

import json
import os
import shutil
import signal
from pydoc_data import topics

import numpy as np
import pytest
from conftest import DELETE, Workflow, config_with, configured
from kills import checkpoints, fingerprints, wait_for
from tpulm.config.outline import Outline
from tpulm.config.reading import complete
from tpulm.core.errors import UserError
from tpulm.core.files import read_json, write_json
from tpulm.records.masked_batches import training_batch
from tpulm.records.mixture import Mixture, places_of
from tpulm.records.order import record_range
from tpulm.records.reader import Records
from tpulm.records.shards import merge_sidecars, write_shard
from tpulm.specs.phases import phases_of
from tpulm.workflow.budget import hours_of_last, step_of
from tpulm.workflow.reasons import differences

RUN = {"steps": 6, "checkpoint_every": 2, "batch_size": 4, "learning_rate": 0.01}
LAST = {"weights": {"web": 1, "own": 1}, "sequence_length": 64, "batch_size": 2, "rope_theta": 40000}
RUN["phases"] = [{"until": 2}, {"until": 4, "weights": {"web": 3, "own": 1}}, {"until": 6} | LAST]
SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
DIMS = {"num_layers": 1, "num_query_heads": 2, "num_key_value_heads": 2, "hidden_dim": 32, "intermediate_dim": 32}
CONFIG = {
    "corpus": {
        "sources": {name: {"source": "files", "files": [f"text/{name}.txt"]} for name in ("own", "web")},
        "held_out": {"validation": 0.05, "test": 0.05},
    },
    "tokenizer": {"vocab_size": 400},
    "tfrecords": {"sequence_length": 32, "packing": "segments"},
    "mlm.runs.tiny": RUN
    | {"backend": "jax", "model": SIZES | {"architecture": "modernbert", "max_position_embeddings": 64}},
    "base.small": RUN | {"model": DIMS | {"architecture": "llama3"}, "vocab_size": 400, "sequence_length": 32},
}
MASKED, BASE = "mlm.runs.tiny.phases", "base.small.phases"


def phased_config(changes):
    return config_with(config_with({}, CONFIG), changes)


def segments(changes, path):
    """Return recipe and records of each segment of a run of the config above with changes."""
    run = Outline(complete(phased_config(changes), "config.yaml")).runs[path]
    return [(run.segment(last), run.mixture_at(last)) for last in run.segment_ends]


@pytest.mark.unit
def test_what_is_as_the_run_makes_no_segment_another_one():
    for path, key in (("mlm/tiny", MASKED), ("base/small", BASE)):
        without = segments({key: DELETE}, path)
        assert all("phases" not in recipe and not mixture for recipe, mixture in without)
        assert without == segments({key: [{"until": 4}, {"until": 6}]}, path)
        assert without[0] == segments({}, path)[0]  # a run that gets phases at its end keeps what it has trained


@pytest.mark.unit
@pytest.mark.parametrize(
    "change", [{"weights": {"own": 1}}, {"sequence_length": 48}, {"batch_size": 8}, {"rope_theta": 90000}]
)
def test_a_change_of_the_last_phase_changes_its_segments_only(change):
    phases = [*RUN["phases"][:2], {"until": 6} | LAST | change]
    for path in ("mlm/tiny", "base/small"):
        pairs = zip(segments({}, path), segments({MASKED: phases, BASE: phases}, path), strict=True)
        assert [before == after for before, after in pairs] == [True, True, False]


@pytest.mark.unit
def test_a_plan_has_a_row_for_each_phase_and_counts_the_phases_that_are_left():
    for path, theta in (("mlm/tiny", "global_rope_theta"), ("base/small", "rope_max_wavelength")):
        key = path.replace("/", ".").replace("mlm.", "mlm.runs.")
        changed = ({}, {f"{key}.seed": 7}, {f"{key}.batch_size": 8})
        outlines = [Outline(complete(phased_config(changes), "config.yaml")) for changes in changed]
        recipes = [outline.runs[path].plan_recipe() for outline in outlines]
        assert step_of(recipes[0]) == step_of(recipes[1]) != step_of(recipes[2])  # a plan holds for another seed
        rows = recipes[0]["phases"]
        keys = ("first", "until", "steps", "batch_size", "sequence_length")
        assert [[row[key] for key in keys] for row in rows] == [[0, 2, 2, 4, 32], [2, 4, 2, 4, 32], [4, 6, 2, 2, 64]]
        assert [row["model"].get(theta) for row in rows][1:] == [rows[0]["model"].get(theta), 40000.0]
    phases = [{"first": 0, "until": 2, "hours": 1.0}, {"first": 2, "until": 6, "hours": 8.0}]
    plan = {"recipe": {"steps": 6}, "phases": phases}
    assert [hours_of_last(plan, steps) for steps in (6, 5, 4, 2, 0)] == [9.0, 8.5, 8.0, 4.0, 0.0]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (MASKED, [{"until": 3}, {"until": 6}], r"phases\[0\]\.until is 3; .*checkpoint_every, 2"),
        (MASKED, [{"until": 8}], r"phases\[0\]\.until is 8; .*steps, 6"),
        (MASKED, [{"until": 4}, {"until": 4}], r"phases\[1\]\.until is 4; .*above 4"),
        (MASKED, [{"until": 4}], r"phases\[0\]\.until is 4; .*steps, 6"),
        (MASKED, [{"until": 6, "weights": {"other": 1}}], r"phases\[0\]\.weights names .*other.*own, web"),
        (MASKED, [{"until": 6, "weights": {"web": 1, "own": 1e-4}}], r"weights\.own is 0\.0001; .*1/2048"),
        (MASKED, [{"until": 6, "sequence_length": 64}], r"phases\[0\]\.batch_size is missing"),
        (MASKED, [{"until": 6} | LAST | {"sequence_length": 128}], r"s is 64.*phases\[0\]\.sequence_length 128"),
        ("mlm.runs.tiny.mesh", [4, 1], r"phases\[2\]\.batch_size is 2"),
        ("mlm.runs.tiny.backend", "tensorflow", r"tiny\.phases .*backend: jax"),
        ("mlm.runs.tiny.patience", 2, r"tiny\.patience"),
        ("corpus.max_documents", 10, r"corpus\.max_documents"),
        ("base.small.model", DIMS | {"head_dim": 16}, r"rope_theta .*gemma"),
    ],
)
def test_a_wrong_value_is_named_in_one_sentence(key, value, said):
    with pytest.raises(UserError, match=said) as caught:
        complete(phased_config({key: value}), "config.yaml")
    assert ". " not in str(caught.value)


@pytest.mark.unit
def test_a_mixture_is_a_function_of_seed_and_step(tmp_path):
    """It has the shares of its phase, reads each source once an epoch, and goes on where the phase before stopped."""
    sets, special = {}, {"pad": 0, "mask": 1, "cls": 2, "sep": 3, "unk": 4}
    layout = {"sequence_length": 4, "tokens_per_record": 4, "packing": "concat"}
    keys = {"shards_key": "tfrecords.shards", "length_key": "tfrecords.sequence_length"}
    for name, records, first in (("web", 3000, 10), ("own", 500, 5000)):
        (tmp_path / name / "train").mkdir(parents=True)
        ids = np.repeat(np.arange(first, first + records, dtype=np.int32), 4)
        shard = tmp_path / name / "train/00000-of-00001.tfrecord"
        sidecar = write_shard([(ids, np.array([len(ids)]))], layout | keys, 0, 1, shard, 1)
        sidecar |= {"vocabulary": {"vocab_size": 6000, "special_ids": special}}
        write_json(tmp_path / name / "manifest.json", merge_sidecars({"train": [sidecar]}, layout))
        sets[name] = Records(tmp_path / name / "manifest.json", "train")
    one = {"first": 0, "batch_size": 100, "sequence_length": 4, "shares": {"web": 0.75, "own": 0.25}}
    two = {"first": 40, "batch_size": 50, "sequence_length": 4, "shares": {"own": 0.5, "web": 0.5}}

    def read(phases, step, rows=slice(None), seed=7):
        mixture = Mixture([sets[name] for name in phases[-1]["shares"]], phases, seed)
        return mixture.batch(["input_ids"], seed, phases[-1]["batch_size"], step, rows)["input_ids"][:, 0]

    first, second = (
        np.concatenate([read(p, s) for s in r]) for p, r in (([one], range(40)), ([one, two], range(40, 60)))
    )
    assert abs((first >= 5000).mean() - 0.25) < 0.01 and abs((second >= 5000).mean() - 0.5) < 0.03
    whole = np.concatenate([first, second])
    for records, values in ((3000, whole[whole < 5000] - 10), (500, whole[whole >= 5000] - 5000)):
        assert values.tolist() == record_range(records, 7, 0, len(values)).tolist()
    assert read([one, two], 55, slice(20, 30)).tolist() == read([one, two], 55)[20:30].tolist()
    assert read([one], 0, seed=8).tolist() != read([one], 0).tolist()
    assert places_of([1 / 3] * 3).tolist() == [683, 682, 683]
    assert places_of([1.5 / 2048, 1 / 2048, 2045.5 / 2048]).min() == 1  # the smallest share that is allowed
    # A phase of one set reads it in the order of a run without phases.
    recipe = {"seed": 3, "batch_size": 24}
    recipe["masking"] = {"mlm_probability": 0.5, "mask_replace_prob": 0.8, "random_replace_prob": 0.1}
    mixture = Mixture([sets["own"]], [one | {"batch_size": 24, "shares": {"": 1.0}}], 3)
    plain, mixed = (training_batch(of, recipe, 90) for of in (sets["own"], mixture))
    assert all(np.array_equal(plain[name], mixed[name]) for name in plain | mixed)


@pytest.mark.unit
def test_the_order_of_weights_in_the_config_does_not_matter():
    for weights in ({"own": 1, "web": 3}, {"web": 3, "own": 1}):
        (phase,) = phases_of({"steps": 2, "batch_size": 4, "phases": [{"until": 2, "weights": weights}]}, 8)
        assert list(phase.shares.items()) == [("own", 0.25), ("web", 0.75)]


@pytest.mark.unit
def test_a_reason_names_the_key_of_a_phase():
    before, now = ({"phases": [{"until": 2}, {"until": 4, "batch_size": size}]} for size in (4, 16))
    assert differences(before, now) == {"phases[1].batch_size": (4, 16)}


SEGMENT = "results/base/small/checkpoints/00000020"


def test_a_phase_at_the_end_of_a_run_trains_its_own_segment_only(built):
    phases = [{"until": 10}, {"until": 20, "sequence_length": 128, "batch_size": 2}]
    option = configured(built, {BASE: phases})
    before = checkpoints(built)
    built(f"{SEGMENT}/state.json", *option)
    now, state = checkpoints(built), read_json(built / f"{SEGMENT}/state.json")
    assert {name for name in before if now[name] != before[name]} == {f"{SEGMENT}/state.json"}
    assert state["step"] == 20 and state["recipe"]["sequence_length"] == 128


PLACES = [f"results/base/small/checkpoints/{step:08d}" for step in (2, 4, 6)]


@pytest.fixture
def phased(tmp_path):
    """The base model of the config above, trained and measured."""
    workflow = Workflow(tmp_path / "workflow")
    workflow.steady = True
    paragraphs = [" ".join(text.split()) for topic in topics.topics.values() for text in topic.split("\n\n")]
    (workflow / "text").mkdir()
    (workflow / "text/web.txt").write_text("\n".join(paragraphs[:1000]))
    (workflow / "text/own.txt").write_text("\n".join(paragraphs[1000:1500]))
    (workflow / "config.yaml").write_text(json.dumps(phased_config({})))
    workflow("results/base/small/metrics.json", "--cores", "2")
    return workflow


@pytest.mark.long
def test_a_model_is_that_of_its_last_phase_and_a_kill_in_it_changes_no_byte(phased):
    state = read_json(phased / f"{PLACES[2]}/state.json")
    assert state["best"]["step"] == 6 and state["recipe"]["sequence_length"] == 64
    assert read_json(phased / "results/base/small/preset/config.json")["config"]["rope_max_wavelength"] == 40000
    scores = read_json(phased / "results/base/small/metrics.json")["scores"]
    losses = {score["on"]: score["value"] for score in scores if score["metric"] == "loss"}
    assert losses["corpus (own) validation"] != losses["corpus (web) validation"]

    log = phased / "logs/base/small/00000006.log"
    before, kept = fingerprints(phased / "results/base/small/checkpoints"), checkpoints(phased)
    shutil.rmtree(phased / PLACES[2])
    log.unlink()
    process = phased.start(f"{PLACES[2]}/state.json", "--cores", "2")
    wait_for(lambda: log.exists() and "steps 5 to 6" in log.read_text(), process, every=0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    phased(f"{PLACES[2]}/state.json")
    assert fingerprints(phased / "results/base/small/checkpoints") == before
    now = checkpoints(phased)
    assert [now[f"{place}/state.json"] == kept[f"{place}/state.json"] for place in PLACES] == [True, True, False]
