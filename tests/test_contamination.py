"""Decontamination: training documents that share words with held-out ones, or with benchmarks, are dropped."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_corpus import FAST
from test_near_duplicates import ngrams_by_hand, sentence
from tpulm.corpus import decontamination
from tpulm.corpus.decontamination import (
    count_contaminated,
    drop_contaminated,
    find_contaminated,
    held_out_texts,
    ngrams_of,
)  # fmt: skip
from tpulm.corpus.parts import write_part
from tpulm.specs.artifacts import SPLITS

pytestmark = pytest.mark.unit

WORDS = st.lists(st.sampled_from(["a", "B", "c,", "d", "!"]), min_size=1, max_size=9).map(" ".join)


def decontaminate(folder, train, held_out, benchmarks, n):
    """Return the texts that stay, and what is recorded."""
    parts = [str(folder / f"{number}.parquet") for number in range(3)]
    half = len(train) // 2
    recipe = {"seed": 0, "min_characters": 0}
    texts = [train[:half], held_out, train[half:]]
    counts = [write_part(part, [own], recipe)["documents"] for part, own in zip(parts, texts, strict=True)]
    codes = np.repeat([SPLITS.index(split) for split in ("train", "test", "train")], counts).astype(np.uint8)
    avoided = ngrams_of([*held_out_texts(parts, codes), benchmarks], n)
    starts = np.cumsum([0, *counts])
    found = [
        find_contaminated(part, codes[start : start + count], avoided, n)
        for part, start, count in zip(parts, starts, counts, strict=False)
    ]
    dropped = {"train": {}}
    drop_contaminated(codes, counts, found)
    told = count_contaminated(found, dropped)
    everything = np.array(train[:half] + held_out + train[half:], object)
    return everything[codes == 0].tolist(), told, dropped


@given(st.lists(WORDS, min_size=2, max_size=8), st.lists(WORDS, max_size=2), st.lists(WORDS, max_size=1))
@FAST
def test_what_shares_an_ngram_is_dropped(tmp_path_factory, train, held_out, benchmarks):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decontamination, "WAITING", 3)
        stays, _, dropped = decontaminate(tmp_path_factory.mktemp("parts"), train, held_out, benchmarks, 3)
    long = lambda text: {ngram for ngram in ngrams_by_hand(text, 3) if len(ngram) == 3}  # noqa: E731
    avoided = set().union(*map(long, held_out + benchmarks))
    assert stays == [text for text in train if not long(text) & avoided]
    assert dropped["train"]["contaminated"] == len(train) - len(stays)


def test_examples_name_what_is_shared(tmp_path):
    a, b, c, d = map(sentence, range(4))
    shared = " ".join(b.split()[50:63])
    train = [a, f"{c} -- {shared.upper()}! {d}", d]
    stays, told, dropped = decontaminate(tmp_path, train, [b], [], 13)
    assert stays == [a, d] and dropped == {"train": {"contaminated": 1}}
    assert told == {"examples": [{"text": train[1][:200], "ngram": f"{shared.upper()}!"[:200]}]}
    assert decontaminate(tmp_path, train, [" ".join(b.split()[:62])], [], 13)[0] == train  # twelve words
