"""Data preparation beside the tools that it replaces: from a text file to records, and from a text to a vocabulary.

    python benchmarks/data.py [--runs 5] [--megabytes 36] [--more-megabytes 400]

Each pair is measured by turns in one run, in processes of their own, on the text of benchmarks/docstrings.py. A time is
that of the whole process; CPU time is that of all its processes together.

- shards: `snakemake results/tfrecords/manifest.json`, from the text file to the manifest, Snakemake's own start
  included, beside benchmarks/published_shards.py. Both have the same tokenizer ready. The ids of a shard are compared
  with those of `tokenizer.encode`.
- vocabulary: `snakemake results/tokenizer/tokenizer.json`, beside the trainer of the `tokenizers` library on the same
  documents, and the tokens per word of both on documents that neither has seen. The library's trainer fails on some
  texts: both get the documents without UNTRAINABLE; where it fails on those, half of them, and so on.
- what Snakemake takes: a start with nothing to do; a job beyond its work, from one tiny text in 2 and in 42 shards.

Prints a table of medians and ratios, and writes it to benchmarks/results/data.md.
"""

import argparse
import datetime
import json
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import docstrings
import numpy as np
from conftest import Workflow
from ruamel.yaml import YAML
from tokenizers import Tokenizer
from tpulm.corpus.documents import read_texts
from tpulm.records.reader import Records
from tpulm.tokenization import folder

ROOT = Path(__file__).parents[1]
BENCHMARKS, RESULT = ROOT / "benchmarks", ROOT / "benchmarks" / "results" / "data.md"
VOCABULARY, LENGTH = 10_048, 128
SHARD_MEGABYTES = 100  # of text, at the most; two shards at the least
JOBS = 40  # more shards, to see what a job costs
# Any text with this word ends the library's trainer ("likelihood is NAN").
UNTRAINABLE = b'"<UNK>"'
CHECKED = 20_000  # documents of a shard of which the ids are compared
# The trainer of the `tokenizers` library on the documents of a corpus file.
LIBRARY = """
import sys
sys.path.insert(0, sys.argv[1])
from tokenizers import models, trainers
from tpulm.corpus.documents import read_texts
from tpulm.tokenization.pipeline import Recipe, tokenizer_around
tokenizer = tokenizer_around(models.Unigram(), Recipe("unigram", int(sys.argv[4])))
special = ["[CLS]", "[SEP]", "<unk>", "<pad>", "[MASK]"]
trainer = trainers.UnigramTrainer(vocab_size=int(sys.argv[4]), unk_token="<unk>", special_tokens=special)
tokenizer.train_from_iterator(read_texts(sys.argv[2]), trainer=trainer)
tokenizer.save(sys.argv[3])
"""


class Time(NamedTuple):
    """What a command took, in seconds: by the clock, and the CPU time of all its processes."""

    clock: float
    cpu: float


class Failed(Exception):
    """A command ended with an error."""


def timed(command: list, **options: object) -> Time:
    """Return what a command takes. Raises Failed, with the end of what it printed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)  # type: ignore[call-overload]
    clock, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return Time(clock, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def by_turns(runs: int, *ways: Callable[[], Time]) -> list[list[Time]]:
    """Return what each way takes, run by turns."""
    found: list[list[Time]] = [[] for _ in ways]
    for _ in range(runs):
        for way, times in zip(ways, found, strict=True):
            times.append(way())
            print(f"{times[-1].clock:.1f} s, {times[-1].cpu:.1f} s of CPU time", file=sys.stderr)
    return found


def median(times: list[Time]) -> Time:
    """Return the medians of both."""
    return Time(*map(statistics.median, zip(*times, strict=True)))


def configure(workflow: Workflow, text: Path, tokenizer: dict, shards: int = 2) -> None:
    """Write config.yaml: only a corpus, a tokenizer and records, those of train in so many shards."""
    config = {
        "title": "Data",
        "corpus": {"source": "files", "files": [str(text)], "sample_by": "line",
                   "held_out": {"validation": 0.01, "test": 0.01}},
        "tokenizer": tokenizer,
        "tfrecords": {"sequence_length": LENGTH, "shards": {"train": shards, "validation": 1, "test": 1}},
    }  # fmt: skip
    with open(workflow / "config.yaml", "w") as file:
        YAML(typ="safe", pure=True).dump(config, file)


def snakemake(workflow: Workflow, *targets: str) -> Time:
    """Return what `snakemake` takes for targets."""
    command = [str(Path(sys.executable).with_name("snakemake")), *targets, "--cores", str(os.cpu_count())]
    return timed(command, cwd=workflow.folder)


def check_ids(workflow: Workflow) -> None:
    """Compare the records of a shard with `tokenizer.encode`, document by document."""
    tokenizer = folder.load(workflow / "results/tokenizer/tokenizer.json")
    manifest = json.loads((workflow / "results/tfrecords/manifest.json").read_text())
    stop = min(manifest["splits"]["train"]["shards"][0]["documents"], CHECKED)
    documents = read_texts(str(workflow / "results/corpus/train.parquet"), slice(0, stop))
    expected = [token for texts in documents for text in texts for token in tokenizer.encode(text).ids]
    records = Records(workflow / "results/tfrecords/manifest.json", "train")
    ids = records.read(np.arange(len(expected) // LENGTH)).ravel()
    assert len(ids) and (ids == expected[: len(ids)]).all()


def measure_shards(workflow: Workflow, text: Path, kept: Path, scratch: Path, runs: int) -> list[list[Time]]:
    """Return what both ways to shards take.

    kept  folder of the tokenizer
    """
    output = scratch / "published"
    configure(workflow, text, {"pretrained": str(kept)}, max(2, round(text.stat().st_size / 1e6 / SHARD_MEGABYTES)))
    shutil.rmtree(workflow / "results")
    snakemake(workflow, "results/tokenizer/tokenizer.json")

    def ours() -> Time:
        for made in ("corpus", "tfrecords"):
            shutil.rmtree(workflow / "results" / made, ignore_errors=True)
        return snakemake(workflow, "results/tfrecords/manifest.json")

    def published() -> Time:
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir()
        command = [sys.executable, str(BENCHMARKS / "published_shards.py"), str(text), str(kept), str(output)]
        return timed(command, env=os.environ | {"HF_HUB_OFFLINE": "1"})

    times = by_turns(runs, ours, published)
    shutil.rmtree(output)
    check_ids(workflow)
    return times


def measure_trainers(workflow: Workflow, text: Path, scratch: Path, runs: int) -> tuple[float, list[list[Time]], str]:
    """Return of how many megabytes both trainers made a vocabulary, what they took, and their tokens per word.

    The vocabulary of the whole text is left in the folder `tokenizer` of `scratch`.
    """
    other, ours = scratch / "library.json", workflow / "results/tokenizer/tokenizer.json"
    corpus = workflow / "results/corpus/train.parquet"
    library = [sys.executable, "-c", LIBRARY, str(ROOT / "scripts"), str(corpus), str(other), str(VOCABULARY)]

    def train() -> Time:
        ours.unlink(missing_ok=True)
        return snakemake(workflow, "results/tokenizer/tokenizer.json")

    part, quality, kept = scratch / "part.txt", "", scratch / "tokenizer"
    configure(workflow, text, {"vocab_size": VOCABULARY})
    train()
    shutil.copytree(workflow / "results/tokenizer", kept)
    lines = [line for line in text.read_bytes().splitlines(keepends=True) if UNTRAINABLE not in line]
    while True:
        part.write_bytes(b"".join(lines))
        configure(workflow, part, {"vocab_size": VOCABULARY})
        shutil.rmtree(workflow / "results", ignore_errors=True)
        snakemake(workflow, "corpus")
        try:
            times = by_turns(runs, train, lambda: timed(library))
            break
        except Failed:
            lines = lines[: len(lines) // 2]
    unseen = [one for texts in read_texts(str(workflow / "results/corpus/test.parquet")) for one in texts]
    words = sum(len(one.split()) for one in unseen)
    for name, path in (("this workflow", ours), ("`tokenizers`", other)):
        encodings = Tokenizer.from_file(str(path)).encode_batch(unseen, add_special_tokens=False)
        quality += f", {name} {sum(len(encoding.ids) for encoding in encodings) / words:.4f}"
    return part.stat().st_size / 1e6, times, quality.removeprefix(", ")


def measure_job(workflow: Workflow, kept: Path, scratch: Path, runs: int) -> tuple[Time, Time]:
    """Return what a start of Snakemake with nothing to do takes, and a job beyond its work."""
    text = scratch / "tiny.txt"
    text.write_text("".join(f"{' '.join(['word', 'text', 'line'] * 60)} {number}\n" for number in range(1000)))

    def shards(count: int) -> Time:
        configure(workflow, text, {"pretrained": str(kept)}, count)
        shutil.rmtree(workflow / "results")
        return snakemake(workflow, "results/tfrecords/manifest.json")

    few, many, start = map(
        median,
        by_turns(
            runs,
            lambda: shards(2),
            lambda: shards(2 + JOBS),
            lambda: snakemake(workflow, "results/tfrecords/manifest.json"),
        ),
    )
    return start, Time((many.clock - few.clock) / JOBS, (many.cpu - few.cpu) / JOBS)


def said_of(runs: int) -> str:
    """Return a sentence on how often the rows of the table were measured."""
    if runs == 1:
        return "Each row has one run."
    return (
        f"The first row has the medians of {runs} alternating runs, with the lowest and highest in brackets. The other "
        "rows have one run."
    )


def row(name: str, times: list[list[Time]], target: str) -> str:
    """Return a row of the table: medians with the lowest and the highest, their ratio, and whether it is too small."""
    cells = []
    for taken in times:
        clock, cpu = zip(*taken, strict=True)
        spread = f" ({min(clock):.1f} to {max(clock):.1f})" if len(taken) > 1 else ""
        cells.append(f"{statistics.median(clock):.1f} s{spread}; {statistics.median(cpu):.1f} s")
    ours, other = map(median, times)
    ratio = f"{other.clock / ours.clock:.1f}; {other.cpu / ours.cpu:.1f}"
    miss = " (miss)" if target and other.clock / ours.clock < float(target) else ""
    return f"| {name} | {' | '.join(cells)} | {ratio}{miss} | {target} |"


def machine() -> str:
    """Return the CPUs and the memory of this machine."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} CPUs ({model[1] if model else platform.machine()}), {memory:.0f} GiB of memory"


def write(lines: list[str], result: Path, command: str) -> None:
    """Write the lines to a file of benchmarks/results, below the command that measured them and today's date (UTC)."""
    result.parent.mkdir(exist_ok=True)
    today = datetime.datetime.now(datetime.UTC).date()
    result.write_text("\n".join([f"`{command}`, {today}.", "", *lines]) + "\n")


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--trainings", type=int, default=1, help="runs of the slow trainer of `tokenizers`")
    parser.add_argument("--megabytes", type=float, default=36)
    parser.add_argument("--more-megabytes", type=float, default=400, help="of a second text, which is measured once")
    arguments = parser.parse_args()
    shards, digests = [], []
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        kept = scratch / "tokenizer"
        workflow = Workflow(scratch / "workflow")
        for size, runs, target in ((arguments.megabytes, arguments.runs, ""), (arguments.more_megabytes, 1, "5")):
            text = scratch / f"{size:g}.txt"
            digests.append(f"{size:g} MB {docstrings.write(text, size)}")
            if not kept.exists():
                trained_on, trained, quality = measure_trainers(workflow, text, scratch, arguments.trainings)
            times = measure_shards(workflow, text, kept, scratch, runs)
            shards.append(row(f"{size:g} MB of text to shards and manifest; `datasets` and TensorFlow", times, target))
        start, job = measure_job(workflow, kept, scratch, min(arguments.runs, 3))
    name = f"{trained_on:.0f} MB of documents to a Unigram vocabulary of {VOCABULARY:,}; `tokenizers`"
    write(
        [
            f"{machine()}, Python {platform.python_version()}. Each cell has the wall time and the CPU time of "
            f"all processes. {said_of(arguments.runs)}",
            "",
            "| task; compared with | this workflow | compared with | ratios | target |",
            "| --- | --- | --- | --- | --- |",
            *shards,
            row(name, trained, "4"),
            "",
            f"A start of Snakemake with nothing to do takes {start.clock:.1f} s ({start.cpu:.1f} s of CPU time). A job "
            f"takes {job.cpu:.2f} s of CPU time in addition to its work. Tokens per word on unseen text: {quality}. "
            f"SHA-256 of the texts: {'; '.join(digests)}.",
        ],
        RESULT,
        "make bench-data",
    )
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
