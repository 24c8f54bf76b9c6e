"""The files that a config names: which a glob matches, and one sentence for what it does not."""

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import requests
from huggingface_hub import HfApi, constants, errors
from test_corpus import fails, read, write
from tpulm.core.errors import UserError
from tpulm.core.experiments import check_home
from tpulm.core.hub import not_fetched
from tpulm.core.user_files import check_file, matching_files
from tpulm.corpus.chat_templates import find_chat_template
from tpulm.corpus.files import load_hub
from tpulm.corpus.rows import Form
from tpulm.records.shards import SPELLED, merge_sidecars, special_counted

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "x1.txt", "x[1].txt"):
        (tmp_path / name).write_text(name)


def refused(pattern: str) -> str:
    said = fails(matching_files, "corpus.files", pattern)
    assert said.startswith("corpus.files: ") and "\n" not in said
    return said


def test_a_file_whose_name_is_the_glob_is_meant():
    assert matching_files("corpus.files", "x[1].txt") == ["x[1].txt"]
    assert matching_files("corpus.files", "[ab].txt") == ["a.txt", "b.txt"]


def test_what_is_not_expanded_and_other_places_are_refused():
    for pattern in ("~/a.txt", "$HOME/a.txt", "{a,b}.txt"):
        assert "not expanded" in refused(pattern), pattern
    for pattern in ("s3://bucket/a.txt", "file:///a.txt", "https://host/a.txt"):
        assert "gs://BUCKET/NAME" in refused(pattern), pattern


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
    os.utime("a.txt")
    os.symlink("a.txt", "link.txt")
    os.utime("link.txt", (2051222400, 2051222400), follow_symlinks=False)
    assert "link.txt is dated 2035-01-01" in refused("link.txt") and "touch -h link.txt" in refused("link.txt")
    os.utime("a.txt", (2e9, time.time() + 3600))
    assert "touch a.txt" in refused("a.txt")


def test_special_tokens_that_a_text_spells_are_counted_and_those_of_the_template_are_not():
    batches = [(np.array([0, 5, 4, 1, 0, 6, 1], np.int32), np.array([4, 3])), (np.array([0, 4, 4, 1]), np.array([4]))]
    counts = Counter()
    assert len(list(special_counted(batches, {0, 1, 4}, 2, counts))) == 2 and counts[SPELLED] == 3
    assert list(special_counted(batches[:0], {0}, 2, empty := Counter())) == [] and not empty
    shard = {"vocabulary": {}, "documents": 1, "records": 1, "tokens": 9, "dropped_tokens": 0, "bytes": 1}
    merged = merge_sidecars({"train": [shard | counts, shard], "test": [shard]}, {})["splits"]
    assert merged["train"][SPELLED] == 3 and SPELLED not in merged["test"]


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "a.csv", "a.parquet", "a.txt.gz"])
def test_a_pointer_of_git_lfs_is_not_taken_for_the_file(name):
    said = fails(read, write(Path(name), LFS))
    assert said.startswith(f"{name} is a pointer of Git LFS") and "`git lfs pull`" in said


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "a.csv"])
def test_a_file_whose_name_tells_another_format_is_refused_with_its_format(name):
    for content, kind in ((b"PK\3\4\x14\0\0\0\xb1\xb2\n", "ZIP"), (b"\x1f\x8b\x08\0\xb1\xb2\n", "gzip")):
        said = fails(read, write(Path(name), content))
        assert f"its content is {kind}" in said and "iconv" not in said


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_json_of_a_text_that_is_nested_without_end_breaks_no_stack(name):
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(100_000)  # as rules/common.smk has it
        said = fails(read, write(Path(name), "[" * 90_000))
    finally:
        sys.setrecursionlimit(limit)
    assert "JSON" in said and "500 levels" in said


def answered(status: int) -> requests.Response:
    answer = requests.Response()
    answer.status_code = status
    return answer


@pytest.mark.parametrize(
    ("kind", "status", "helps"),
    [
        (errors.GatedRepoError, 403, "accept them on its page, and set HF_TOKEN"),
        (errors.RepositoryNotFoundError, 401, "check the name"),
        (errors.RevisionNotFoundError, 404, "at this revision"),
        (errors.HfHubHTTPError, 401, "another HF_TOKEN"),
        (errors.HfHubHTTPError, 429, "wait some minutes"),
        (errors.HfHubHTTPError, 503, "(status 503): run again later"),
    ],
)
def test_a_refused_download_says_what_helps(kind, status, helps):
    error = FileNotFoundError("no such thing")  # only its context knows how the hub has answered
    error.__context__ = kind("the hub refuses", response=answered(status))
    said = str(not_fetched("tokenizer.pretrained is a/b", error))
    assert said.startswith("tokenizer.pretrained is a/b, wh") and helps in said and said.count(". ") == 0


def test_a_download_that_is_forbidden_or_cannot_be_kept_says_what_helps(monkeypatch):
    denied = PermissionError(13, "Permission denied", "/absent/.cache")
    assert "/absent/.cache); HF_HOME" in str(not_fetched("x is a/b", denied))
    assert "HF_HUB_OFFLINE" in str(not_fetched("x is a/b", errors.OfflineModeIsEnabled("offline")))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in str(not_fetched("x is a/b", errors.LocalEntryNotFoundError("not in the cache")))


@pytest.mark.parametrize(("name", "text"), [("README.md", "---\na: [\n---\n"), ("a.zip", "PK")])
def test_a_local_dataset_that_cannot_be_read_is_a_sentence(monkeypatch, name, text):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", Path("cache").absolute())
    Path("data").mkdir()
    Path("data", name).write_text(text)
    recipe = {"dataset": "./data", "splits": {"train": "train"}, "column": "text"}
    with pytest.raises(UserError, match=r"^corpus\.dataset is \./data, which cannot be read \("):
        load_hub("corpus", recipe, Form("corpus", recipe))


def test_the_hub_is_asked_why_a_dataset_cannot_be_loaded(monkeypatch):
    import datasets

    def refuse(*arguments: object, **named: object) -> None:
        raise datasets.exceptions.DatasetNotFoundError("no such thing")

    def answer(*arguments: object, **named: object) -> None:
        raise errors.GatedRepoError("terms", response=answered(403))

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    monkeypatch.setattr(HfApi, "dataset_info", answer)
    recipe = {"dataset": "a/b", "revision": "0" * 40, "splits": {"train": "train"}, "column": "text"}
    with pytest.raises(UserError, match=r"^corpus\.dataset is a/b at revision 0+, .*: accept them on its page"):
        load_hub("corpus", recipe, Form("corpus", recipe))


@pytest.mark.parametrize(
    "config", [[], {"chat_template": [5]}, {"chat_template": "x", "bos_token": 5}, {"added_tokens_decoder": {"0": 5}}]
)
def test_a_tokenizer_config_of_another_form_is_a_sentence(tmp_path, config):
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"^corpus\.chat_template: a/b/tokenizer_config\.json does not describe"):
        find_chat_template("corpus.chat_template", "a/b", None, [str(file)])


def test_a_user_without_a_home_is_told_the_variable(monkeypatch):
    def unknown() -> None:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(UserError, match="set HOME"):
        check_home()
