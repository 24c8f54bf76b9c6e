"""Read the records of a shard back, each held against the manifest."""

from pathlib import Path

from tpulm.core.errors import UserError
from tpulm.records.checks import damage_of
from tpulm.records.tfrecord import scan


def read_shard(path: Path, manifest: dict) -> list[int]:
    """Return where each record of a shard ends. Raises UserError for one that is not as it was written."""
    ends: list[int] = []
    start = 0
    for stop, data in scan(path):
        damage = damage_of(data, manifest)
        if damage:
            raise UserError(f"{path} is damaged at bytes {start} to {stop} (record {len(ends)}): {damage}")
        ends.append(stop)
        start = stop
    return ends
