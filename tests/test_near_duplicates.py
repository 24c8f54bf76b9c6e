"""Near-duplicates: which documents are found to be similar, which of them stays, and what is recorded."""

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_corpus import FAST, build_parts
from tpulm.core.errors import UserError
from tpulm.corpus import near_duplicates
from tpulm.corpus.near_duplicates import find_clusters, hash_bands
from tpulm.corpus.parts import write_part
from tpulm.corpus.splits import assign_splits

pytestmark = pytest.mark.unit

NEAR = {"threshold": 0.8, "ngram": 3}


def sentence(seed, words=200):
    """Return made-up prose that shares no n-gram with another seed's."""
    dice = random.Random(seed)
    return " ".join("".join(dice.choices("abcdefghijklmnop", k=7)) for _ in range(words))


def edited(text, changes, seed=0):
    """Return a text with so many words replaced."""
    words, dice = text.split(), random.Random(seed)
    for place in dice.sample(range(len(words)), changes):
        words[place] = f"new{dice.random()}"
    return " ".join(words)


def ngrams_by_hand(text, n):
    """Return the set of the n-grams of a text, or all its words where it has fewer."""
    words = ["".join(filter(str.isalnum, word)).lower() for word in text.split()]
    words = [word for word in words if word]
    return {tuple(words[start : start + n]) for start in range(max(1, len(words) - n + 1))} if words else set()


def test_similar_documents_agree_and_others_do_not():
    originals = [sentence(seed) for seed in range(150)]
    for changes, low, high in [(1, 0.95, 1.0), (40, 0.0, 0.01)]:  # Jaccard similarity about 0.97, 0.35
        bands = hash_bands(originals + [edited(text, changes) for text in originals], NEAR, 0)
        agreeing = (bands[:, :150] == bands[:, 150:]).any(axis=0).mean()
        assert low <= agreeing <= high
    assert not (hash_bands(["...", "!"], NEAR, 0)).any()
    assert (hash_bands(originals, NEAR, 0) != hash_bands(originals, NEAR, 1)).all()


def test_the_first_stays_and_what_is_held_out_wins(tmp_path):
    a, b, c, d = map(sentence, range(4))
    parts = [
        ("train", [[a, b, edited(a, 1), c, edited(c, 1)], ["...", "!", "short one", "Short, one!"]]),
        ("train", [[edited(a, 1, seed=1), edited(d, 1)]]),
        ("validation", [[c, edited(d, 1, seed=1), edited(c, 1, seed=2)]]),
        ("test", [[d]]),
    ]
    texts, figures = build_parts(tmp_path, parts, near_duplicates=NEAR)
    assert texts == {"train": [a, b, "...", "!", "short one"], "validation": [c], "test": [d]}
    dropped = {split: figures[split].get("dropped_near_duplicates", 0) for split in figures}
    assert dropped == {"train": 5, "validation": 2, "test": 0}
    assert figures["train"]["dropped_duplicates"] == 1  # c itself
    other, _ = build_parts(tmp_path, parts)
    assert len(other["train"]) == 10


@given(st.lists(st.lists(st.integers(0, 6), min_size=2, max_size=2), min_size=1, max_size=30), st.integers(1, 30))
@FAST
def test_clusters_are_those_of_the_graph_for_any_partition(tmp_path_factory, rows, size):
    """Documents that agree in a band are joined, and with what those agree with; 0 is no band."""
    path = str(tmp_path_factory.mktemp("bands") / "part.parquet")
    columns = np.array(rows, np.uint64).T << np.uint64(61)
    pq.write_table(pa.table(dict(zip("xy", columns, strict=True))), path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near_duplicates, "PARTITION", size)
        found = find_clusters([path], "xy", np.arange(len(rows)))
    lowest = list(range(len(rows)))
    for _ in rows:
        for i, one in enumerate(rows):
            for j, other in enumerate(rows):
                if any(one[k] == other[k] != 0 for k in (0, 1)):
                    lowest[i] = lowest[j] = min(lowest[i], lowest[j])
    assert found.tolist() == lowest


def test_a_split_that_they_empty_is_refused(tmp_path):
    parts = [("train", [["a text"]]), ("validation", [[edited(sentence(0), 1)]]), ("test", [[sentence(0)]])]
    with pytest.raises(UserError, match=r"^corpus: the split validation is empty: of 1 documents, .* near"):
        build_parts(tmp_path, parts, near_duplicates=NEAR)


def test_pairs_are_shown(tmp_path):
    a, b, c = map(sentence, range(3))
    parts = [("train", [[a, b, a.upper(), edited(b, 1)], [edited(c, 1)]]), ("validation", [["v"]]), ("test", [[c]])]
    recipe = {"seed": 0, "min_characters": 0, "near_duplicates": NEAR, "max_documents": None}
    paths = [str(tmp_path / f"{number}.parquet") for number in range(3)]
    records = [write_part(path, batches, recipe) for path, (_, batches) in zip(paths, parts, strict=True)]
    _, told = assign_splits("corpus", recipe | {"parts": [split for split, _ in parts], "held_out": {}}, paths, records)
    dropped = [(a.upper(), a), (edited(b, 1), b), (edited(c, 1), c)]
    expected = [{"dropped": text[:200], "kept": other[:200]} for text, other in dropped]
    assert told["near_duplicates"] == NEAR | {"examples": expected}
