"""The files that a config names: which a glob matches, and one sentence for what it does not."""

import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tpulm.core.errors import UserError
from tpulm.core.user_files import check_file, matching_files
from tpulm.corpus.files import read_files
from tpulm.corpus.rows import Form
from tpulm.records.shards import SPELLED, merge_sidecars, special_counted

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "x1.txt", "x[1].txt"):
        (tmp_path / name).write_text(name)


def refused(pattern: str) -> str:
    with pytest.raises(UserError) as error:
        matching_files("corpus.files", pattern)
    assert str(error.value).startswith("corpus.files: ") and str(error.value).count("\n") == 0
    return str(error.value)


def test_a_file_whose_name_is_the_glob_is_meant():
    assert matching_files("corpus.files", "x[1].txt") == ["x[1].txt"]
    assert matching_files("corpus.files", "[ab].txt") == ["a.txt", "b.txt"]


@pytest.mark.parametrize("pattern", ["~/a.txt", "$HOME/a.txt", "{a,b}.txt"])
def test_what_is_not_expanded_is_said(pattern):
    assert "not expanded" in refused(pattern)


@pytest.mark.parametrize("pattern", ["s3://bucket/a.txt", "file:///a.txt", "https://host/a.txt"])
def test_other_places_are_refused_with_those_that_are_read(pattern):
    assert "gs://BUCKET/NAME" in refused(pattern)


def test_names_that_snakemake_cannot_read_are_refused(tmp_path):
    (tmp_path / "{draft}.txt").touch()
    assert "{draft}.txt has braces" in refused("*.txt") and "braces" in refused("{draft}.txt")
    os.unlink("{draft}.txt")
    (tmp_path / os.fsdecode(b"c\xff.txt")).touch()
    assert r"c\xff.txt is not in UTF-8" in refused("*.txt")
    with pytest.raises(UserError, match="base.x.preset: "):
        check_file("base.x.preset", "folder{1}")


def test_a_file_from_the_future_is_refused():
    os.utime("a.txt", (2e9, 2051222400))
    assert "a.txt is dated 2035-01-01" in refused("*.txt") and "touch a.txt" in refused("a.txt")
    os.utime("a.txt", (2e9, time.time() + 3600))
    assert "touch a.txt" in refused("a.txt")


def rows_refused(name: str, text: str, column: str = "text") -> str:
    (Path.cwd() / name).write_text(text)
    form = Form("corpus", {"column": column})
    with pytest.raises(UserError) as error:
        list(read_files([name], "line", form))
    return str(error.value)


def test_a_mistake_in_a_csv_file_is_found_by_what_a_user_sees():
    assert "rows.csv, line 4: " in rows_refused("rows.csv", 'text\n"a\nb"\n"c, d\ne\n')
    assert 'found: "text ", "label"' in rows_refused("header.csv", "text ,label\na,b\n")


def test_special_tokens_that_a_text_spells_are_counted_and_those_of_the_template_are_not():
    batches = [(np.array([0, 5, 4, 1, 0, 6, 1], np.int32), np.array([4, 3])), (np.array([0, 4, 4, 1]), np.array([4]))]
    counts = Counter()
    assert len(list(special_counted(batches, {0, 1, 4}, 2, counts))) == 2 and counts[SPELLED] == 3
    assert list(special_counted(batches[:0], {0}, 2, empty := Counter())) == [] and not empty
    shard = {"vocabulary": {}, "documents": 1, "records": 1, "tokens": 9, "dropped_tokens": 0, "bytes": 1}
    merged = merge_sidecars({"train": [shard | counts, shard], "test": [shard]}, {})["splits"]
    assert merged["train"][SPELLED] == 3 and SPELLED not in merged["test"]
