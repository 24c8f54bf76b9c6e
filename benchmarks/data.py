"""Data preparation beside the tools that it replaces: from a text file to records, and from a text to a tokenizer.

    python benchmarks/data.py [--runs 5] [--megabytes 36]

Each pair is measured by turns in one run, in processes of their own, on the text of benchmarks/docstrings.py:

- shards: `snakemake results/tfrecords/manifest.json` with an existing tokenizer, from the text file to the manifest,
  Snakemake's own start included, beside benchmarks/published_shards.py. The ids of a shard are compared with those
  of `tokenizer.encode`.
- job: what a job costs beyond its work, from the same tiny text in 2 and in 42 shards.
- tokenizer: rule train_tokenizer's script, beside the trainer of the `tokenizers` library on the same documents, and
  the tokens per word of both on documents that neither has seen.

Prints a table of medians and ratios, and writes it to benchmarks/results/data.md.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import docstrings
import numpy as np
from conftest import Workflow
from ruamel.yaml import YAML
from tokenizers import Tokenizer
from tpulm.corpus.reader import read_texts
from tpulm.records.reader import Records
from tpulm.tokenization import folder

BENCHMARKS = Path(__file__).parent
VOCABULARY = 10_048
JOBS = 40  # more shards, to see what a job costs
# The trainer of the `tokenizers` library on the documents of a corpus file.
LIBRARY = """
import sys
sys.path.insert(0, sys.argv[1])
from tokenizers import models, trainers
from tpulm.corpus.reader import read_texts
from tpulm.tokenization.pipeline import untrained
tokenizer = untrained(models.Unigram())
special = ["[CLS]", "[SEP]", "<unk>", "<pad>", "[MASK]"]
trainer = trainers.UnigramTrainer(vocab_size=int(sys.argv[4]), unk_token="<unk>", special_tokens=special)
tokenizer.train_from_iterator(read_texts(sys.argv[2]), trainer=trainer)
tokenizer.save(sys.argv[3])
"""


def configure(workflow: Workflow, text: Path, tokenizer: dict, shards: int = 2) -> None:
    """Write config.yaml: only a corpus, a tokenizer and records, those of train in so many shards."""
    config = {
        "title": "Data",
        "corpus": {"source": "files", "files": [str(text)], "sample_by": "line",
                   "held_out": {"validation": 0.01, "test": 0.01}},
        "tokenizer": tokenizer,
        "tfrecords": {"sequence_length": 128, "shards": {"train": shards, "validation": 1, "test": 1}},
    }  # fmt: skip
    with open(workflow / "config.yaml", "w") as file:
        YAML(typ="safe", pure=True).dump(config, file)


def timed(command: list[str], **options: object) -> float:
    """Return how long a command takes, in seconds."""
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return time.perf_counter() - start


def snakemake(workflow: Workflow, *targets: str) -> float:
    """Return how long `snakemake` takes for targets."""
    return timed([str(Path(sys.executable).with_name("snakemake")), *targets, "--cores", str(os.cpu_count())],
                 cwd=workflow.folder)  # fmt: skip


def check_ids(workflow: Workflow) -> None:
    """Compare the records of a shard with `tokenizer.encode`, document by document."""
    tokenizer = folder.load(workflow / "results/tokenizer/tokenizer.json")
    part = json.loads((workflow / "results/tfrecords/train/ranges.json").read_text())[0]
    records = Records(workflow / "results/tfrecords/manifest.json", "train")
    ids = records.read(np.arange(records.shards[0]["records"])).ravel()
    stream = (
        token
        for texts in read_texts(str(workflow / "results/corpus/train.parquet"), part["start"], part["stop"])
        for text in texts
        for token in tokenizer.encode(text).ids
    )
    expected = np.fromiter(stream, np.int32)
    assert len(expected) - len(ids) < 128 and (ids == expected[: len(ids)]).all()


def measure_shards(workflow: Workflow, text: Path, scratch: Path, runs: int) -> dict[str, list[float]]:
    """Return the seconds of both ways to shards, by turns."""
    kept = scratch / "tokenizer"
    shutil.copytree(workflow / "results/tokenizer", kept)
    configure(workflow, text, {"pretrained": str(kept)})
    times: dict[str, list[float]] = {"this workflow": [], "published": []}
    for _ in range(runs):
        shutil.rmtree(workflow / "results")
        times["this workflow"].append(snakemake(workflow, "results/tfrecords/manifest.json"))
        output = scratch / "published"
        output.mkdir()
        command = [sys.executable, str(BENCHMARKS / "published_shards.py"), str(text), str(kept), str(output)]
        times["published"].append(timed(command, env=os.environ | {"HF_HUB_OFFLINE": "1"}))
        shutil.rmtree(output)
    check_ids(workflow)
    return times


def measure_tokenizer(workflow: Workflow, scratch: Path, runs: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the seconds of both trainers, by turns, and the tokens per word of their tokenizers on unseen text.

    Those of the `tokenizers` library are absent where its trainer fails on the text.
    """
    corpus, other = workflow / "results/corpus/train.parquet", scratch / "library.json"
    ours = workflow / "results/tokenizer/tokenizer.json"
    times: dict[str, list[float]] = {"this workflow": [], "tokenizers": []}
    for _ in range(runs):
        ours.unlink(missing_ok=True)
        times["this workflow"].append(snakemake(workflow, "results/tokenizer/tokenizer.json"))
        command = [
            sys.executable,
            "-c",
            LIBRARY,
            str(BENCHMARKS.parent / "scripts"),
            str(corpus),
            str(other),
            str(VOCABULARY),
        ]
        start = time.perf_counter()
        if subprocess.run(command, capture_output=True).returncode == 0:
            times["tokenizers"].append(time.perf_counter() - start)
    unseen = [text for texts in read_texts(str(workflow / "results/corpus/test.parquet")) for text in texts]
    words = sum(len(text.split()) for text in unseen)
    quality = {}
    for name, path in (("this workflow", ours), ("tokenizers", other)):
        if path.is_file():
            encodings = Tokenizer.from_file(str(path)).encode_batch(unseen, add_special_tokens=False)
            quality[name] = sum(len(encoding.ids) for encoding in encodings) / words
    return times, quality


def measure_job(workflow: Workflow, scratch: Path, runs: int) -> float:
    """Return the seconds that a job costs beyond its work, on all processors together."""
    text, kept = scratch / "tiny.txt", scratch / "tokenizer"
    text.write_text("".join(f"{' '.join(['word', 'text', 'line'] * 60)} {number}\n" for number in range(1000)))
    times: dict[int, list[float]] = {2: [], 2 + JOBS: []}
    for _ in range(runs):
        for shards, taken in times.items():
            configure(workflow, text, {"pretrained": str(kept)}, shards)
            shutil.rmtree(workflow / "results")
            taken.append(snakemake(workflow, "results/tfrecords/manifest.json"))
    few, many = map(statistics.median, times.values())
    return (many - few) / JOBS


def row(name: str, times: dict[str, list[float]]) -> str:
    """Return a row of the table: medians with the lowest and the highest, and their ratio."""
    medians = [f"{statistics.median(t):.1f} s ({min(t):.1f} to {max(t):.1f})" if t else "fails" for t in times.values()]
    one, other = times.values()
    ratio = f"{statistics.median(other) / statistics.median(one):.1f} x" if other else ""
    return f"| {name} | {' | '.join(medians)} | {ratio} |"


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--trainings", type=int, default=1, help="runs of the slow trainer of `tokenizers`")
    parser.add_argument("--megabytes", type=float, default=36)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        text = scratch / "text.txt"
        digest = docstrings.write(text, arguments.megabytes)
        workflow = Workflow(scratch / "workflow")
        configure(workflow, text, {"vocab_size": VOCABULARY})
        snakemake(workflow, "corpus")
        trained, quality = measure_tokenizer(workflow, scratch, arguments.trainings)
        written = measure_shards(workflow, text, scratch, arguments.runs)
        job = measure_job(workflow, scratch, min(arguments.runs, 3))
    lines = [
        f"{arguments.megabytes:g} MB of docstrings (SHA-256 {digest[:12]}), {os.cpu_count()} processors, "
        f"Python {platform.python_version()}; medians of {arguments.runs} runs by turns (trainers: "
        f"{arguments.trainings}), lowest and highest in brackets.",
        "",
        "| from | this workflow | beside it | ratio |",
        "| --- | --- | --- | --- |",
        row("text file to shards and manifest; `datasets` and TensorFlow", written),
        row(f"documents to a Unigram vocabulary of {VOCABULARY:,}; `tokenizers`", trained),
        "",
        "Tokens per word on unseen text: " + ", ".join(f"{name} {value:.4f}" for name, value in quality.items()) + ".",
        f"A job costs {job:.2f} s beyond its work, with {os.cpu_count()} jobs at once.",
    ]
    results = BENCHMARKS / "results"
    results.mkdir(exist_ok=True)
    (results / "data.md").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
