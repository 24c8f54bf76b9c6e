"""Deleted shards: detected by listing folders, and written again before anything reads them.

With every shard as an input of every segment, Snakemake's graph would have hundreds of thousands of edges, and a
missing shard would make finished segments stale. So segments depend on one file, results/tfrecords/shards.json, as
`ancient`. The job that writes it also writes the missing shards. If any job is going to read one of them, it runs
first, in a Snakemake of its own.
"""

import os
from collections.abc import Iterable, Mapping

from tpulm.config.artifacts import SPLITS
from tpulm.core import bucket

LISTING = "results/tfrecords/shards.json"
# In the environment of a Snakemake that only lists the shards (1), or that goes on after that (2).
PHASE = "TPULM_SHARDS_PHASE"


def shard_names(shards: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the names of each split's shards below results/tfrecords/, without extension.

    shards  how many files each split has
    """
    return {
        split: [f"{split}/{number:05d}-of-{shards[split]:05d}" for number in range(shards[split])] for split in SPLITS
    }


def shard_files(names: Iterable[str]) -> list[str]:
    """Return the files of shards below results/tfrecords/: records, and the index that says where each begins."""
    return [name + extension for name in names for extension in (".tfrecord", ".index")]


def missing(folder: str, files: Iterable[str]) -> list[str]:
    """Return those of `files` that are not in `folder`, a path or the URL of one in a bucket."""
    if bucket.remote(folder):
        present = set(bucket.sizes(folder))
        return [file for file in files if file not in present]
    found: dict[str, set[str]] = {}
    absent = []
    for file in files:
        parent, name = os.path.split(file)
        if parent not in found:
            path = os.path.join(folder, parent)
            found[parent] = set(os.listdir(path)) if os.path.isdir(path) else set()
        if name not in found[parent]:
            absent.append(file)
    return absent
