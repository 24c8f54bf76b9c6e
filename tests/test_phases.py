"""Phases of a run: text, record length, batch size and rotary positions by part of the training."""

import copy
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from pydoc_data import topics

import numpy as np
import pytest
from conftest import Workflow, changed
from kills import checkpoints, fingerprints
from tpulm.config.outline import Outline
from tpulm.config.reading import complete
from tpulm.core.errors import UserError
from tpulm.core.files import read_json, write_json
from tpulm.records.masked_batches import training_batch
from tpulm.records.mixture import MIXED, Mixture, mixed, places_of, taken
from tpulm.records.order import record_range
from tpulm.records.reader import Records
from tpulm.records.shards import merge_sidecars, write_shard

SOURCES = {name: {"source": "files", "files": [f"text/{name}.txt"]} for name in ("own", "web")}
RUN = {"steps": 6, "checkpoint_every": 2, "batch_size": 4, "learning_rate": 0.01}
PHASES = [
    {"until": 2},
    {"until": 4, "weights": {"web": 3, "own": 1}},
    {"until": 6, "weights": {"web": 1, "own": 1}, "sequence_length": 64, "batch_size": 2, "rope_theta": 40000},
]
SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
CONFIG = {
    "corpus": {"sources": SOURCES, "held_out": {"validation": 0.05, "test": 0.05}},
    "tokenizer": {"vocab_size": 400},
    "tfrecords": {"sequence_length": 32, "packing": "segments"},
    "mlm": {
        "runs": {
            "tiny": RUN
            | {
                "backend": "jax",
                "model": SIZES | {"architecture": "modernbert", "max_position_embeddings": 64},
                "phases": PHASES,
            }
        }
    },
    "base": {
        "small": RUN
        | {
            "model": {
                **{"architecture": "llama3", "num_layers": 1, "num_query_heads": 2, "num_key_value_heads": 2},
                **{"hidden_dim": 32, "intermediate_dim": 32},
            },
            "vocab_size": 400,
            "sequence_length": 32,
            "phases": PHASES,
        }
    },
}
LAST = "mlm.runs.tiny.phases"


def runs_of(changes=None):
    """Return the runs of the config above with changes, by path."""
    return Outline(complete(changed(CONFIG, changes or {}), "config.yaml")).runs


def segments(run):
    """Return recipe and records of each segment of a run."""
    return [(run.segment(last), run.mixture_at(last)) for last in run.segment_ends]


@pytest.mark.unit
def test_a_run_without_phases_has_the_segments_that_it_had():
    for path, key in (("mlm/tiny", LAST), ("base/small", "base.small.phases")):
        plain, same = runs_of({key: [{"until": 6}]})[path], runs_of({key: [{"until": 4}, {"until": 6}]})[path]
        config = changed(CONFIG, {key: PHASES})
        del (config["mlm"]["runs"]["tiny"] if path == "mlm/tiny" else config["base"]["small"])["phases"]
        without = Outline(complete(config, "config.yaml")).runs[path]
        assert segments(plain) == segments(same) == segments(without)
        assert all("phases" not in recipe and not mixture for recipe, mixture in segments(without))
        assert "phases" not in without.plan() and without.phase_records == {}
        # A run that gets a phase at its end keeps what it has trained.
        assert segments(runs_of()[path])[0] == segments(without)[0]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("key", "value"),
    [("weights", {"own": 1}), ("sequence_length", 48), ("batch_size", 8), ("rope_theta", 90000.0)],
)
def test_a_key_of_the_last_phase_changes_the_last_segments(key, value):
    before, phases = runs_of(), copy.deepcopy(PHASES)
    phases[2][key] = value
    after = runs_of({LAST: phases, "base.small.phases": phases})
    for path, run in before.items():
        assert [a == b for a, b in zip(segments(run), segments(after[path]), strict=True)] == [True, True, False], path


@pytest.mark.unit
def test_an_end_that_moves_changes_the_segments_from_there_on():
    moved = runs_of({LAST: [PHASES[0] | {"until": 4}, PHASES[2]]})["mlm/tiny"]
    equal = [a == b for a, b in zip(segments(runs_of()["mlm/tiny"]), segments(moved), strict=True)]
    assert equal == [True, False, False]


@pytest.mark.unit
def test_each_source_and_length_has_one_set_of_records():
    run = runs_of()["base/small"]
    sets = {records.folder.removeprefix("tokens/small/corpus/"): records.counts for records in run.record_sets}
    assert {name: list(counts) for name, counts in sets.items()} == {
        "concat-32": ["train", "validation", "test"],
        **{f"{source}/concat-{length}": splits
           for source in ("own", "web")
           for length, splits in ((32, ["train", "validation"]), (64, ["train"]))},
    }  # fmt: skip
    manifests = [[name.removeprefix("<results>/tokens/small/corpus/") for name in names] for _, names in segments(run)]
    assert manifests == [[], *([f"{name}/concat-{size}/manifest.json" for name in ("own", "web")] for size in (32, 64))]
    assert set(run.by_source) == {"own", "web"}


BAD = [
    ([{"until": 3}, {"until": 6}], r"phases\[0\]\.until is 3; .*checkpoint_every, 2"),
    ([{"until": 8}], r"phases\[0\]\.until is 8; .*steps, 6"),
    ([{"until": 4}, {"until": 4}, {"until": 6}], r"phases\[1\]\.until is 4; .*above 4"),
    ([{"until": 4}], r"phases\[0\]\.until is 4; .*steps, 6"),
    ([{"until": 6, "weights": {"other": 1}}], r"phases\[0\]\.weights names .*other.*own, web"),
    ([{"until": 6, "weights": {"own": 0}}], r"phases\[0\]\.weights are all 0"),
    ([{"until": 6, "sequence_length": 64}], r"phases\[0\]\.batch_size is missing"),
    ([{"until": 6, "sequence_length": 128, "batch_size": 2}], r"position_embeddings is 64.*phases\[0\]\.sequence_length 128"),
    ([{"until": 6, "batch_size": 3}], r"phases\[0\]\.batch_size is 3"),
]


@pytest.mark.unit
@pytest.mark.parametrize(("phases", "said"), BAD)
def test_a_wrong_phase_is_named_in_one_sentence(phases, said):
    with pytest.raises(UserError, match=said) as caught:
        runs_of({LAST: phases, "mlm.runs.tiny.mesh": [2, 1]})
    assert str(caught.value).count(". ") == 0


@pytest.mark.unit
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mlm.runs.tiny.backend": "tensorflow", "tfrecords.packing": "concat"}, r"tiny\.phases .*backend: jax"),
        ({"mlm.runs.tiny.patience": 2}, r"tiny\.patience"),
        ({"corpus.max_documents": 10}, r"corpus\.max_documents"),
        ({"mlm.runs.tiny.model.architecture": "roberta", "tfrecords.packing": "concat"}, r"rope_theta .*roberta"),
        ({"base.small.model.architecture": "gemma", "base.small.model.head_dim": 16}, r"rope_theta .*gemma"),
    ],
)
def test_what_phases_do_not_go_with(changes, said):
    with pytest.raises(UserError, match=said):
        runs_of(changes)


def written(folder: Path, records: int, first: int) -> Records:
    """Write records of four tokens, of which the first is `first` and more for each; return them."""
    layout = {"sequence_length": 4, "tokens_per_record": 4, "packing": "concat"}
    ids = np.repeat(np.arange(first, first + records, dtype=np.int32), 4)
    keys = {"shards_key": "tfrecords.shards", "length_key": "tfrecords.sequence_length"}
    sidecar = write_shard(
        [(ids, np.array([len(ids)]))], layout | keys, 0, 1, folder / "train/00000-of-00001.tfrecord", 1
    )
    special = {"pad": 0, "mask": 1, "cls": 2, "sep": 3, "unk": 4}
    sidecar |= {"vocabulary": {"vocab_size": 20000, "special_ids": special}}
    write_json(folder / "manifest.json", merge_sidecars({"train": [sidecar]}, layout))
    return Records(folder / "manifest.json", "train")


@pytest.mark.unit
def test_a_mixture_is_a_function_of_seed_and_step(tmp_path):
    """It has the shares of its phase, reads each source once an epoch, and goes on where the phase before stopped."""
    for name in ("web", "own"):
        (tmp_path / name / "train").mkdir(parents=True)
    sets = {"web": written(tmp_path / "web", 3000, 10), "own": written(tmp_path / "own", 500, 5000)}
    first = {"first": 0, "batch_size": 100, "sequence_length": 4, "shares": {"web": 0.75, "own": 0.25}}
    second = {"first": 40, "batch_size": 50, "sequence_length": 4, "shares": {"own": 0.5, "web": 0.5}}

    def opened(*phases):
        return Mixture([sets[name] for name in phases[-1]["shares"]], phases, 7)

    def read(mixture, size, step, rows=slice(None)):
        return mixture.batch(["input_ids"], 7, size, step, rows)["input_ids"][:, 0]

    one, two = opened(first), opened(first, second)
    batches = [read(one, 100, step) for step in range(40)] + [read(two, 50, step) for step in range(40, 60)]
    assert abs((np.concatenate(batches[:40]) >= 5000).mean() - 0.25) < 0.01
    assert abs((np.concatenate(batches[40:]) >= 5000).mean() - 0.5) < 0.03
    whole = np.concatenate(batches)
    for records, values in ((3000, whole[whole < 5000] - 10), (500, whole[whole >= 5000] - 5000)):
        assert values.tolist() == record_range(records, 7, 0, len(values)).tolist()
    np.testing.assert_array_equal(read(opened(first, second), 50, 55)[20:30], read(two, 50, 55, slice(20, 30)))
    assert not np.array_equal(Mixture(one.sets, [first], 8).batch(["input_ids"], 8, 100, 0)["input_ids"], batches[0])


@pytest.mark.unit
def test_a_phase_of_one_set_reads_it_in_the_order_of_a_run_without_phases(tmp_path):
    (tmp_path / "train").mkdir()
    records = written(tmp_path, 500, 10)
    masking = {"mlm_probability": 0.5, "mask_replace_prob": 0.8, "random_replace_prob": 0.1}
    recipe = {"seed": 3, "batch_size": 24, "masking": masking}
    phase = {"first": 0, "batch_size": 24, "sequence_length": 4, "shares": {"": 1.0}}
    for step in (0, 1, 90):
        plain, mixture = (training_batch(of, recipe, step) for of in (records, Mixture([records], [phase], 3)))
        assert {name: array.tolist() for name, array in plain.items()} == {
            name: array.tolist() for name, array in mixture.items()
        }


@pytest.mark.unit
@pytest.mark.parametrize("shares", [[1.0], [0.5, 0.5], [0.9999, 0.0001], [1 / 3, 1 / 3, 1 / 3], [0.7, 0.2, 0.1]])
def test_a_block_has_the_share_of_each_source(shares):
    counts = places_of(shares)
    assert counts.sum() == MIXED and counts.min() >= 1 and np.abs(counts / MIXED - shares).max() <= 1 / MIXED
    sources, numbers = mixed(counts, 1, 0, 0, 3 * MIXED)
    for source in range(len(shares)):
        assert numbers[sources == source].tolist() == list(range(3 * counts[source]))
    some = mixed(counts, 1, 0, 100, MIXED + 5)
    assert [array.tolist() for array in some] == [a[100 : MIXED + 5].tolist() for a in (sources, numbers)]
    assert taken(counts, 1, 0, MIXED + 5).tolist() == np.bincount(sources[: MIXED + 5], minlength=len(shares)).tolist()


SEGMENTS = [f"results/base/small/checkpoints/{step:08d}" for step in (2, 4, 6)]


@pytest.fixture(scope="module")
def trained_in_phases(tmp_path_factory):
    """A base model of the config above, trained and measured."""
    workflow = Workflow(tmp_path_factory.mktemp("phases") / "workflow")
    workflow.steady = True
    paragraphs = [" ".join(text.split()) for topic in topics.topics.values() for text in topic.split("\n\n")]
    paragraphs = [text for text in paragraphs if len(text) > 80]
    (workflow / "text").mkdir()
    (workflow / "text/web.txt").write_text("\n".join(paragraphs[:600]))
    (workflow / "text/own.txt").write_text("\n".join(paragraphs[600:900]))
    (workflow / "config.yaml").write_text(json.dumps(CONFIG))
    workflow("results/base/small/metrics.json", "--cores", "2")
    return workflow


def test_a_model_of_phases_is_that_of_the_last_one(trained_in_phases):
    state = read_json(trained_in_phases / f"{SEGMENTS[2]}/state.json")
    assert state["best"]["step"] == state["step"] == 6
    assert [state["recipe"][key] for key in ("sequence_length", "batch_size")] == [64, 2]
    assert [phase["shares"] for phase in state["recipe"]["phases"]] == [
        {"": 1.0}, {"own": 0.25, "web": 0.75}, {"own": 0.5, "web": 0.5},
    ]  # fmt: skip
    preset = read_json(trained_in_phases / "results/base/small/preset/config.json")
    assert preset["config"]["rope_max_wavelength"] == 40000
    metrics = read_json(trained_in_phases / "results/base/small/metrics.json")
    losses = {score["on"]: score["value"] for score in metrics["scores"] if score["metric"] == "loss"}
    assert {"corpus (own) validation", "corpus (web) validation"} < {*losses}
    assert losses["corpus (own) validation"] != losses["corpus (web) validation"]


def test_another_last_phase_trains_only_its_segments(trained_in_phases):
    phases = [*PHASES[:2], PHASES[2] | {"weights": {"own": 1}}]
    (trained_in_phases / "own.yaml").write_text(json.dumps(changed(CONFIG, {"base.small.phases": phases})))
    said = trained_in_phases("-n", f"{SEGMENTS[2]}/state.json", "--configfile", "own.yaml").stdout
    assert re.findall(r"^would run  (\w+ \S+ \S+)", said, re.M) == ["train_base small 00000006"]


def test_a_phase_that_is_killed_gives_the_same_bytes(trained_in_phases):
    workflow, log = trained_in_phases, trained_in_phases / "logs/base/small/00000006.log"
    before, kept = fingerprints(workflow / "results/base/small/checkpoints"), checkpoints(workflow)
    shutil.rmtree(workflow / SEGMENTS[2])
    log.unlink()
    process = workflow.start(f"{SEGMENTS[2]}/state.json", "--cores", "2")
    while not (log.exists() and "steps 5 to 6" in log.read_text()):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    workflow(f"{SEGMENTS[2]}/state.json")
    assert fingerprints(workflow / "results/base/small/checkpoints") == before
    now = checkpoints(workflow)
    assert [now[f"{place}/state.json"] == kept[f"{place}/state.json"] for place in SEGMENTS] == [True, True, False]


@pytest.mark.long
def test_a_masked_model_trains_in_phases(trained_in_phases):
    trained_in_phases("results/mlm/tiny/metrics.json", "--cores", "2")
    config = read_json(trained_in_phases / "results/mlm/tiny/model/config.json")
    assert config["global_rope_theta"] == 40000
    metrics = read_json(trained_in_phases / "results/mlm/tiny/metrics.json")
    assert {"corpus (own) validation", "corpus (web) validation"} < {score["on"] for score in metrics["scores"]}
