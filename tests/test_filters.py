"""Filters: what each rule of Gopher and C4 lets pass, and what is counted."""

from collections import Counter
from itertools import pairwise

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_corpus import FAST, fails
from test_near_duplicates import sentence
from tpulm.config.reading import complete
from tpulm.corpus.filters import apply_filters, duplicate_ngram_characters, top_ngram_characters
from tpulm.corpus.parts import write_part
from tpulm.corpus.splits import assign_splits

pytestmark = pytest.mark.unit


def limits(**filters):
    """Return filters with their defaults."""
    return complete({"corpus": {"source": "python-docs", "filters": filters}}, "test")["corpus"]["filters"]


PROSE = sentence(0, 60)
QUALITY = [
    (PROSE, ""),
    (sentence(0, 49), "words"),
    (sentence(0, 100_001), "words"),
    ("ab " * 60, "mean_word_length"),
    ("abcdefghijk " * 60, "mean_word_length"),
    (PROSE + " #" * 7, "symbols"),
    (PROSE + " so..." * 8, "symbols"),
    ("\n".join("- " + line for line in [PROSE] * 20), "bullet_lines"),
    (f"{PROSE}\n{PROSE}\n{PROSE} \u2026", "ellipsis_lines"),
    (PROSE + " 12345" * 16, "alphabetic_words"),
]


@pytest.mark.parametrize(("text", "rule"), QUALITY)
def test_quality(text, rule):
    _, found = apply_filters(text, limits(gopher_quality={}), Counter())
    assert found == (f"gopher_quality_{rule}" if rule else "")


PARTS = [sentence(seed, 12) for seed in range(20)]
REPETITION = [
    (PROSE, ""),
    ("\n".join(PARTS), ""),
    ("\n".join(["a", "b", *["c"] * 3]), "duplicate_lines"),
    ("\n".join([*PARTS[:8], PARTS[0] * 4, PARTS[0] * 4]), "duplicate_line_characters"),
    ("\n\n".join(f"{n}\n{m}" for n, m in ((0, 1), (0, 1), (2, 3))), "duplicate_lines"),
    (" ".join([*PARTS[:2], *["the same"] * 12]), "top_2gram"),
    (" ".join([*PARTS[:9], *(f"one two three {n}" * 1 for n in range(16))]), "top_3gram"),
    (" ".join([*PARTS[:9], *(f"one two three four {n} {sentence(n, 1)}" for n in range(13))]), "top_4gram"),
    (" ".join([*PARTS[:6], " ".join(PARTS[0].split()[:8]), " ".join(PARTS[1].split()[:8])]), "duplicate_5grams"),
]


@pytest.mark.parametrize(("text", "rule"), REPETITION)
def test_repetition(text, rule):
    _, found = apply_filters(text, limits(gopher_repetition={}), Counter())
    assert found == (f"gopher_repetition_{rule}" if rule else "")


WORDS = st.lists(st.sampled_from(["a", "bb", "ccc"]), max_size=14)


@given(WORDS, st.integers(2, 5))
@FAST
def test_shares_of_ngrams_are_those_of_their_definition(words, n):
    grams = [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]
    times = Counter(grams)
    size = {gram: sum(map(len, gram)) for gram in grams}
    most = max(times.values(), default=0)
    top = max((times[gram] * size[gram] for gram in grams if times[gram] == most), default=0)
    assert top_ngram_characters(words, n) == (top if most > 1 else 0)
    covered = {start + i for start, gram in enumerate(grams) if times[gram] > 1 for i in range(n)}
    assert duplicate_ngram_characters(words, list(map(len, words)), n) == sum(len(words[place]) for place in covered)


GOOD = ["Here is a first sentence.", "Is it followed by another?", "It is, with five words!", "This is the next one.",
        'And "so it ends here."']  # fmt: skip
C4 = [
    ("\n".join(GOOD), "\n".join(GOOD), "", {}),
    (
        "\n".join([*GOOD, "A heading", "Too short.", ""]),
        "\n".join([*GOOD, ""]), "", {"end_marks": 1, "words_per_line": 1},
    ),
    (
        "\n".join([*GOOD, "Please turn on JavaScript, it says.", "We have a Cookie Policy for you."]),
        "\n".join(GOOD), "", {"javascript": 1, "policies": 1},
    ),
    ("\n".join(GOOD[:4]), None, "sentences", {}),
    ("\n".join([*GOOD, "Lorem ipsum dolor."]), None, "lorem_ipsum", {}),
    ("\n".join([*GOOD, "int f() { return 1; }"]), None, "curly_brackets", {}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "left", "rule", "lines"), C4)
def test_c4(text, left, rule, lines):
    removed = Counter()
    found, dropped = apply_filters(text, limits(c4={}), removed)
    assert dropped == (f"c4_{rule}" if rule else "") and removed == lines
    assert left is None or found == left


def test_limits_can_be_changed_and_filters_are_off_by_default():
    assert limits() == {}
    changed = limits(gopher_quality={"min_words": 1, "min_mean_word_length": 1})
    assert apply_filters("x", changed, Counter()) == ("x", "")
    assert apply_filters("x {", limits(c4={"curly_brackets": False}), Counter())[1] == "c4_sentences"


def test_dropped_documents_are_counted_and_the_key_is_of_what_is_left(tmp_path):
    recipe = {"seed": 0, "min_characters": 0, "max_documents": None, "parts": ["train"], "held_out": {}}
    recipe["held_out"] = {"validation": 0.1, "test": 0.1}
    recipe["filters"] = limits(gopher_quality={"min_words": 5}, c4={"min_sentences": 1})
    texts = [f"The number {number} is here.\r\nHeading" for number in range(8)]
    texts += ["Only a heading", " ", None, "a b c."]
    path = str(tmp_path / "part.parquet")
    record = write_part(path, [texts[:5], texts[5:]], recipe)
    assert record["dropped"] == {"empty": 2, "short": 0, "c4_sentences": 2}
    assert record["removed_lines"] == {"end_marks": 9, "words_per_line": 1}
    assert pq.read_table(path)["text"].to_pylist() == [f"The number {number} is here." for number in range(8)]
    plain = [f"The number {number} is here." for number in range(8)]
    write_part(str(tmp_path / "plain.parquet"), [plain], recipe | {"filters": {}})
    keys = [pq.read_table(file)["key"].to_pylist() for file in (path, tmp_path / "plain.parquet")]
    assert keys[0] == keys[1] and all(one != other for one, other in pairwise(keys[0]))
    recipe["filters"] = limits(gopher_quality={})
    record = write_part(path, [texts], recipe)
    sentence = fails(assign_splits, "corpus", recipe, [path], [record])
    assert "train" in sentence and "of 12 documents, 2 empty" in sentence and "10 by" in sentence
    assert "gopher_quality_words" in sentence
