"""Data preparation of long texts: the memory of each job, processor seconds per MB, and how the words of the text grow.

    python benchmarks/scale.py [--megabytes 500 5000] [--folder FOLDER]

The text is that of benchmarks/docstrings.py, with the edits that bring new words. `snakemake` makes corpus, tokenizer
and shards of each length; meanwhile the peak memory (VmHWM) and the processor time of each process are read from /proc.
Prints tables, and writes them to benchmarks/results/scale.md.
"""

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import docstrings
from conftest import Workflow
from ruamel.yaml import YAML

BENCHMARKS = Path(__file__).parent
SHARD_MEGABYTES = 64
TARGETS = ("corpus", "results/tokenizer/metrics.json", "results/tfrecords/manifest.json")
TICKS = os.sysconf("SC_CLK_TCK")
SCRIPT = re.compile(r"/tmp\w+\.(\w+)\.py")


class Sampler(threading.Thread):
    """Reads what each process of a job has used, five times a second, until it is stopped."""

    def __init__(self, folder: Path):
        """Begin; only the jobs of the workflow in a folder are looked at."""
        super().__init__(daemon=True)
        self.folder, self.ended = str(folder), threading.Event()
        self.seen: dict[tuple[str, str], tuple[float, float]] = {}  # rule and process: MB, seconds
        self.start()

    def run(self) -> None:
        """Read until stopped."""
        while not self.ended.wait(0.2):
            for process in filter(str.isdigit, os.listdir("/proc")):
                try:
                    place = Path("/proc", process)
                    command = (place / "cmdline").read_text()
                    found = SCRIPT.search(command)
                    if found and self.folder in command:
                        memory = int(re.search(r"VmHWM:\s+(\d+)", (place / "status").read_text())[1]) / 1000
                        fields = (place / "stat").read_text().rpartition(")")[2].split()
                        self.seen[found[1], process] = memory, (int(fields[11]) + int(fields[12])) / TICKS
                except (OSError, TypeError):  # it has ended
                    pass

    def by_rule(self) -> dict[str, tuple[int, float, float]]:
        """Return the jobs, seconds and highest memory in MB of each rule."""
        self.ended.set()
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for (rule, _), figures in self.seen.items():
            found[rule].append(figures)
        return {
            rule: (len(jobs), sum(seconds for _, seconds in jobs), max(memory for memory, _ in jobs))
            for rule, jobs in found.items()
        }


def measure(text: Path, megabytes: float, folder: Path, sections: dict) -> tuple[dict, float]:
    """Return what the jobs of each rule used for a text, and the processor seconds of all, Snakemake's too."""
    workflow = Workflow(folder)
    config = {
        "corpus": {"source": "files", "files": [str(text)], "held_out": {"validation": 0.01, "test": 0.01}} | sections,
        "tokenizer": {"vocab_size": 10_048},
        "tfrecords": {"sequence_length": 128, "shards": {"train": max(2, round(megabytes / SHARD_MEGABYTES))}},
    }
    with open(workflow / "config.yaml", "w") as file:
        YAML(typ="safe", pure=True).dump(config, file)
    before, sampler = resource.getrusage(resource.RUSAGE_CHILDREN), Sampler(folder)
    snakemake = str(Path(sys.executable).with_name("snakemake"))
    done = subprocess.run(
        [snakemake, *TARGETS], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(done.stdout[-3000:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return sampler.by_rule(), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def first(text: Path, megabytes: float, target: Path) -> None:
    """Write the first lines of a text to another file."""
    left = megabytes * 1e6
    with open(text, encoding="utf-8") as lines, open(target, "w", encoding="utf-8") as file:
        for line in lines:
            file.write(line)
            left -= len(line) - 1
            if left <= 0:
                return


def growth(text: Path, words: list[int]) -> dict[int, int]:
    """Return how many distinct words are among the first so many of a text, for each of these numbers."""
    known: set[int] = set()
    count, found, wanted = 0, {}, sorted(words)
    with open(text, encoding="utf-8") as lines:
        for line in lines:
            own = line.split()
            while wanted and count + len(own) >= wanted[0]:
                known.update(map(hash, islice(own, wanted[0] - count)))
                found[wanted.pop(0)] = len(known)
            if not wanted:
                return found
            known.update(map(hash, own))
            count += len(own)
    return found


def growth_table(text: Path) -> list[str]:
    """Return the distinct words of the made text beside those of the real text, and what Heaps' law says."""
    numbers: dict[str, int] = {}
    flat = [numbers.setdefault(word, len(numbers)) for text in docstrings.paragraphs() for word in text.split()]
    factor, exponent = docstrings.growth(docstrings.np.array(flat))
    real = [len(flat) >> shift for shift in (4, 3, 2, 1, 0)]
    ends = {count: max(flat[:count]) + 1 for count in real}
    made = growth(text, real + [len(flat) * factor for factor in (2, 4, 8, 16, 32, 64, 128)])
    lines = [
        f"Distinct words of a growing text; Heaps' law, fitted to the real text, is {factor:.1f} n^{exponent:.3f}.",
        "",
        "| words | of the real text | of the made text | by Heaps' law |",
        "| --- | --- | --- | --- |",
    ]
    for count, distinct in made.items():
        shown = f"{ends[count]:,}" if count in ends else ""
        lines.append(f"| {count:,} | {shown} | {distinct:,} | {factor * count**exponent:,.0f} |")
    return lines


def main() -> None:
    """Measure, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[500, 5000])
    parser.add_argument("--folder", type=Path, help="where text and results are; ten times the text fits there")
    parser.add_argument("--text", type=Path, help="a text that benchmarks/docstrings.py has written")
    parser.add_argument("--growth", action="store_true", help="only count the words of the text")
    parser.add_argument("--corpus", default="{}", help="further keys of the corpus' section, YAML")
    arguments = parser.parse_args()
    sections = YAML(typ="safe", pure=True).load(arguments.corpus)
    longest, lines = max(arguments.megabytes), []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        text = arguments.text or Path(temporary, "text.txt")
        if not arguments.text:
            docstrings.write(text, longest)
        for megabytes in [] if arguments.growth else arguments.megabytes:
            own = Path(temporary, "first.txt")
            first(text, megabytes, own)
            rules, seconds = measure(own, megabytes, Path(temporary, "workflow"), sections)
            shutil.rmtree(Path(temporary, "workflow"))
            lines += [
                f"{megabytes:,.0f} MB: {seconds:,.0f} processor seconds, {seconds / megabytes:.4f} per MB.",
                "",
                "| rule | jobs | seconds | seconds per MB | highest memory of a job, MB |",
                "| --- | --- | --- | --- | --- |",
            ]
            for rule, (jobs, taken, memory) in rules.items():
                lines.append(f"| `{rule}` | {jobs} | {taken:,.1f} | {taken / megabytes:.4f} | {memory:,.0f} |")
            lines.append("")
            print(*lines, sep="\n", flush=True)
        lines += growth_table(text)
    (BENCHMARKS / "results" / "scale.md").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
