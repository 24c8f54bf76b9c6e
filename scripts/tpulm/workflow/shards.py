"""Deleted shards: a run that would read one ends before its first job.

What reads records depends on their manifest only, so Snakemake does not miss a shard that is gone. It writes it again
where it is asked for the shards themselves: by the target `tfrecords`.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tpulm.config.record_sets import RecordSet
from tpulm.core import bucket
from tpulm.core.errors import UserError


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


def check_shards(
    before: Callable[[Any], Iterable],
    jobs: list,
    record_sets: Mapping[str, RecordSet],
    located: Callable[[str], str],
    target: str,
) -> None:
    """Raise UserError where shards are gone that one of the jobs reads, and that no job writes before it.

    before       returns the jobs that make the inputs of one of Snakemake's
    jobs         those that are going to run
    record_sets  by their folders below results/; located  returns where a folder is
    target       the name of the target that writes shards again
    """
    readers, running = [job for job in jobs if job.input.get("records")], set(jobs)
    manifests = [job for reader in readers for job in before(reader) if job.output.get("manifest")]
    for manifest in dict.fromkeys(manifests):
        # A reader waits for the shards that are written only where it waits for the manifest.
        writers = running.intersection(before(manifest)) if manifest in running else ()
        places = [job.wildcards for job in writers if job.output.get("sidecar")]
        written = {f"{place.split}/{place.shard}-of-{place.shards}" for place in places}
        records = record_sets[manifest.wildcards.records]
        folder = located(f"results/{records.folder}")
        gone = [file for file in missing(folder, records.files) if file.rpartition(".")[0] not in written]
        if gone:
            more, were, them = (f" and {len(gone) - 1} more", "were", "them") if gone[1:] else ("", "was", "it")
            # Snakemake compares objects by their dates alone.
            then = f"; what was trained on {them} is trained again then" if bucket.remote(folder) else ""
            raise UserError(
                f"{gone[0]}{more} of results/{records.folder} {were} deleted, and jobs of this run read {them}; "
                f"snakemake {target}, with the options of this command, writes {them} again with the same bytes{then}."
            )
