"""A corpus of several sources with every option on: the same bytes for any partition, through Snakemake."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
from conftest import write_yaml
from test_near_duplicates import sentence

CORPUS = {
    "sources": {
        "prose": {"source": "files", "files": {"train": ["text/*.txt"], "test": ["exam.txt"]}, "weight": 1.5},
        "asked": {"source": "files", "files": ["asked.jsonl"], "template": "{q}\n", "response": "{a}"},
    },
    "filters": {"gopher_quality": {"min_words": 5}},
    "near_duplicates": {"threshold": 0.8, "ngram": 3},
    "decontaminate": {"ngram": 8, "files": ["benchmark.csv"]},
}


def written(workflow):
    """Return the bytes of the splits and of their record."""
    folder = workflow / "results/corpus"
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".parquet"} | {
        "corpus.json": (folder / "corpus.json").read_bytes()
    }


def test_any_partition_gives_the_same_corpus(fresh):
    (fresh / "text").mkdir()
    prose = [sentence(seed, 30) for seed in range(120)]
    for number in range(3):
        (fresh / f"text/{number}.txt").write_text("".join(f"{text}\n" for text in prose[number::3]) + "too short\n")
    (fresh / "text/2.txt").write_text((fresh / "text/2.txt").read_text() + f"{prose[0]} more\n")
    (fresh / "exam.txt").write_text(f"{sentence(500, 30)} {' '.join(prose[1].split()[3:12])}\n")
    (fresh / "benchmark.csv").write_text(f"text\n{' '.join(prose[2].split()[-8:])}\n")
    rows = [{"q": sentence(seed, 8), "a": sentence(seed + 1, 9)} for seed in range(1000, 1100, 2)]
    (fresh / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_yaml(fresh / "config.yaml", {"corpus": CORPUS})
    fresh("corpus", "--cores", "1")
    whole = written(fresh)
    record = json.loads(whole["corpus.json"])
    train = record["splits"]["train"]
    assert train["dropped_gopher_quality_words"] == 3
    # What is held out wins over what is similar to it.
    assert sum(split.get("dropped_near_duplicates", 0) for split in record["splits"].values()) == 1
    assert train["dropped_contaminated"] == len(record["decontaminate"]["examples"]) >= 1
    assert record["sources"]["prose"]["weight"] == 1.5
    table = pq.read_table(fresh / "results/corpus/train.parquet")
    spans = [(text, *span[0].values()) for text, span in zip(*table.to_pydict().values(), strict=True)]
    answers = [text[start:stop] for text, start, stop in spans if start]
    assert (
        set(answers) <= {row["a"] for row in rows}
        and len(answers) == record["sources"]["asked"]["splits"]["train"]["documents"]
    )
    sources = fresh / "scripts/tpulm/corpus/sources.py"
    sources.write_text(sources.read_text().replace("PART_BYTES = 32 << 20", "PART_BYTES = 6000"))
    fresh("corpus", "--cores", "2")
    parts = list((fresh / "results/corpus/parts").glob("?????.parquet"))
    assert len(parts) > 5 and written(fresh) == whole
    check_divided(fresh, sources, whole)


def check_divided(workflow, sources, whole):
    """Hold the corpus of the same text, as if it were so large that each part has files of its own, against the other.

    whole  what `written` returned for that
    """
    sources.write_text(sources.read_text().replace("WHOLE_PARTS = 64", "WHOLE_PARTS = 3"))
    config = {"corpus": CORPUS, "tokenizer": {"vocab_size": 300}}
    config["tfrecords"] = {"sequence_length": 8, "shards": {"train": 12, "validation": 2}}
    write_yaml(workflow / "config.yaml", config)
    workflow("corpus", "results/tfrecords/manifest.json", "--cores", "2")
    workflow("verify", "--cores", "1")
    record, before = (
        json.loads(text) for text in ((workflow / "results/corpus/corpus.json").read_text(), whole["corpus.json"])
    )
    manifest = json.loads((workflow / "results/tfrecords/manifest.json").read_text())
    for split in ("train", "validation", "test"):
        files = sorted((workflow / "results/corpus" / split).glob("*.parquet"))
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
        expected = pq.read_table(pa.BufferReader(whole[f"{split}.parquet"])).to_pylist()
        if split == "train":  # what is taken twice comes a second time at the end of each part
            rows, expected = (sorted(found, key=lambda row: row["text"]) for found in (rows, expected))
        assert len(files) > 5 and rows == expected
        assert manifest["splits"][split]["documents"] == len(rows)
        for corpus in (record, before):
            assert corpus["splits"][split].pop("fingerprint")
    assert record == before
