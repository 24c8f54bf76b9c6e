"""A user's own files instead of the embedded text, sizes reduced by config only."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import ROOT, reduced
from ruamel.yaml import YAML
from tpulm.config.reading import read_yaml

DATA = ROOT.parent / "shared" / "data"


pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no text to read in {DATA}")


@pytest.fixture
def configured(fresh):
    """A workflow whose small.yaml names text files, and prompts about them."""
    change = {
        "corpus": {
            "source": "files",
            "files": [f"{DATA}/wikitext-2/*.txt"],
            "sample_by": "line",
            "max_documents": 2000,
        },
        "prompts": {"fill_mask": ["Goal of my life is to [MASK]."], "generate": ["Best comedy movies in the 90s "]},
    }
    reduced(fresh, **change)
    config = read_yaml(fresh / "small.yaml")
    config["finetune"]["text"] = {
        "source": "files",
        "files": {"train": [f"{DATA}/imdb/train.jsonl"], "test": [f"{DATA}/imdb/test.jsonl"]},
        "max_documents": 300,
    }
    with open(fresh / "small.yaml", "w") as file:
        YAML(typ="safe", pure=True).dump(config, file)
    return fresh


def test_text_files_and_jsonl(configured):
    configured("corpus", "--configfile", "small.yaml", "--cores", "2")
    check_texts(configured)


def check_texts(fresh):
    """Hold the two collections against the files that they are from."""
    read = json.loads((fresh / "results/corpus/corpus.json").read_text())
    assert {Path(file["path"]).name for file in read["files"]["train"]} == {"test.txt", "validation.txt"}
    wanted = [line.strip() for line in open(DATA / "wikitext-2" / "test.txt", encoding="utf-8") if line.strip()]
    splits = [pq.read_table(fresh / f"results/corpus/{s}.parquet")["text"].to_pylist() for s in ("train", "test")]
    assert {text.strip() for part in splits for text in part} & set(wanted)
    reviews = [json.loads(line)["text"] for line in open(DATA / "imdb" / "test.jsonl", encoding="utf-8")]
    assert pq.read_table(fresh / "results/finetune-text/test.parquet")["text"].to_pylist() == reviews[:300]


@pytest.mark.long
def test_models_of_text_files_and_jsonl(configured):
    """A whole run."""
    fresh = configured
    fresh("--configfile", "small.yaml", "--cores", "2")
    check_texts(fresh)
    generations = json.loads((fresh / "results/finetune/python/generations.json").read_text())
    assert [item["prompt"] for item in generations["prompts"]] == ["Best comedy movies in the 90s "]
    assert "Nothing to be done" in fresh("-n", "--configfile", "small.yaml").stdout
