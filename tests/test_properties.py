"""Properties of packing, documents and configs, whatever comes; test_training_data.py has the others."""

import copy
import hashlib
from collections import Counter

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tpulm.config.reading import complete, read_yaml
from tpulm.core.errors import UserError
from tpulm.corpus.parts import clean
from tpulm.records.shards import Layout, pack

FAST = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
SHIPPED = read_yaml(ROOT / "config.yaml")
SHIPPED["mlm"]["runs"]["published"] = SHIPPED["mlm"]["runs"]["tiny"] | {
    "backend": "tensorflow",
    "model": {"architecture": "roberta", "hidden_size": 128, "num_attention_heads": 2},
}


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=60), max_size=30), st.integers(1, 50))
@FAST
def test_packing_loses_no_token_but_the_tail(documents, length):
    stream = [token for ids in documents for token in ids]
    for overlap in (0, 1):  # of masked and of causal models
        packer = Layout("concat", length, length + overlap, 0, 1).packer()
        batches = ((np.array(ids, np.int32), np.array([len(ids)])) for ids in documents)
        found = [features["input_ids"] for features in pack(batches, packer)]
        rows = np.concatenate([np.empty((0, length + overlap), np.int32), *found])
        labels = rows[:, overlap:].ravel().tolist()
        assert labels == stream[overlap : overlap + len(labels)]
        assert (rows[1:, :overlap] == rows[:-1, length:]).all()
        assert packer.tokens == len(stream)
        held = len(labels) + overlap if labels else 0
        assert packer.dropped == len(stream) - held < length + overlap


# White space of all kinds, and characters whose UTF-8 begins as that of some white space does.
SPACED = st.text(
    st.sampled_from([*" \t\n\r\x0b\x1c\x85\xa0\u1680\u2003\u2028\u3000", *"ab\0\u00e9\u2019\u1000\u3042😀"]), max_size=9
)


@given(st.lists(st.one_of(st.none(), SPACED), max_size=12), st.integers(0, 9), st.integers(1, 4))
@FAST
def test_documents_are_keyed_by_their_words(documents, seed, shortest):
    dropped = Counter(empty=0, short=0)
    cleaned = clean(documents, {"seed": seed, "min_characters": shortest}, dropped, Counter()).to_pylist()
    found = [(text or "").split() for text in documents]
    kept = [(text, words) for text, words in zip(documents, found, strict=True) if len(" ".join(words)) >= shortest]
    assert dropped == {"empty": found.count([]), "short": len(found) - found.count([]) - len(kept)}
    for row, (text, words) in zip(cleaned, kept, strict=True):
        key = hashlib.sha256(f"{seed}\0{' '.join(words)}".encode()).digest()[:16]
        assert row == {"text": text.replace("\r\n", "\n").replace("\r", "\n"), "words": len(words), "key": key}


DOCUMENTS = st.lists(st.lists(st.integers(5, 99), min_size=2, max_size=40), min_size=1, max_size=20)


@given(DOCUMENTS, st.integers(4, 30), st.integers(0, 2), st.integers(1, 200))
@FAST
def test_a_document_per_record_is_cut_or_padded(documents, width, closing, at_once):
    packer = Layout("pad", width, width, 3, closing).packer()
    batch = (np.array(sum(documents, []), np.int32), np.array(list(map(len, documents))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tpulm.records.shards.TOKENS_AT_ONCE", at_once)
        blocks = list(pack([batch], packer))
    ids, mask = (np.concatenate([block[name] for block in blocks]) for name in ("input_ids", "attention_mask"))
    for row, held, document in zip(ids, mask, documents, strict=True):
        cut = document[: width - closing] + document[len(document) - closing :]
        short = document if len(document) <= width else cut
        assert row.tolist() == short + [3] * (width - len(short))
        assert held.tolist() == [1] * len(short) + [0] * (width - len(short))
    assert packer.tokens == len(batch[0]) and packer.dropped == len(batch[0]) - mask.sum()


ITSELF: list = []
ITSELF.append(ITSELF)  # as YAML can write it: &a [*a]
KEYS = st.text(max_size=12) | st.integers() | st.none() | st.booleans() | st.sampled_from(("k" * 3000, "a\nb"))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.dates()
    | st.sampled_from((10**400, -(10**4000), "x" * 5000, "a\nb" * 500, b"binary", ITSELF)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def places(value, path=()):
    """Yield the path of every value of a config, and of a new key in every mapping."""
    if isinstance(value, dict):
        yield (*path, "a new key")
        for key, inner in value.items():
            yield (*path, key)
            yield from places(inner, (*path, key))


@given(st.sampled_from(sorted(places(SHIPPED))), ANYTHING)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_config_is_completed_or_refused_in_one_sentence(path, value):
    config = copy.deepcopy(SHIPPED)
    place = config
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    try:
        filled = complete(config, "config.yaml")
    except UserError as error:
        sentence = str(error)
        assert sentence.startswith("config.yaml: ")
        assert len(sentence.splitlines()) == 1 and sentence.isprintable(), repr(sentence)
        assert len(sentence) < 600
    else:
        assert set(config) <= set(filled)


# YAML that Python cannot hold.
BEYOND = (b"a: " + b"9" * 5000, b"[" * 1200, b"a: 2024-99-99", b"a: !!int x", b"{a: 1}: 2")


@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
@example(BEYOND[0])
@example(BEYOND[1])
@example(BEYOND[2])
@example(BEYOND[3])
@example(BEYOND[4])
@settings(max_examples=50, deadline=None, derandomize=True)
def test_a_file_is_read_as_yaml_or_refused_in_one_sentence(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(data)
    try:
        read_yaml(path)
    except UserError as error:
        assert str(error).startswith(str(path))
        assert len(str(error).splitlines()) == 1
