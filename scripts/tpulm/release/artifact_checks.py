"""Compare files below results/ with the SHA-256 that was taken when they were written.

The record of a job has that of each output. JSON files beside shards, checkpoints and presets of base
models have it, too, also where records are gone: manifest.json, state.json and preset.json.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from tpulm.core.errors import UserError
from tpulm.core.files import read_json, sha256
from tpulm.core.past_jobs import Job, makers
from tpulm.specs.artifacts import (
    ARRAY_FILES,
    CHECKPOINT_ARRAYS,
    CHECKPOINT_FILES,
    EXPORTED,
    KEPT_FOLDERS,
    MANIFEST,
    PRUNED,
    SNAPSHOTS,
)
from tpulm.training.checkpoint import read_state

STATES = f"checkpoints/*/{CHECKPOINT_FILES['state']}"
Sums = dict[str, tuple[str, str]]  # by path: a SHA-256, and who says so


def verify(
    jobs: list[Job], results: Path, known: Sums, chains: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each folder of artifacts, such as results/mlm/tiny, and a sentence for each damaged file in it, by path.

    jobs    of `tpulm.core.past_jobs.jobs_of`
    known   of `known_sums`
    chains  the steps of the checkpoints of each run that the config has, by the folder of the run below `results`
    """
    damages = {path: f"{path} is missing." for path in missing(jobs, results)} | broken_chains(results, chains)

    def folder_of(path: str) -> str:
        return str(results.joinpath(*Path(path).relative_to(results).parts[:-1][:2]))

    for folder, paths in groupby(sorted({*known, *damages}, key=lambda path: (folder_of(path), path)), folder_of):
        found = {}
        for path in paths:
            digest, told = known.get(path, ("", ""))
            if digest and Path(path).is_file() and sha256(path) != digest:
                found[path] = f"{path} is corrupt: its SHA-256 is not the one {told}."
            elif path in damages:
                found[path] = damages[path]
        yield folder, found


def is_ours(path: str | Path, results: Path) -> bool:
    """Return whether a file is missed when it is gone, and has to be as it was.

    That is what is below `results`, but not archives and the history, which stay, nor what is deleted after use:
    snapshots, and the models of checkpoints.
    """
    if not Path(path).is_relative_to(results):
        return False
    below = Path(path).relative_to(results)
    deleted = below.is_relative_to(EXPORTED.removeprefix("<results>/")) or SNAPSHOTS in below.parts
    return not deleted and below.parts[0] not in KEPT_FOLDERS


def known_sums(jobs: list[Job], results: Path) -> Sums:
    """Return the SHA-256 of each file below `results` of which one was recorded, and who says so, by path."""
    recorded = {
        path: (job["outputs"][path], f"that {job['rule']} recorded")
        for path, job in makers(jobs).items()
        if job["outputs"][path] and is_ours(path, results)
    }
    return sums_beside(results) | recorded


def unrecorded(results: Path, known: Sums) -> list[str]:
    """Return the files below `results` of which no SHA-256 is known."""
    files = (path for path in sorted(results.rglob("[!.]*")) if path.is_file() and is_ours(path, results))
    return [str(path) for path in files if str(path) not in known]


def sums_beside(results: Path) -> Sums:
    """Return the SHA-256 of each file below `results` that a JSON file beside it has, and who says so, by path."""
    found: Sums = {}
    for kind in (MANIFEST, STATES, "base/*/preset.json"):
        for file in sorted(results.rglob(kind)):
            try:
                found |= {str(path): (digest, f"in {file}") for path, digest in sums_in(file).items()}
            except (AttributeError, LookupError, TypeError, ValueError, UserError):
                continue  # the record of its own job tells that it is damaged
    return found


def sums_in(file: Path) -> dict[Path, str]:
    """Return the SHA-256 of each file that a manifest, a state or the fingerprint of a folder tells of."""
    told = read_json(file)
    if file.name == MANIFEST:
        shards = [shard for split in told["splits"].values() for shard in split["shards"]]
        return {file.parent / shard["file"]: shard["sha256"] for shard in shards}
    if file.match(STATES):
        return {file.with_name(CHECKPOINT_FILES[part]): told["sha256"][part] for part in CHECKPOINT_ARRAYS}
    return {file.with_suffix("") / name: digest for name, digest in told.items()}


def broken_chains(results: Path, chains: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Return a sentence for each state.json that is damaged, or whose checkpoint is not of the one before, by path.

    chains  as of `verify`: checkpoints of an earlier, longer run are left, and are of no chain
    """
    found = {}
    for folder, steps in chains.items():
        states = [results / folder / f"checkpoints/{step:08d}" / CHECKPOINT_FILES["state"] for step in steps]
        for before, file in zip([None, *states], states, strict=False):
            if not file.exists():
                continue
            try:
                said = read_state(str(file))["previous_sha256"]
                if before and before.exists() and said != sha256(before):
                    found[str(file)] = f"{file} is not of the chain: it was not trained from {before.parent.name}."
            except (UserError, LookupError, TypeError, ValueError) as error:
                found[str(file)] = str(error)
    return found


def missing(jobs: list[Job], results: Path) -> set[str]:
    """Return the files that are gone though one is there that was made of them, or with them.

    The arrays of a pruned checkpoint are not missed.
    """
    made = {path: job for path, job in makers(jobs).items() if is_ours(path, results)}
    of_there = {job["id"]: job for path, job in made.items() if Path(path).exists()}
    files = {path for job in of_there.values() for path in job["inputs"] if is_ours(path, results)}
    files |= {path for path, job in made.items() if job["id"] in of_there} | sums_beside(results).keys()
    return {
        path
        for path in files
        if not Path(path).exists() and not (Path(path).name in ARRAY_FILES and Path(path).with_name(PRUNED).exists())
    }
