"""What the rule of the archive takes: its artifacts, and the config as it was given and completed."""

import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from snakemake.io import local

from tpulm.core import bucket
from tpulm.core.errors import UserError


def only_here(place: str, main: bool) -> list[str]:
    """Return no further input. Raises UserError where results are in a bucket, or this is a module of a workflow."""
    if not main:
        raise UserError(
            "an archive cannot be made of a module of another workflow, whose source and config it would lack; run "
            "this one by itself with the same config, which gives the same bytes: snakemake archive --configfile FILE."
        )
    if place:
        raise UserError(
            f"results are in {place}, and only a local folder can be archived; copy it here first, with .snakemake "
            "and logs: gcloud storage cp -r."
        )
    return []


def signing_key(path: str | None) -> Any:
    """Return the private key as an input that no storage provider takes into its bucket. Raises UserError."""
    if path is None:
        raise UserError("archive.sign is missing in the config; say by which key, such as archive: {sign: key.pem}.")
    if not os.path.isfile(path):
        raise UserError(
            f"archive.sign is {path}, which is no file; a key is made by "
            f"`openssl ecparam -name prime256v1 -genkey -noout -out {path}`."
        )
    return local(path)


def kept_runs(folder: str) -> list[str]:
    """Return the files of the history in the folder where it is; those in a bucket are only known by the config."""
    found = [] if bucket.remote(folder) else Path(folder).rglob("[!.]*.json")
    return [f"results/history/{path.relative_to(folder).as_posix()}" for path in found]


def archived(config: Mapping, paths: Sequence[str], overrides: Mapping, target: str, root: Path) -> dict[str, Any]:
    """Return the recipe of an archive, see tpulm.archive.contents.contents.

    config     completed
    paths      the files that it was given in
    overrides  what --config gave
    target     the archive
    root       folder of the workflow's source
    """
    section = config["archive"]
    # By number: several may have one name, and their names can lead anywhere.
    given = {
        f"config/given/{number}.yaml": {"path": path, "text": Path(path).read_text(encoding="utf-8")}
        for number, path in enumerate(paths, start=1)
    }
    return {
        **{key: section[key] for key in ("name", "version", "largest_file_mb")},
        "title": config["title"],
        "license": config.get("publish", {}).get("license"),
        "given": given,
        "overrides": dict(overrides),
        "completed": {key: value for key, value in config.items() if key != "archive"},
        "target": target,
        "snakemake": metadata.version("snakemake"),
        "root": os.path.relpath(root),
    }
