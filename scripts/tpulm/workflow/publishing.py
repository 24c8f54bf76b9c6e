"""What the rules of cards, publication and archive need to know of each artifact: inputs and params."""

import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from snakemake.io import ancient, local

from tpulm.config.publications import (
    CARD,
    CHECKPOINT_CARDS,
    Publication,
    branch_of,
    card_recipe,
    chosen,
    croissant_of,
    facts_of,
    folder_name,
    newest_of,
    publications_of,
    repository_name,
)
from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.workflow.start import or_exit


def only_here(place: str, main: bool) -> list[str]:
    """Return no further input. Raises UserError where results are in a bucket, or this is a module of a workflow."""
    if not main:
        raise UserError(
            "a module of another workflow cannot be archived, because the archive would lack the source and config of "
            "that workflow; run this workflow alone with the same config, which gives the same bytes: "
            "snakemake archive --configfile FILE."
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
        raise UserError("archive.sign is missing; set it to a private key, such as archive: {sign: key.pem}.")
    if not os.path.isfile(path):
        raise UserError(
            f"archive.sign is {path}, which is not a file; to create a key: "
            f"`openssl ecparam -name prime256v1 -genkey -noout -out {path}`."
        )
    return local(path)


def kept_runs(folder: str) -> list[str]:
    """Return the files of the history in the folder where it is; those in a bucket are only known by the config."""
    found = [] if bucket.remote(folder) else Path(folder).rglob("[!.]*.json")
    return [f"<results>/history/{path.relative_to(folder).as_posix()}" for path in found]


def archived(config: Mapping, paths: Sequence[str], overrides: Mapping, target: str, root: Path) -> dict[str, Any]:
    """Return the recipe of an archive, see tpulm.release.archive.contents.

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


def no_place() -> None:
    """Raise the UserError of a config that names no place to publish to."""
    raise UserError("publish is missing; set it, such as publish: {hub: OWNER/NAME} or {gcs: gs://BUCKET/PREFIX}.")


class Publishing:
    """The publications of a config.

    cards      what can be published, by the folder below results/ that has its card: the wildcard `card`
    published  what is published, by name: the wildcard `artifact`
    checkpoint_cards  the checkpoints that have a card because they open as models, as `cards` has what is published
    """

    def __init__(self, config: Mapping):
        """Take a completed config."""
        self.config, self.section = config, config.get("publish", {})
        self.cards = {publication.card: publication for publication in publications_of(config).values()}
        self.published = chosen(config)
        self.checkpoint_cards = {
            f"{CHECKPOINT_CARDS}/{made.repository}/{made.step:08d}": made
            for made in self.published.values()
            if made.opens
        }

    def receipts(self, wildcards: Any) -> list[str]:
        """Return the receipt of each artifact at each place that the config names. Exits where it names none."""
        if not self.section:
            or_exit(no_place)
        places = [place for place in ("hub", "gcs") if place in self.section]
        return [f"<results>/publish/{place}/{name}.json" for place in places for name in self.published]

    def files(self, wildcards: Any) -> list:
        """Return the files of an artifact, or its folder.

        Folders, and checkpoints but for their cards, are `ancient`; see `changes`.
        """
        publication = self.published[wildcards.artifact]
        if publication.folder:
            return [ancient(f"<results>/{publication.folder}")]
        files = [f"<results>/{file}" for file in publication.files.values()]
        if publication.kind != "checkpoint":
            return files
        return [file if file.endswith(f"/{CARD}") else ancient(file) for file in files]

    def changes(self, wildcards: Any) -> list[str]:
        """Return the file that tells whether what is `ancient` has changed: a fingerprint, or the state of a run."""
        publication = self.published[wildcards.artifact]
        if publication.run and publication.kind in ("model", "transformers", "checkpoint"):
            step = publication.step if publication.kind == "checkpoint" else None
            return [publication.run.checkpoint(step)["state"]]
        return [f"<results>/{publication.folder}.json"] if publication.folder else []

    def card(self, wildcards: Any) -> list[str]:
        """Return the card of an artifact; a checkpoint has none."""
        folder = self.published[wildcards.artifact].card
        return [f"<results>/{folder}/README.md"] if folder else []

    def before(self, wildcards: Any) -> list[str]:
        """Return the receipt of what has to be on the hub before an artifact; see `newest_of`.

        Checkpoints that open as models go there in order, and the model that the run ends with comes last.
        """
        publication = self.published[wildcards.artifact]
        earlier = [
            made
            for made in self.published.values()
            if made.opens and made.repository == publication.repository
            if publication.kind != "checkpoint" or made.step < publication.step
        ]
        return [f"<results>/publish/hub/{made.name}.json" for made in earlier[-1:]]

    def to_hub(self, wildcards: Any) -> dict:
        """Return what publishing an artifact on the hub takes of the config."""
        publication = self.published[wildcards.artifact]
        return what_is_published(publication) | {
            "repository": repository_name(self.section, publication),
            "type": publication.type,
            "branch": branch_of(self.section, publication),
            "private": self.section["private"],
            "newest": newest_of(self.section, publication),
        }

    def to_bucket(self, wildcards: Any) -> dict:
        """Return what publishing an artifact in a bucket takes of the config."""
        publication = self.published[wildcards.artifact]
        return what_is_published(publication) | {"folder": f"{self.section['gcs']}/{folder_name(publication)}"}

    def facts(self, wildcards: Any) -> dict[str, list[str]]:
        """Return the files that a card is made of, by name."""
        found = facts_of(self.card_of(wildcards))
        return {name: [f"<results>/{file}" for file in files] for name, files in found.items()}

    def card_recipe(self, wildcards: Any) -> dict:
        """Return what a card takes of the config."""
        return card_recipe(self.card_of(wildcards), self.config) | {"license": self.section.get("license")}

    def card_of(self, wildcards: Any) -> Publication:
        """Return what a card is of."""
        return (self.cards | self.checkpoint_cards)[wildcards.card]

    def croissant(self, wildcards: Any) -> dict:
        """Return what the metadata of a set of records take of the config."""
        return croissant_of(self.cards[wildcards.records], self.config) | {"license": self.section.get("license")}


def what_is_published(publication: Publication) -> dict:
    """Return what both places take of an artifact."""
    return {
        "name": publication.name,
        "names": list(publication.files),
        "whole": bool(publication.folder),
        "root": publication.folder or next(iter(publication.files.values())),
    }
