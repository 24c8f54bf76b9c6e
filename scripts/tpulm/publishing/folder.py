"""Folders of a bucket: the objects that differ are written, and nothing else."""

import base64
import hashlib
from collections.abc import Callable, Mapping

from tpulm.core import bucket
from tpulm.publishing.contents import Content, hashes, in_order, outdated


def publish(recipe: Mapping, found: Mapping[str, Content], say: Callable[[str], None]) -> dict:
    """Bring a folder of a bucket to hold these files; return the receipt.

    recipe  folder, gs://BUCKET/NAME; checkpoint, whether files of other checkpoints stay
    found   the files by their paths there

    Objects that arrived before a connection broke are not sent again. The receipt has `files`, the SHA-256 of each.
    Raises UserError.
    """
    folder = recipe["folder"]
    there = bucket.objects(folder)
    changed = in_order(path for path, content in found.items() if path not in there or there[path].md5 != md5(content))
    for path in changed:
        bucket.upload(found[path].path, f"{folder}/{path}")
    gone = outdated(there, found, recipe["checkpoint"])
    bucket.delete(f"{folder}/{path}" for path in gone)
    megabytes = sum(found[path].bytes for path in changed) / 1e6
    say(f"{folder}: {len(changed)} of {len(found)} files, {megabytes:,.1f} MB, {len(gone)} deleted")
    return {"files": hashes(found)}


def md5(content: Content) -> str:
    """Return the MD5 of a file as Google writes it: in base64."""
    with open(content.path, "rb") as file:
        return base64.b64encode(hashlib.file_digest(file, "md5").digest()).decode()
