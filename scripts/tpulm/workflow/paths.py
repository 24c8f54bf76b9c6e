"""Where artifacts are: in the working folder, in a module's prefix, in a bucket.

Paths of artifacts and logs begin with <results>/ and <logs>/, Snakemake's pathvars. Snakemake puts the folders in their
place in inputs, outputs and logs. In params and for what the Snakefile itself reads, `Paths` does.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from snakemake.io import AnnotatedString, local

from tpulm.compat.snakemake import default_storage, prefixing, source_input
from tpulm.compat.snakemake_gcs import list_once
from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.core.user_files import check_file
from tpulm.specs.artifacts import resolved


class Paths:
    """Turns paths below <results>/ into where they are, and files of the workflow's source into inputs."""

    def __init__(self, workflow: Any, storage: Any, root: Path):
        """Take Snakemake's workflow and storage object while a Snakefile is parsed.

        Raises UserError for a bucket in which paths could not be told from the prefix.

        root  folder of this workflow's Snakefile: as a module, it is not the folder of the outer one
        """
        check_file("the folder of the workflow", str(root))
        self.root, self.storage = root, storage
        self.stored, prefix = default_storage(workflow)
        self.bucket = f"{prefix.rstrip('/')}/" if self.stored == "gcs" else ""
        parts = {"results", "logs"} & set(self.bucket.split("/")[3:])
        if parts:
            raise UserError(
                f"--default-storage-prefix is {prefix}, which has the folder {min(parts)}; allowed: others than "
                "results and logs, which the workflow makes there."
            )
        if self.bucket and workflow.is_main_process:
            list_once(self.bucket)
        self.prefix = prefixing(workflow)

    def check(self, pathvars: Any) -> None:
        """Raise UserError where Snakemake's pathvars are not those that params follow, as a module's user can set."""
        for name in ("results", "logs"):
            if pathvars.get(name) != name:
                raise UserError(
                    f"pathvars.{name} is {pathvars.get(name)}; run Snakemake in another folder instead, or set "
                    "`prefix` of the module."
                )

    def prefixed(self, path: str) -> str:
        """Return a resolved path with the prefix that Snakemake gives to a module's paths."""
        return self.prefix(resolved(path))

    def located(self, path: str) -> str:
        """Return where an artifact is: its path, or its URL where results go to Google Cloud Storage."""
        return f"{self.bucket}{self.prefixed(path)}"

    def exists(self, path: str) -> bool:
        """Return whether an artifact has been made."""
        return bucket.exists(self.located(path))

    def in_place(self, path: str) -> Any:
        """Return a file as an input that is read where it is: from a bucket, a script gets its URL.

        Other inputs are copied from the bucket to the machine of the job first.
        """
        return self.storage.gcs(self.located(path), retrieve=False) if self.bucket else resolved(path)

    def text(self, path: str) -> Any:
        """Return a file of the user's text as an input: of this machine, or read where it is in a bucket."""
        return self.storage.gcs(path, retrieve=False) if bucket.remote(path) else local(path)

    def source(self, path: Path) -> AnnotatedString:
        """Return a file of the workflow's own source as an input, which no storage provider takes into its bucket.

        The path is relative, so that the folder can be moved without making anything stale.
        """
        relative = os.path.relpath(path)
        return source_input(relative) if self.stored else local(relative)


def local_files(paths: Iterable[str | Path]) -> list[AnnotatedString]:
    """Return a user's files as inputs that no storage provider takes into its bucket, those that exist."""
    return [local(str(path)) for path in paths if Path(path).is_file()]


def preset_files(preset: str, endings: tuple[str, ...] = ("",)) -> list[AnnotatedString]:
    """Return the files of a base model that is a local folder, hidden ones aside; none where it is downloaded.

    endings  of the names of those that are read, by default all
    """
    folder = Path(preset)
    files = [path for path in sorted(folder.rglob("*")) if path.name.endswith(endings)] if folder.is_dir() else []
    return local_files(file for file in files if not any(p.startswith(".") for p in file.relative_to(folder).parts))
