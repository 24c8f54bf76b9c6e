"""What a set of pairs of sentences is read from; beside `sources`, on which every document depends."""

from collections.abc import Mapping
from pathlib import Path

from tpulm.core.errors import UserError
from tpulm.corpus.sources import ALLOWED, expand, kind_of


def pair_sources(name: str, recipe: Mapping) -> list[str]:
    """Return the files that a set of pairs is read from, sorted: those of its globs, or of a dataset that is local.

    name  of the set, under evaluation.pairs.sets. Raises UserError for a glob without files or with other files.
    """
    if "dataset" in recipe:
        folder = Path(recipe["dataset"])
        return sorted(str(path) for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    where = f"evaluation.pairs.sets.{name}"
    found = sorted({path for glob in recipe["files"] for path in expand(where, glob)})
    for path in found:
        if kind_of(path) == "text":
            raise UserError(f"{where}.files: {path} has no columns; allowed: {ALLOWED.removeprefix('.txt, ')}.")
    return found
