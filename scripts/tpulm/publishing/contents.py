"""The files of an artifact as they are published, and what has to change at a place for it to hold them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

from tpulm.config.artifacts import MANIFEST
from tpulm.config.publications import CARD, CHECKPOINTS, CROISSANT
from tpulm.core.errors import UserError
from tpulm.core.files import sha256

# What this workflow writes, and takes away where an artifact has it no more. What else is there stays.
OURS = ("*.tfrecord", "*.index", "*.safetensors", "*.h5", "*.json", "assets/*")
# What tells of the other files: it comes when they are there.
LAST = (CROISSANT, MANIFEST, CARD)


@dataclass(frozen=True)
class Content:
    """A file to be published."""

    path: Path

    @cached_property
    def bytes(self) -> int:
        """Its size."""
        return self.path.stat().st_size

    @cached_property
    def sha256(self) -> str:
        """Its SHA-256, in hexadecimal."""
        return sha256(self.path)


def contents(recipe: Mapping, inputs: Sequence[str], card: Sequence[str]) -> dict[str, Content]:
    """Return the files of an artifact by their paths at the place that they go to, sorted.

    recipe  names, the paths there of the files `inputs`; whole, whether `inputs` is a folder instead, of whose files
            each goes where it is in there, apart from hidden ones
    card    README.md, if there is one
    """
    if recipe["whole"]:
        folder = Path(inputs[0])
        paths = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
        found = {str(name): path for name, path in paths.items() if not any(p.startswith(".") for p in name.parts)}
    else:
        found = dict(zip(recipe["names"], map(Path, inputs), strict=True))
    if card:
        found[CARD] = Path(card[0])
    return {name: Content(found[name]) for name in sorted(found)}


def hashes(found: Mapping[str, Content]) -> dict[str, str]:
    """Return the SHA-256 of each file, for the receipt."""
    return {path: content.sha256 for path, content in found.items()}


def in_order(paths: Iterable[str]) -> list[str]:
    """Return paths in the order in which files are sent."""
    return sorted(paths, key=lambda path: (path in LAST, path))


def root_of(path: str, name: str) -> Path:
    """Return the folder of the results, of which `path` is the file or folder `name`.

    Raises UserError where it is not.
    """
    if not path.endswith(f"/{name}"):
        raise UserError(f"{path} is not {name} of the results.")
    return Path(path.removesuffix(f"/{name}"))


def outdated(found: Iterable[str], wanted: Mapping[str, Content], checkpoint: bool) -> list[str]:
    """Return the files at a place that are of this workflow, and not of the artifact any more.

    A checkpoint takes nothing away: others are beside it.
    """
    if checkpoint:
        return []
    others = (path for path in found if path not in wanted and not path.startswith(f"{CHECKPOINTS}/"))
    return sorted(path for path in others if any(fnmatch(path, pattern) for pattern in OURS))
