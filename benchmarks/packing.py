"""Trained tokens a second of movie reviews: documents packed apart (`packing: segments`) beside one a record (`pad`).

    python benchmarks/packing.py [--rounds 5] [--texts FILE.jsonl]
    python benchmarks/packing.py --quick          tiny models and one round; nothing is written

- tokens: how much of a record of 512 tokens are tokens of reviews, by this workflow's packing. The lengths of the
  reviews are drawn: logarithms of words with mean 5.25 and standard deviation 0.65, those of the Large Movie Review
  Dataset (Maas et al. 2011), 1.33 tokens a word. With --texts they are those of a file, a line a JSON object with
  `text`.
- on a TPU: the estimated time of a step of both, by their plans for one v5e chip, where attention is a kernel that
  tells documents apart without a mask in memory.
- here: steps of a small RoBERTa on the CPUs, by turns; attention is plain.

Prints a table, and writes it to benchmarks/results/packing.md.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import data  # it also finds the package
import numpy as np
import tpu
from tpulm.core.accelerators import topology
from tpulm.records.shards import Layout, pack
from worker import Worker

HERE = Path(__file__).parent
RESULT = HERE / "results/packing.md"
LENGTH, DOCUMENTS, SLICE = 512, 25_000, "v5e-1"
MEAN, DEVIATION, TOKENS_PER_WORD, SPECIAL = 5.25, 0.65, 1.33, 2
PACKINGS = ("pad", "segments")
# Records of a step on the CPUs, and its model.
RECORDS, SMALL = 8, {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}


def lengths_of(texts: Path | None) -> np.ndarray:
    """Return the tokens of each review, special tokens included: int64 [documents]."""
    if texts:
        words = np.array([len(json.loads(line)["text"].split()) for line in open(texts, encoding="utf-8")])
    else:
        words = np.random.default_rng(0).lognormal(MEAN, DEVIATION, DOCUMENTS)
    return (words * TOKENS_PER_WORD + SPECIAL).astype(np.int64)


def shares(lengths: np.ndarray) -> dict[str, float]:
    """Return which share of the positions of a record are tokens of reviews, by packing."""
    ids = np.zeros(lengths.sum(), np.int32)
    found = {}
    for packing in PACKINGS:
        packer = Layout(packing, LENGTH, LENGTH, pad=1, suffix_tokens=1).packer()
        blocks = list(pack([(ids, lengths)], packer))
        found[packing] = sum(int(block["attention_mask"].sum()) for block in blocks) / sum(
            block["attention_mask"].size for block in blocks
        )
    return found


def recipes(packing: str, tiny: bool) -> dict[str, tuple[str, dict]]:
    """Return stage and recipe of the runs that are planned, by name."""
    return {name: (run["stage"], run["recipe"] | {"packing": packing}) for name, run in tpu.runs(1, tiny).items()}


def estimates(tiny: bool) -> dict[str, dict[str, float]]:
    """Return the estimated seconds of a step on the slice, by run and packing."""
    # A process of its own: JAX's settings are made once.
    found = json.loads(subprocess.check_output([sys.executable, __file__, "--plan", *(["--quick"] if tiny else [])]))
    return {name: {packing: found[packing][name] for packing in PACKINGS} for name in found["pad"]}


def plan(tiny: bool) -> None:
    """Print what `estimates` reads."""
    import plan_table

    slice_ = topology(SLICE)
    stdout = os.dup(1)
    os.dup2(2, 1)  # what the compiler says
    devices = plan_table.devices_of(slice_)
    from tpulm.planning.compiled import compiled
    from tpulm.planning.estimate import times

    found: dict[str, dict[str, float]] = {}
    for packing in PACKINGS:
        found[packing] = {}
        for name, (stage, recipe) in recipes(packing, tiny).items():
            program, used = plan_table.lowered_run({"stage": stage, "recipe": recipe}, devices, name)
            found[packing][name] = times(compiled(program, slice_, used), slice_)["estimated_seconds"]
    os.write(stdout, json.dumps(found).encode())


def measured(rounds: int, tiny: bool) -> dict[str, list[float]]:
    """Return the seconds of a step of a small RoBERTa here, in each round, by packing."""
    _, recipe = recipes("pad", tiny=True)["roberta-base"]
    recipe |= {"sequence_length": LENGTH, "batch_size": 2 if tiny else RECORDS, "precision": "float32"}
    recipe["model"] = recipe["model"] | {"max_position_embeddings": LENGTH + 2} | ({} if tiny else SMALL)
    steps = 1 if tiny else 5
    with tempfile.TemporaryDirectory() as folder:
        workers = {}
        for packing in PACKINGS:
            job = {"stage": "mlm", "recipe": recipe | {"packing": packing}, "threads": 2, "devices": 1}
            command = [sys.executable, HERE / "jax_worker.py", json.dumps(job)]
            workers[packing] = Worker(command, Path(folder) / packing / "log")
            workers[packing].ask("train 2")
        seconds: dict[str, list[float]] = {packing: [] for packing in PACKINGS}
        for _ in range(rounds):
            for packing, worker in workers.items():
                seconds[packing].append(worker.ask(f"train {steps}")["seconds"] / steps)
        for worker in workers.values():
            worker.end()
    return seconds


def row(name: str, where: str, seconds: dict[str, list[float]], records: int, share: dict[str, float]) -> str:
    """Return a row: milliseconds of a step and trained tokens a second of both; a ratio is that of a round."""
    speeds = {
        packing: [records * LENGTH * share[packing] / value for value in seconds[packing]] for packing in PACKINGS
    }
    ratios = [packed / padded for packed, padded in zip(speeds["segments"], speeds["pad"], strict=True)]
    spread = f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else ""
    cells = [f"{1e3 * statistics.median(seconds[packing]):,.1f}" for packing in PACKINGS]
    cells += [f"{statistics.median(speeds[packing]):,.0f}" for packing in PACKINGS]
    return f"| {name} | {where} | {' | '.join(cells)} | {statistics.median(ratios):.2f}{spread} |"


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--quick", action="store_true", help="at tiny size; nothing is written")
    parser.add_argument("--plan", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plan:
        plan(arguments.quick)
        return
    lengths = lengths_of(arguments.texts)
    share = shares(lengths)
    lines = [
        f"Of {len(lengths):,} reviews, {lengths.mean():.0f} tokens in the mean, {share['pad']:.1%} of the positions of "
        f"a record of {LENGTH} are tokens with `packing: pad`, and {share['segments']:.0%} with `packing: segments`. "
        "Steps on a TPU are estimates of plans for one v5e chip; those here were measured by turns on "
        f"{data.machine()}, Python {platform.python_version()}, medians of {arguments.rounds} rounds with the lowest "
        "and the highest.",
        "",
        "| model | on | ms a step, pad | segments | trained tokens/s, pad | segments | ratio |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    runs = tpu.runs(1, arguments.quick)
    for name, seconds in estimates(arguments.quick).items():
        records = runs[name]["recipe"]["batch_size"]
        found = {packing: [value] for packing, value in seconds.items()}
        lines.append(row(runs[name]["title"], "v5e, estimated", found, records, share))
    here = measured(arguments.rounds, arguments.quick)
    records = 2 if arguments.quick else RECORDS
    lines.append(row(f"RoBERTa of 2 x 128, {LENGTH} tokens, {records} records", "CPUs", here, records, share))
    if not arguments.quick:
        data.write(lines, RESULT, "make bench-packing")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
