"""External TFRecord files: checked, indexed, trained on; what is wrong with one, in a sentence."""

import gzip
import json
import shutil

import numpy as np
import pytest
from conftest import ROOT, write_yaml
from tpulm.config.outline import Outline
from tpulm.config.reading import complete, read_yaml
from tpulm.config.record_sets import shard_files
from tpulm.core.errors import UserError
from tpulm.records.external import take_shard
from tpulm.records.masked_batches import evaluation_batches, training_batch
from tpulm.records.reader import open_to_train
from tpulm.records.tfrecord import Example, frame
from tpulm.specs.artifacts import SPLITS

LENGTH, VOCABULARY = 16, 300
EXPECTED = {
    "tokens_per_record": LENGTH, "packing": "concat", "vocab_size": VOCABULARY, "special_ids": {"pad": 3},
    "length_key": "tfrecords.sequence_length",
}  # fmt: skip


def example(ids, mask=None, **more):
    """Return a record as the published script makes it: two lists of integers, in no order that is promised."""
    found = Example()
    features = found.features.feature
    for name, values in {"attention_mask": [1] * len(ids) if mask is None else mask, "input_ids": ids, **more}.items():
        features[name].int64_list.value.extend(values)
    return found.SerializeToString()


def records(*examples):
    """Return the content of a TFRecord file."""
    return frame(examples)


def ids(seed):
    """Return the ids of a record, of one and of two bytes."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, LENGTH).tolist()


@pytest.fixture
def take(tmp_path):
    """Return a function that takes a file with this content, and the folder that it is taken to."""

    def taken(content, **expected):
        source = tmp_path / "dataset-0-2.tfrecord"
        source.write_bytes(content)
        return take_shard(str(source), tmp_path / "out/train/00000-of-00001.tfrecord", EXPECTED | expected)

    return taken, tmp_path / "out/train"


@pytest.mark.unit
def test_a_published_shard_is_copied_and_indexed(take):
    taken, folder = take
    content = records(example(ids(0)), example(ids(1), token_type_ids=[0] * LENGTH))
    sidecar = taken(content)
    assert (folder / "00000-of-00001.tfrecord").read_bytes() == content
    places = np.frombuffer((folder / "00000-of-00001.index").read_bytes(), "<u8").tolist()
    assert places == [0, len(records(example(ids(0)))), len(content)]
    assert sidecar["records"] == 2 and sidecar["tokens"] == 2 * LENGTH and sidecar["bytes"] == len(content)
    padded = ids(0)[:12] + [3] * 4
    assert take[0](records(example(padded, [1] * 12 + [0] * 4)), packing="pad")["tokens"] == 12


WHOLE = example(ids(0))
OTHER = Example()
OTHER.features.feature["tokens"].int64_list.value.extend([1, 2])
# Content, and what the sentence names; {more} is the end of the last record, {size} that of the first.
WRONG = [
    (b"", "no records"),
    (gzip.compress(records(WHOLE)), "gzip"),
    (records(WHOLE)[:-3], "bytes 0 to {more}"),
    (records(WHOLE)[:-1] + b"?", "bytes 0 to {size}.*checksum"),
    (records(WHOLE, b"\xff\xff"), "record 1 .bytes {size} to {more}.*tf.train.Example"),
    (records(OTHER.SerializeToString()), "record 0 .bytes 0 to {more}.* tokens.*input_ids"),
    (records(example(ids(0)[:-1])), "record 0 .*input_ids has 15 .*16 each, tfrecords.sequence_length"),
    (records(example([*ids(0)[:-1], VOCABULARY])), "record 0 .* 300; allowed: 0 to 299"),
    (records(example(ids(0), [1] * 15 + [0])), "record 0 .*attention_mask.*tfrecords.packing"),
]


@pytest.mark.unit
@pytest.mark.parametrize(("content", "named"), WRONG, ids=map(str, range(len(WRONG))))
def test_a_wrong_file_is_named(take, tmp_path, content, named):
    taken, folder = take
    named = named.format(size=len(records(WHOLE)), more=len(content))
    with pytest.raises(UserError, match=f"^{tmp_path}/dataset-0-2.tfrecord[: ].*{named}"):
        taken(content)
    assert not list(folder.iterdir())


@pytest.mark.unit
def test_a_file_is_in_one_split(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train-1", "train-0", "held-0", "held-1"):
        (tmp_path / f"{name}.tfrecord").touch()
    files = {"train": ["train-*"], "validation": ["held-0*"], "test": ["./held-1*", "held-1.tfrecord"][:1]}
    assert shard_files(files)["train"] == ("train-0.tfrecord", "train-1.tfrecord")
    with pytest.raises(UserError, match=r"^tfrecords\.files: held-0\.tfrecord .*validation .*test"):
        shard_files(files | {"test": ["held-*"]})
    with pytest.raises(UserError, match=r"^tfrecords\.files\.test: .*none/\*"):
        shard_files(files | {"test": ["none/*"]})
    # A config is read where the files are not.
    tokenizer = {"pretrained": "some/tokenizer", "revision": "a" * 40}
    elsewhere = {"source": "files", "files": files | {"test": ["none/*"]}, "sequence_length": 128}
    config = read_yaml(ROOT / "config.yaml") | {"tokenizer": tokenizer, "tfrecords": elsewhere}
    records = Outline(complete(config, "config.yaml")).records["tfrecords"]
    with pytest.raises(UserError, match=r"^tfrecords\.files\.test: .*none/\*"):
        print(records.shards)


def test_external_records_are_those_of_the_workflow(trained, built):
    """The batches of training, too, and with them the model."""
    workflow = built
    for split in SPLITS:
        for number, path in enumerate(sorted((workflow / f"results/tfrecords/{split}").glob("*.tfrecord"))):
            (workflow / "elsewhere" / split).mkdir(parents=True, exist_ok=True)
            path.rename(workflow / f"elsewhere/{split}/dataset-{number}-100.tfrecord")
    shutil.copytree(workflow / "results/tokenizer", workflow / "tokenizer")
    shutil.rmtree(workflow / "results/tfrecords")
    config = read_yaml(workflow / "config.yaml")
    # Only to be compared with: no special token is known.
    (workflow / "bare").mkdir()
    shutil.copy(workflow / "tokenizer/tokenizer.json", workflow / "bare")
    config["tokenizer"] = {"pretrained": "tokenizer", "compare_with": {"bare": {"pretrained": "bare"}}}
    files = {split: [f"elsewhere/{split}/*.tfrecord"] for split in SPLITS}
    config["tfrecords"] = {"source": "files", "files": files, "sequence_length": 128}
    write_yaml(workflow / "config.yaml", config)
    workflow("tokenizer", "results/tfrecords/README.md", "--cores", "2")
    assert "Existing TFRecord files" in (workflow / "results/tfrecords/README.md").read_text()
    manifest, original = (folder / "results/tfrecords/manifest.json" for folder in (workflow, trained))
    assert "documents" not in json.loads(manifest.read_text())["splits"]["train"]
    own, others = (open_to_train(path) for path in (manifest, original))
    masked = {"batch_size": 8, "seed": 0, "masking": config["mlm"]["runs"]["tiny"]["masking"]}
    for step in (0, 19):
        batch, expected = (training_batch(train, masked, step) for train, _ in (own, others))
        assert all((batch[name] == expected[name]).all() for name in expected)
    for found, expected in zip(*(evaluation_batches(validation) for _, validation in (own, others)), strict=True):
        assert all((found[name] == expected[name]).all() for name in expected)
    own, bare = (
        json.loads((workflow / f"results/tokenizer/{name}metrics.json").read_text()) for name in ("", "compared/bare/")
    )
    assert own["vocab_size"] == bare["vocab_size"] and own["tokens_per_word"] == bare["tokens_per_word"]
    # What is deleted is missed by what reads it, and copied again.
    name = "results/tfrecords/train/00001-of-00004.tfrecord"
    (workflow / name).unlink()
    refused = workflow("results/mlm/tiny/checkpoints/00000010/state.json", "--cores", "1", check=False)
    assert "error: train/00001-of-00004.tfrecord of results/tfrecords " in refused.stdout
    workflow(name, "--cores", "1")
    assert (workflow / name).read_bytes() == (workflow / "elsewhere/train/dataset-1-100.tfrecord").read_bytes()
