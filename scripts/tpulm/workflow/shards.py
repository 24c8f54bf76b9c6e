"""Deleted shards: detected by listing folders, and written again before anything reads them.

With every shard as an input of every segment, Snakemake's graph would have hundreds of thousands of edges, and a
missing shard would make finished segments stale. So segments depend on one file of each set of records, shards.json,
as `ancient`. The job that writes it also writes the missing shards. If any job is going to read one of them, it runs
first, in a Snakemake of its own.
"""

import json
import os
from collections.abc import Iterable

from tpulm.core import bucket

# In the environment of a Snakemake that only lists the shards (1), or that goes on after that (2).
PHASE = "TPULM_SHARDS_PHASE"


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


def listed(listing: str) -> set[str]:
    """Return the shards that a set's listing names, without the endings of their files; none where it is damaged.

    listing  a path, or the URL of an object in a bucket
    """
    try:
        with bucket.opened(listing) as file:
            return {shard.rpartition(".")[0] for shards in json.load(file).values() for shard in shards}
    except (ValueError, AttributeError, TypeError):
        return set()
