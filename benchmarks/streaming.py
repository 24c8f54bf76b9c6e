"""How fast are records read from a bucket that answers 20 ms late, next to the same records on the local disk?

    python benchmarks/streaming.py [--runs 5] [--records 160000] [--delay 0.02]

Makes a set of records that is several times as large as what a reader holds in memory, and reads one epoch of it in
the order of training, batch by batch, masked as a trainer gets it: from the disk, whose files the kernel was told to
forget or has in its cache, and from a bucket on loopback (tests/loopback_bucket.py), in turn. Prints the medians and
their ratios. Bucket and reader share this machine's cores, so that the bucket's figure is a lower bound.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import numpy as np
from loopback_bucket import BUCKET, served
from tpulm.core import bucket
from tpulm.records import order
from tpulm.records.masked_batches import training_batch
from tpulm.records.packing import unpadded
from tpulm.records.reader import Records
from tpulm.records.streaming import open_records
from tpulm.records.tfrecord import write_records

LENGTH, VOCABULARY, SHARDS, BATCH = 128, 25_000, 8, 256
RECIPE = {
    "batch_size": BATCH,
    "seed": 0,
    "masking": {"mlm_probability": 0.15, "mask_replace_prob": 0.8, "random_replace_prob": 0.1},
}


def write(folder: Path, records: int) -> Path:
    """Write shards of random tokens and their manifest; return its path."""
    (folder / "train").mkdir()
    dice, shards = np.random.default_rng(0), []
    for number in range(SHARDS):
        name = f"train/{number:05d}-of-{SHARDS:05d}"
        blocks = (dice.integers(5, VOCABULARY, (1000, LENGTH)) for _ in range(records // SHARDS // 1000))
        written = write_records(folder / f"{name}.tfrecord", folder / f"{name}.index", map(unpadded, blocks))
        shards.append({"file": f"{name}.tfrecord", "index": f"{name}.index"} | written)
    special = {"cls": 0, "sep": 1, "unk": 2, "pad": 3, "mask": 4}
    manifest = {
        "sequence_length": LENGTH,
        "tokens_per_record": LENGTH,
        "packing": "concat",
        "vocab_size": VOCABULARY,
        "special_ids": special,
    }
    path = folder / "manifest.json"
    path.write_text(json.dumps(manifest | {"splits": {"train": {"shards": shards}}}))
    return path


def forget(folder: Path) -> None:
    """Tell the kernel to forget what it holds of the files of a folder."""
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def epoch(records: Records) -> None:
    """Read every record of a split once, in the order of training."""
    for step in range(len(records) // BATCH):
        training_batch(records, RECIPE, step)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--records", type=int, default=160_000)
    parser.add_argument("--delay", type=float, default=0.02, help="seconds added to every request")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        manifest = write(folder, arguments.records)
        size = sum(path.stat().st_size for path in (folder / "train").iterdir())
        held = 2 * order.WINDOW * order.BLOCK * size / arguments.records
        print(f"{size / 1e6:.0f} MB of records, of which a reader holds {held / 1e6:.0f} MB", flush=True)
        with served(folder) as server:
            os.environ["STORAGE_EMULATOR_HOST"] = server.url
            for path in (folder / "train").iterdir():
                server.put(f"set/train/{path.name}", path.read_bytes())
            server.put("set/manifest.json", manifest.read_bytes())
            bucket.connection()
            server.faults(delay=arguments.delay)
            openers = {
                "local disk, forgotten by the kernel": lambda: Records(manifest, "train"),
                "local disk, in the kernel's cache": lambda: Records(manifest, "train"),
                "bucket": lambda: open_records(f"gs://{BUCKET}/set/manifest.json", "train"),
            }
            rates: dict[str, list[float]] = {name: [] for name in openers}
            for _ in range(arguments.runs):
                for name, opened in openers.items():
                    if "forgotten" in name:
                        forget(folder / "train")
                    start = time.perf_counter()
                    epoch(opened())
                    rates[name].append(arguments.records / (time.perf_counter() - start))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for name, median in medians.items():
        print(f"{name}: {median:,.0f} records/s ({median * LENGTH:,.0f} tokens/s)", flush=True)
    for name in list(medians)[:2]:
        ratio = medians["bucket"] / medians[name]
        print(f"bucket, {arguments.delay * 1000:.0f} ms added: {ratio:.0%} of {name} (medians of {arguments.runs})")


if __name__ == "__main__":
    main()
