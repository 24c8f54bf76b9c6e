"""Check the files below results/ against the ledger: what each job wrote, and what each job read."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from tpulm.core.files import files_of
from tpulm.core.ledger import Job, damages_of, maker_of
from tpulm.specs.artifacts import ARRAY_FILES, EXPORTED, KEPT_FOLDERS, PRUNED, SNAPSHOTS


def is_ours(path: str | Path, results: Path) -> bool:
    """Return whether a file is an artifact below `results` that has to exist unchanged.

    Archives, history and records are not, nor files that are deleted after use: snapshots and models of checkpoints.
    """
    if not Path(path).is_relative_to(results):
        return False
    relative = Path(path).relative_to(results)
    deleted = relative.is_relative_to(EXPORTED.removeprefix("<results>/")) or SNAPSHOTS in relative.parts
    return not deleted and relative.parts[0] not in KEPT_FOLDERS


def check_artifacts(jobs: list[Job], made_by: Mapping[str, Job], results: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each folder of artifacts, such as results/mlm/tiny, with a sentence for each damaged file by path.

    made_by  job of each file below `results`
    """
    damages = dict(missing_files(jobs, made_by)) | dict(read_otherwise(jobs, made_by))

    def folder_of(path: str) -> str:
        return str(results.joinpath(*Path(path).relative_to(results).parts[:-1][:2]))

    for folder, paths in groupby(sorted({*made_by, *damages}, key=lambda path: (folder_of(path), path)), folder_of):
        files = {path: Path(path) for path in paths}
        yield folder, {path: damages[path] for path in files if path in damages} | dict(damages_of(files, made_by))


def missing_files(jobs: list[Job], made_by: Mapping[str, Job]) -> Iterator[tuple[str, str]]:
    """Yield (path, sentence) for each missing file if another output of its job, or what was made from it, exists."""
    jobs_with_files = {job["id"] for path, job in made_by.items() if Path(path).exists()}
    read_paths = {path for job in jobs if job["id"] in jobs_with_files for path in job["inputs"]}
    for path, job in made_by.items():
        pruned = Path(path).name in ARRAY_FILES and Path(path).with_name(PRUNED).exists()
        if (job["id"] in jobs_with_files or path in read_paths) and not pruned and not Path(path).exists():
            yield path, f"{path} is missing: {job['rule']} wrote it ({job['log']})."


def read_otherwise(jobs: list[Job], made_by: Mapping[str, Job]) -> Iterator[tuple[str, str]]:
    """Yield (path, sentence) for each output whose job read an input that differs from what the input's job wrote."""
    for job in jobs:
        for path, read in job["inputs"].items():
            maker = maker_of(path, made_by)
            written = maker and maker["outputs"].get(path)
            if maker and read and written and read != written and job["start"] > maker["start"]:
                reason = f"was made by {job['rule']} ({job['log']}) of another {path} than {maker['rule']} wrote."
                yield from ((output, f"{output} {reason}") for output in job["outputs"] if output in made_by)


def unrecorded(results: Path, made_by: Mapping[str, Job]) -> list[str]:
    """Return the artifacts below `results` without a record."""
    return [str(path) for path in files_of(results) if is_ours(path, results) and str(path) not in made_by]
