"""TFRecord files that were made elsewhere: which files the config names."""

import glob
import os
from collections.abc import Mapping, Sequence

from tpulm.config.artifacts import SPLITS
from tpulm.core import bucket
from tpulm.core.errors import UserError


def shard_files(files: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return the files of each split in the order of their names; what tfrecords.files says, by split.

    Raises UserError for a glob without files, and for a file that is in two splits.
    """
    found = {split: tuple(sorted({path for one in files[split] for path in matching(split, one)})) for split in SPLITS}
    seen: dict[str, str] = {}
    for split, paths in found.items():
        for path in paths:
            other = seen.setdefault(os.path.normpath(path), split)
            if other != split:
                raise UserError(
                    f"tfrecords.files: {path} is in {other} and in {split}; allowed: each file in one split, since "
                    "models are measured on records that they are not trained on."
                )
    return found


def matching(split: str, pattern: str) -> list[str]:
    """Return the files, or objects gs://BUCKET/NAME, that a glob of a split stands for. Raises UserError."""
    if bucket.remote(pattern):
        paths = list(bucket.matching(pattern))
    else:
        paths = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    if not paths:
        hint = f", which is a folder; allowed: files, such as {os.path.join(pattern, '*.tfrecord')}"
        raise UserError(f"tfrecords.files.{split}: no file matches {pattern}{hint if os.path.isdir(pattern) else ''}.")
    return paths


def check_records_elsewhere(config: Mapping) -> None:
    """Check what records that were made elsewhere need: the tokenizer that they were made with. Raises UserError."""
    if config.get("tfrecords", {}).get("source") != "files":
        return
    if "pretrained" not in config["tokenizer"]:
        raise UserError(
            "tfrecords.source is files, but the tokenizer is trained here; allowed: tokenizer.pretrained, the one that "
            "the files were made with."
        )
    if config["tfrecords"]["packing"] == "segments":
        raise UserError(
            "tfrecords.packing is segments with source: files, whose records do not tell documents apart; allowed: "
            "concat, pad."
        )
