"""Snapshots: the state for resuming in the middle of a segment, which is no output of a job.

Snakemake deletes the outputs of a job that fails; a snapshot stays. It is below the run's folder, at
snapshots/LAST-STEP-OF-THE-SEGMENT/, in the bucket if results are in one:

KEY-STEP.json                      step; sha256 of the parts; shape of each array; state of the history
KEY-STEP.process-N.safetensors     the arrays, or parts of them, of process N: entries are named NAME@START,START,...

KEY is a fingerprint of the segment's recipe, inputs and code: a snapshot of another segment is never taken. The JSON
file is written when all parts are there; an older snapshot is deleted after that, the last one when the segment is
complete. A snapshot changes no byte of the results: training goes on from the same numbers.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors import safe_open

from tpulm.core import bucket, processes
from tpulm.core.arrays import save_arrays
from tpulm.core.files import known_sha256, read_json, sha256, write_json
from tpulm.core.job import TERMINAL

DAMAGES = (OSError, ValueError, KeyError, TypeError)  # raised by reading a damaged file


def key_of(recipe: dict, code: str, inputs: Iterable[str]) -> str:
    """Return 16 hex digits that identify a segment: its recipe, code and input files, of which one may be absent."""
    digests = [digest_of(path) for path in inputs]
    return hashlib.sha256(json.dumps([recipe, code, digests], sort_keys=True).encode()).hexdigest()[:16]


def digest_of(path: str) -> str | None:
    """Return the SHA-256 of a file or an object in a bucket, None for an absent file."""
    if bucket.remote(path):
        return hashlib.sha256(bucket.read_object(path)).hexdigest()
    return known_sha256(path) if os.path.isfile(path) else None


@dataclass(frozen=True)
class Snapshot:
    """A snapshot whose files are on this machine.

    step    number of steps of the run before it
    history state for `History.restore`
    shapes  of the arrays by name; parts  paths of the files with them
    """

    step: int
    history: dict
    shapes: dict[str, list[int]]
    parts: list[Path]

    def arrays(self, prefix: str) -> "PartedArrays":
        """Return the arrays whose names begin with `prefix`, by names without it."""
        return PartedArrays(self, prefix)


class PartedArrays(Mapping):
    """Arrays whose parts are in several files, each assembled on access."""

    def __init__(self, snapshot: Snapshot, prefix: str):
        self.shapes = {name[len(prefix) :]: shape for name, shape in snapshot.shapes.items() if name.startswith(prefix)}
        self.files = [safe_open(str(path), framework="numpy") for path in snapshot.parts]
        self.places: dict[str, list[tuple[Any, str]]] = {}
        for file in self.files:
            for key in file.keys():  # noqa: SIM118 (of safetensors, which has no iterator)
                if key.startswith(prefix):
                    self.places.setdefault(key[len(prefix) :].rpartition("@")[0], []).append((file, key))

    def __getitem__(self, name: str) -> np.ndarray:
        shape, whole = tuple(self.shapes[name]), None
        for file, key in self.places.get(name, []):
            part = file.get_tensor(key)
            if not shape:
                return part.reshape(())
            whole = np.empty(shape, part.dtype) if whole is None else whole
            corner = [int(start) for start in key.rpartition("@")[2].split(",")]
            whole[tuple(slice(start, start + size) for start, size in zip(corner, part.shape, strict=True))] = part
        if whole is None:
            raise KeyError(name)
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


class Snapshots:
    """The snapshots of one segment.

    folder  path or URL, below the run's folder or in a bucket; None to keep none
    key     see `key_of`
    every   minutes between two of them; 0 for snapshots at SIGTERM only
    """

    def __init__(self, folder: str | None, key: str, every: float = 0):
        self.folder, self.key, self.every = folder, key, every

    @classmethod
    def of(cls, resources: Mapping, params: Any, inputs: Any, say: Callable[[str], None]) -> Self:
        """Return the snapshots of the segment that a job trains, after deleting damaged ones.

        resources  of the job: `snapshots`, their folder, and `snapshot_every`, both optional
        params     of the job: recipe and code
        inputs     of the job. All identify the segment, but `base`, which its fingerprint describes, and the arrays in
                   `previous`, whose checksums are in its last file

        Processes that train together leave the deletion to their parent.
        """
        folder = None if TERMINAL in os.environ else resources.get("snapshots")
        others = (value for name, value in inputs.items() if name not in ("base", "previous"))
        paths = (path for value in others for path in ([value] if isinstance(value, str) else value))
        key = key_of(params.recipe, params.code, [str(path) for path in (*inputs.previous[-1:], *paths)])
        snapshots = cls(folder, key, resources.get("snapshot_every", 0))
        if not processes.is_worker():
            snapshots.delete_damaged(say)
        return snapshots

    def steps(self) -> list[int]:
        """Return the steps at which there are snapshots of this segment, the newest first."""
        if self.folder is None:
            return []
        if bucket.remote(self.folder):
            names: Iterable[str] = bucket.sizes(self.folder)
        else:
            names = os.listdir(self.folder) if os.path.isdir(self.folder) else []
        steps = [name[len(self.key) + 1 : -len(".json")] for name in names if name.endswith(".json")]
        return sorted((int(step) for step in steps if f"{self.key}-{step}.json" in names), reverse=True)

    def latest(self, local: ExitStack) -> Snapshot | None:
        """Return the newest snapshot, None without one. Its files exist until `local` is closed."""
        return next((self.read(step, local) for step in self.steps()), None)

    def read(self, step: int, local: ExitStack) -> Snapshot:
        """Return the snapshot at a step, copied from its bucket to a folder that is deleted when `local` is closed."""
        folder = Path(str(self.folder))
        if bucket.remote(str(self.folder)):
            folder = Path(local.enter_context(tempfile.TemporaryDirectory()))
            bucket.copy(str(self.folder), folder)
        description = read_json(folder / f"{self.key}-{step:08d}.json")
        parts = [folder / self.part(step, number) for number in range(len(description["sha256"]))]
        return Snapshot(description["step"], description["history"], description["shapes"], parts)

    def part(self, step: int, number: int) -> str:
        """Return the name of the file that process `number` writes."""
        return f"{self.key}-{step:08d}.process-{number}.safetensors"

    def delete_damaged(self, say: Callable[[str], None]) -> None:
        """Delete the snapshots whose files are not as they were written, and say so."""
        for step in self.steps():
            with ExitStack() as local:
                try:
                    snapshot = self.read(step, local)
                    description = read_json(snapshot.parts[0].with_name(f"{self.key}-{step:08d}.json"))
                    digests = [sha256(path) for path in snapshot.parts]
                    whole = digests == description["sha256"] and description["step"] == step
                except DAMAGES:
                    whole = False
            if not whole:
                say(f"the snapshot at step {step} in {self.folder} is corrupt and is ignored.")
                self.delete(only=f"{self.key}-{step:08d}.")

    def save(
        self,
        step: int,
        parts: dict[str, np.ndarray],
        shapes: dict[str, tuple[int, ...]],
        history: dict,
        gather: Callable[[str], list[str]] = lambda digest: [digest],
    ) -> None:
        """Write a snapshot, and delete the others. Every process that trains must call this.

        parts   of arrays that this process keeps, named NAME@START,START,...; shapes  of the whole arrays by name
        history state for `History.restore`
        gather  returns the digests of all processes, in their order
        """
        name, number = self.part(step, processes.number()), processes.number()
        with self.staging() as folder:
            save_arrays(folder / name, parts)
            digest = sha256(folder / name)
            self.upload(folder / name)
            digests = gather(digest)
            if number == 0:
                description = {"step": step, "sha256": digests, "shapes": shapes, "history": history}
                write_json(folder / f"{self.key}-{step:08d}.json", description)
                self.upload(folder / f"{self.key}-{step:08d}.json")
                self.delete(but=f"{self.key}-{step:08d}.")
        gather(digest)  # no process goes on, or ends, before the snapshot is whole

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """Yield the folder to write to: a temporary one if snapshots are in a bucket."""
        if not bucket.remote(str(self.folder)):
            yield Path(str(self.folder))
            return
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)

    def upload(self, path: Path) -> None:
        """Copy a file to the bucket, if snapshots are in one."""
        if bucket.remote(str(self.folder)):
            bucket.upload(path, f"{self.folder}/{path.name}")

    def delete(self, only: str = "", but: str | None = None) -> None:
        """Delete the files whose names begin with `only` and not with `but`; without `but`, also emptied folders."""
        if self.folder is None:
            return
        if bucket.remote(self.folder):
            names = [name for name in bucket.sizes(self.folder) if is_chosen(name, only, but)]
            bucket.delete(f"{self.folder}/{name}" for name in names)
            return
        folder = Path(self.folder)
        if not folder.is_dir():
            return
        for path in folder.iterdir():
            if is_chosen(path.name, only, but):
                path.unlink(missing_ok=True)
        if but is None and not any(folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)
            if not any(folder.parent.iterdir()):
                folder.parent.rmdir()


def is_chosen(name: str, only: str, but: str | None) -> bool:
    """Return whether `Snapshots.delete` deletes a file; those of `but` stay even while they are hidden and partial."""
    return name.startswith(only) and (but is None or not name.lstrip(".").startswith(but))
