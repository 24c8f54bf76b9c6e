"""Inputs and params of the rules of publication and archive."""

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from snakemake.io import ancient

from tpulm.config.publications import Publication
from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.specs.artifacts import CARD


def only_here(place: str, main: bool) -> list[str]:
    """Return no inputs. Raises UserError if results are in the bucket `place`, or this is a module, so not `main`."""
    if not main:
        raise UserError(
            "a module of another workflow cannot be archived, because the archive would lack the source and config of "
            "that workflow; run this workflow alone with the same config, which gives the same bytes: "
            "snakemake archive --configfile FILE."
        )
    if place:
        raise UserError(
            f"results are in {place}, and only a local folder can be archived; copy them here first: "
            "gcloud storage cp -r."
        )
    return []


def kept_runs(folder: str) -> list[str]:
    """Return the files of the history in a local folder; for a bucket none, since only the config knows them."""
    paths = [] if bucket.remote(folder) else Path(folder).rglob("[!.]*.json")
    return [f"<results>/history/{path.relative_to(folder).as_posix()}" for path in paths]


def archived(config: Mapping, paths: Sequence[str], overrides: Mapping, target: str, root: Path) -> dict[str, Any]:
    """Return the recipe of an archive, see tpulm.release.archive.archive_files.

    config     with defaults
    paths      files of the config
    overrides  values of --config
    target     path of the archive
    root       folder of the workflow's source
    """
    section = config["archive"]
    # Files are numbered, since several may have one name, and their names can lead anywhere.
    given_files = {
        f"config/given/{number}.yaml": {"path": path, "text": Path(path).read_text(encoding="utf-8")}
        for number, path in enumerate(paths, start=1)
    }
    return {
        **{key: section[key] for key in ("name", "version", "largest_file_mb")},
        "title": config["title"],
        "license": config.get("publish", {}).get("license"),
        "given": given_files,
        "overrides": dict(overrides),
        "completed": {key: value for key, value in config.items() if key != "archive"},
        "target": target,
        "snakemake": metadata.version("snakemake"),
        "root": os.path.relpath(root),
    }


def receipts(section: Mapping | None, published: Iterable[str]) -> list[str]:
    """Return the receipts of artifacts at the places in the section publish. Raises UserError without that section."""
    if section is None:
        raise UserError("publish is missing; set it, such as publish: {hub: OWNER/NAME} or {gcs: gs://BUCKET/PREFIX}.")
    places = [place for place in ("hub", "gcs") if place in section]
    return [f"<results>/publish/{place}/{name}.json" for place in places for name in published]


def inputs_of(publication: Publication) -> dict[str, list]:
    """Return the inputs of jobs that publish an artifact: `files`, its files or its folder, and `changes`.

    Folders, and checkpoints except their cards, are `ancient`: the file of `changes` changes with them.
    """
    files: list = [f"<results>/{file}" for file in publication.files.values()]
    if not publication.changed_by:
        return {"files": files, "changes": []}
    files = [file if file.endswith(f"/{CARD}") else ancient(file) for file in files]
    return {"files": files, "changes": [publication.changed_by]}
