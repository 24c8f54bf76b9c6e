"""A user's own files instead of the embedded text, sizes reduced by config only."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import ROOT, reduced, write_yaml
from tpulm.config.reading import read_yaml

DATA = ROOT.parent / "shared" / "data"


pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no text to read in {DATA}")


def test_text_files_and_jsonl(fresh):
    source = {"source": "files", "files": [f"{DATA}/wikitext-2/*.txt"], "sample_by": "line", "max_documents": 2000}
    reduced(fresh, corpus=source)
    config = read_yaml(fresh / "small.yaml")
    config["finetune"]["text"] = {
        "source": "files",
        "files": {"train": [f"{DATA}/imdb/train.jsonl"], "test": [f"{DATA}/imdb/test.jsonl"]},
        "max_documents": 300,
    }
    write_yaml(fresh / "small.yaml", config)
    fresh("corpus", "--configfile", "small.yaml", "--cores", "2")
    read = json.loads((fresh / "results/corpus/corpus.json").read_text())
    assert {Path(file["path"]).name for file in read["files"]["train"]} == {"test.txt", "validation.txt"}
    wanted = [line.strip() for line in open(DATA / "wikitext-2" / "test.txt", encoding="utf-8") if line.strip()]
    splits = [pq.read_table(fresh / f"results/corpus/{s}.parquet")["text"].to_pylist() for s in ("train", "test")]
    assert {text.strip() for part in splits for text in part} & set(wanted)
    reviews = [json.loads(line)["text"] for line in open(DATA / "imdb" / "test.jsonl", encoding="utf-8")]
    assert pq.read_table(fresh / "results/finetune-text/test.parquet")["text"].to_pylist() == reviews[:300]
