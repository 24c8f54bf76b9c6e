"""The TFRecord stage: ranges, packing, the bytes that TensorFlow writes and reads, damage that is found."""

import json
import os
from pathlib import Path
from pydoc_data import topics

import numpy as np
import pyarrow as pa
import pytest
import warm
from hypothesis import given, settings
from hypothesis import strategies as st
from tpulm.core.errors import UserError
from tpulm.core.files import write_json
from tpulm.records import reader, tfrecord
from tpulm.records.shards import merge_sidecars, plan_ranges, range_of, write_shard
from tpulm.records.tfrecord import decode
from tpulm.specs.shards import files_of_shard
from tpulm.tokenization.encoding import tokenize
from tpulm.tokenization.pipeline import Recipe
from tpulm.tokenization.training import train

LENGTH = 32
LAYOUT = {"sequence_length": LENGTH, "tokens_per_record": LENGTH, "packing": "concat"}
KEYS = {"shards_key": "tfrecords.shards", "length_key": "tfrecords.sequence_length"}


@pytest.fixture(scope="module")
def texts() -> list[str]:
    paragraphs = f"{topics.topics['assignment']}\n\n{topics.topics['class']}".split("\n\n")
    return [" ".join(paragraph.split()) for paragraph in paragraphs]


@pytest.fixture(scope="module")
def tokenizer(texts):
    return train([texts], Recipe("unigram", 300))[0]


@pytest.fixture
def written(tmp_path, texts, tokenizer):
    """Write two shards with their manifest; return its path and the ids of each shard."""
    ranges = plan_ranges(np.array([len(text) for text in texts]), 2, "tfrecords.shards.train")
    sidecars, streams = [], []
    for shard, part in enumerate(ranges):
        documents = texts[part["start"] : part["stop"]]
        encoded = tokenize(tokenizer, (pa.array(documents[i : i + 7]) for i in range(0, len(documents), 7)))
        path = tmp_path / f"train/{shard:05d}-of-00002.tfrecord"
        sidecar = write_shard(encoded, LAYOUT | KEYS, 3, 1, path, len(documents))
        sidecars.append(sidecar | {"vocabulary": {"vocab_size": 300}})
        streams.append([i for text in documents for i in tokenizer.encode(text).ids])
    manifest = tmp_path / "manifest.json"
    write_json(manifest, merge_sidecars({"train": sidecars}, LAYOUT))
    return manifest, streams


def expected(streams):
    return np.concatenate([np.array(s[: len(s) // LENGTH * LENGTH]).reshape(-1, LENGTH) for s in streams])


@pytest.mark.unit
def test_ranges_are_balanced():
    lengths = np.random.default_rng(0).integers(1, 1000, 5000)
    ranges = plan_ranges(lengths, 16, "tfrecords.shards.train")
    assert max(abs(part["characters"] - lengths.sum() / 16) for part in ranges) <= 1000


@pytest.mark.unit
def test_shard_without_a_record(tmp_path):
    layout = {"sequence_length": 10, "tokens_per_record": 10, "packing": "concat"} | KEYS
    documents = [(np.arange(9, dtype=np.int32), np.array([9]))]
    named = r"^tfrecords\.shards\.test is 4 with tfrecords\.sequence_length 10, .* shard 2 .* 9 tokens"
    with pytest.raises(UserError, match=named):
        write_shard(documents, layout, 0, 1, tmp_path / "test/00002-of-00004.tfrecord", 1)
    assert not any((tmp_path / "test").iterdir())


@pytest.mark.unit
def test_records_are_the_tokenizers_output(written):
    manifest, streams = written
    records = reader.Records(manifest, "train")
    records.verify()
    everything = records.read(np.arange(len(records)))
    assert everything.dtype == np.int32 and everything.shape == (len(records), LENGTH)
    np.testing.assert_array_equal(everything, expected(streams))
    indices = np.random.default_rng(0).integers(0, len(records), 200)
    np.testing.assert_array_equal(records.read(indices), expected(streams)[indices])
    for wrong in (-1, len(records)):
        with pytest.raises(IndexError):
            records.read(np.array([wrong]))
    shards = records.shards
    assert [s["tokens"] for s in shards] == [len(stream) for stream in streams]
    assert [s["dropped_tokens"] for s in shards] == [len(stream) % LENGTH for stream in streams]


@pytest.mark.unit
def test_every_flipped_bit_is_found(written):
    manifest, _ = written
    records = reader.Records(manifest, "train")
    path, (start, stop) = Path(records.paths[1]), records.places[1][3:5].tolist()
    whole = path.read_bytes()
    number = records.shards[0]["records"] + 3
    for place in range(start, stop):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        fresh = reader.Records(manifest, "train")
        fresh.read(np.array([number - 1, number + 1]))
        with pytest.raises(UserError, match=rf"^{path} is corrupt at bytes {start} to {stop} \(record 3\)"):
            fresh.read(np.array([number]))
    with pytest.raises(UserError, match=f"^{path} is corrupt"):
        fresh.verify()


@pytest.mark.unit
def test_file_of_another_size_or_none(written):
    manifest, _ = written
    path = Path(reader.Records(manifest, "train").paths[0])
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with pytest.raises(UserError, match=f"^{path} has {size - 1} bytes; manifest.json says {size}"):
        reader.Records(manifest, "train")
    path.unlink()
    with pytest.raises(UserError, match=f"^{path} is missing"):
        reader.Records(manifest, "train")


# What TensorFlow makes of lists of ids, as an example and as a file; and the records that it reads from files.
TENSORFLOW = """
import json, sys
import tensorflow as tf
reference, length, lists, records, paths = sys.argv[1], *map(json.loads, sys.argv[2:])
examples = []
for ids in lists:
    features = {"input_ids": ids, "attention_mask": [1] * len(ids)}
    features = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=some)) for name, some in features.items()}
    example = tf.train.Example(features=tf.train.Features(feature=features))
    examples.append(example.SerializeToString(deterministic=True).hex())
with tf.io.TFRecordWriter(reference) as file:
    for record in records:
        file.write(bytes.fromhex(record))
# The published script's reader.
form = {name: tf.io.FixedLenFeature([length], tf.int64) for name in ("input_ids", "attention_mask")}
dataset = tf.data.TFRecordDataset(paths).map(lambda record: tf.io.parse_single_example(record, form))
read = [[record[name].tolist() for name in form] for record in dataset.as_numpy_iterator()]
print("RESULT" + json.dumps([examples, read]))
"""


def test_bytes_are_those_of_tensorflow(written, tmp_path):
    manifest, streams = written
    records = reader.Records(manifest, "train")
    lists = [[0, 1, 127, 128, 16383, 16384, 10**6], expected(streams)[0].tolist()]
    first = [bytes(records.record(0, number)).hex() for number in range(records.shards[0]["records"])]
    arguments = map(json.dumps, (LENGTH, lists, first, list(map(str, records.paths))))
    reference = tmp_path / "reference.tfrecord"
    examples, read = warm.result(warm.run("tensorflow", TENSORFLOW, str(reference), *arguments))
    for ids, example in zip(lists, examples, strict=True):
        values = np.array([ids], np.int32)
        [encoded] = tfrecord.serialise({"input_ids": values, "attention_mask": np.ones_like(values)})
        assert encoded.hex() == example and decode(encoded).tolist() == ids
    assert reference.read_bytes() == Path(records.paths[0]).read_bytes()
    assert read == [[ids, [1] * LENGTH] for ids in expected(streams).tolist()]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 20))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_shards_of_several_files_have_each_document_once(documents, shards):
    lengths = [np.arange(1, count + 1, dtype=np.int32) for count in documents]
    try:
        ranges = []
        for number in range(shards):
            own = [lengths[file] for file in files_of_shard(number, shards, len(lengths))]
            ranges.append(range_of(own, number, shards, len(lengths), "tfrecords.shards.train"))
    except UserError as error:
        assert "tfrecords.shards.train is" in str(error)
        return
    found = []
    for number, part in enumerate(ranges):
        files = files_of_shard(number, shards, len(lengths))
        own = np.concatenate([np.arange(documents[file]) + 100 * file for file in files])
        assert part["documents"] >= 1 and len(files) == 1 or shards <= len(lengths)
        found += own[part["start"] : part["stop"]].tolist()
    assert found == [100 * file + row for file, count in enumerate(documents) for row in range(count)]
