"""The artifacts of a run as an archive lists them: size, checksum, job, and how a rebuild compares them."""

import os
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

from tpulm.archive.records import maker_of, makers
from tpulm.config.artifacts import CHECKPOINT_FILES
from tpulm.core.errors import UserError
from tpulm.core.files import sha256

# How an artifact made again is compared: `bytes`, the same on every machine; `numbers`, it follows from floating-point
# sums, and has the same bytes on the same kind of processor only; `time`, it tells of time or of other runs, and
# differs in each.
BYTES, NUMBERS, TIME = "bytes", "numbers", "time"
TIMINGS, REPORT = "timings.csv", "results/report.html"
# Paths of what tells of when jobs ran, or of the runs before, whatever it was made of.
OF_THIS_RUN = (f"/{TIMINGS}", REPORT, "results/history/")


def files_of(path: str) -> list[str]:
    """Return a file, or the files of a folder, those aside that are hidden; none where nothing is there."""
    place = Path(path)
    if not place.is_dir():
        return [path] if place.is_file() else []
    found = (file for file in sorted(place.rglob("*")) if file.is_file())
    return [str(file) for file in found if not any(part.startswith(".") for part in file.relative_to(place).parts)]


def artifacts_of(jobs: Sequence[dict[str, Any]], largest: int) -> dict[str, dict[str, Any]]:
    """Return every artifact of the jobs by path: bytes, sha256, job, compare, included; `bytes` is None if it has gone.

    jobs     in an order in which each stands behind those that it follows from
    largest  bytes of a file up to which the archive holds it

    Raises UserError where a file is not the one that its job made.
    """
    kinds = comparisons(jobs)
    found = {}
    for job in jobs:
        for output, digest in job["outputs"].items():
            for path in files_of(output) or [output]:
                size = os.path.getsize(path) if os.path.isfile(path) else None
                now = sha256(path) if size is not None else digest
                if path == output and digest and now != digest:
                    raise UserError(
                        f"{path} is not the file that {job['rule']} made: its SHA-256 has changed since; nothing is "
                        f"archived. To make it again: snakemake --forcerun {path}."
                    )
                compare = TIME if any(part in path for part in OF_THIS_RUN) else kinds[job["id"]]
                included = size is not None and (size <= largest or path.endswith(REPORT))
                found[path] = {"bytes": size, "sha256": now, "job": job["id"], "compare": compare, "included": included}
    return dict(sorted(found.items()))


def comparisons(jobs: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return how the outputs of each job compare with those of another run, by the id of the job."""
    made = makers(list(jobs))
    found: dict[str, str] = {}
    for job in jobs:
        kinds = [NUMBERS] if any(Path(path).name == CHECKPOINT_FILES["state"] for path in job["outputs"]) else []
        for path in job["inputs"]:
            before = maker_of(path, made)
            if Path(path).name == TIMINGS and job["rule"] != "collect_history":
                kinds.append(TIME)
            elif before and before["id"] in found:
                kinds.append(found[before["id"]])
        found[job["id"]] = next((kind for kind in (TIME, NUMBERS) if kind in kinds), BYTES)
    return found


def outside_of(jobs: Iterable[dict[str, Any]], own: Container[str]) -> dict[str, str | None]:
    """Return what jobs read that no job made, the user's text above all: sha256 by path.

    own  paths of the workflow's own source, such as the templates of the report, which are left out
    """
    jobs = list(jobs)
    made = makers(jobs)
    found = {
        path: digest
        for job in jobs
        for path, digest in job["inputs"].items()
        if path not in own and maker_of(path, made) is None
    }
    return {path: digest or (sha256(path) if os.path.isfile(path) else None) for path, digest in sorted(found.items())}
