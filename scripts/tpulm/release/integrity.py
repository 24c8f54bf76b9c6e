"""Whether the files below results/ are those that the ledger says: what each job wrote, and what each job read."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from tpulm.core.files import files_of
from tpulm.core.ledger import Job, damages_of, maker_of
from tpulm.specs.artifacts import ARRAY_FILES, EXPORTED, KEPT_FOLDERS, PRUNED, SNAPSHOTS


def is_ours(path: str | Path, results: Path) -> bool:
    """Return whether a file is missed when it is gone, and has to be as it was.

    That is what is below `results`, but not archives, history and records, which stay, nor what is deleted after use:
    snapshots, and the models of checkpoints.
    """
    if not Path(path).is_relative_to(results):
        return False
    below = Path(path).relative_to(results)
    deleted = below.is_relative_to(EXPORTED.removeprefix("<results>/")) or SNAPSHOTS in below.parts
    return not deleted and below.parts[0] not in KEPT_FOLDERS


def check_artifacts(jobs: list[Job], made: Mapping[str, Job], results: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each folder of artifacts, such as results/mlm/tiny, and a sentence for each damaged file in it, by path.

    made  the job of each file below `results`
    """
    others = dict(missing_files(jobs, made)) | dict(read_otherwise(jobs, made))

    def folder_of(path: str) -> str:
        return str(results.joinpath(*Path(path).relative_to(results).parts[:-1][:2]))

    for folder, paths in groupby(sorted({*made, *others}, key=lambda path: (folder_of(path), path)), folder_of):
        files = {path: Path(path) for path in paths}
        yield folder, {path: others[path] for path in files if path in others} | dict(damages_of(files, made))


def missing_files(jobs: list[Job], made: Mapping[str, Job]) -> Iterator[tuple[str, str]]:
    """Yield each file that is gone though one is there that was made of it, or with it; and a sentence.

    The arrays of a pruned checkpoint are not missed.
    """
    there = {job["id"] for path, job in made.items() if Path(path).exists()}
    read = {path for job in jobs if job["id"] in there for path in job["inputs"]}
    for path, job in made.items():
        pruned = Path(path).name in ARRAY_FILES and Path(path).with_name(PRUNED).exists()
        if (job["id"] in there or path in read) and not pruned and not Path(path).exists():
            yield path, f"{path} is missing: {job['rule']} wrote it ({job['log']})."


def read_otherwise(jobs: list[Job], made: Mapping[str, Job]) -> Iterator[tuple[str, str]]:
    """Yield each output whose job read an input that differs from what the input's job wrote; and a sentence."""
    for job in jobs:
        for path, read in job["inputs"].items():
            maker = maker_of(path, made)
            written = maker and maker["outputs"].get(path)
            if maker and read and written and read != written and job["start"] > maker["start"]:
                said = f"was made by {job['rule']} ({job['log']}) of another {path} than {maker['rule']} wrote."
                yield from ((output, f"{output} {said}") for output in job["outputs"] if output in made)


def unrecorded(results: Path, made: Mapping[str, Job]) -> list[str]:
    """Return the files below `results` of which there is no record."""
    return [str(path) for path in files_of(results) if is_ours(path, results) and str(path) not in made]
