"""A corpus of several sources with every option on: the same documents for any partition, through Snakemake."""

import json

import pyarrow.parquet as pq
from conftest import write_yaml
from test_near_duplicates import sentence
from tpulm.specs.artifacts import SPLITS

CORPUS = {
    "sources": {
        "prose": {"source": "files", "files": {"train": ["text/*.txt"], "test": ["exam.txt"]}, "weight": 1.5},
        "asked": {"source": "files", "files": ["asked.jsonl"], "template": "{q}\n", "response": "{a}"},
    },
    "filters": {"gopher_quality": {"min_words": 5}},
    "near_duplicates": {"threshold": 0.8, "ngram": 3},
    "decontaminate": {"ngram": 8, "files": ["benchmark.csv"]},
}


def test_any_partition_gives_the_same_corpus(fresh):
    (fresh / "text").mkdir()
    prose = [sentence(seed, 30) for seed in range(120)]
    for number, texts in enumerate((prose[:80], prose[80:100], [*prose[100:], f"{prose[0]} more"])):
        (fresh / f"text/{number}.txt").write_text("\n".join([*texts, "too short\n"]))
    (fresh / "exam.txt").write_text(f"{sentence(500, 30)} {' '.join(prose[1].split()[3:12])}\n")
    (fresh / "benchmark.csv").write_text(f"text\n{' '.join(prose[2].split()[-8:])}\n")
    asked = [{"q": sentence(seed, 8), "a": sentence(seed + 1, 9)} for seed in range(1000, 1100, 2)]
    (fresh / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    write_yaml(fresh / "config.yaml", {"corpus": CORPUS})
    fresh.steady = True
    fresh("corpus", "--cores", "1")
    folder = fresh / "results/corpus"
    whole = json.loads((folder / "corpus.json").read_text())
    rows = {split: pq.read_table(folder / f"{split}.parquet").to_pylist() for split in SPLITS}
    train = whole["splits"]["train"]
    assert train["dropped_gopher_quality_words"] == 3
    # What is held out wins over what is similar to it.
    assert sum(split.get("dropped_near_duplicates", 0) for split in whole["splits"].values()) == 1
    assert train["dropped_contaminated"] == len(whole["decontaminate"]["examples"]) >= 1
    assert whole["sources"]["prose"]["weight"] == 1.5
    spans = [(row["text"], *row["responses"][0].values()) for row in rows["train"]]
    answers = [text[start:stop] for text, start, stop in spans if start]
    assert set(answers) <= {row["a"] for row in asked}
    assert len(answers) == whole["sources"]["asked"]["splits"]["train"]["documents"]

    # As if the text were so large that the first file is read in pieces, and each part has files of its own.
    fresh.steady, sources = False, fresh / "scripts/tpulm/corpus/sources.py"
    small = sources.read_text().replace("PART_BYTES = 32 << 20", "PART_BYTES = 16000")
    sources.write_text(small.replace("WHOLE_PARTS = 64", "WHOLE_PARTS = 3"))
    fresh("corpus", "--cores", "2")
    divided = json.loads((folder / "corpus.json").read_text())
    for split, expected in rows.items():
        files = sorted((folder / split).glob("*.parquet"))
        found = [row for file in files for row in pq.read_table(file).to_pylist()]
        if split == "train":  # what is taken twice comes a second time at the end of each part
            found, expected = (sorted(some, key=lambda row: row["text"]) for some in (found, expected))
        assert len(files) == 5 and found == expected
        for corpus in (divided, whole):
            assert corpus["splits"][split].pop("fingerprint")
    assert divided == whole
