"""Trace the provenance of a file of a working folder or an archive, back to the text, as lines to print."""

import json
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tpulm.core.devices import devices_in_words
from tpulm.core.errors import UserError
from tpulm.core.files import sha256
from tpulm.core.ledger import COPIES, FOLDER, Job, folder_of, jobs_of, maker_of, makers, replaced_since

# Limits of what is shown: characters of params; jobs of one rule, and files of one job, among a job's inputs.
WIDTH = 110
ALIKE, FILES = 3, 8
JOBS = "jobs.json"  # name of the account of jobs in an archive


def known_jobs(place: Path, file: str) -> list[Job]:
    """Return the jobs of an archive (zip or unpacked folder), or of the ledger of a file in a working folder.

    Raises UserError for a file that is no archive, or an archive of an earlier version.
    """
    if place.is_file() and not zipfile.is_zipfile(place):
        raise UserError(f"{place} is not an archive; allowed: a folder, or an archive of `snakemake archive`.")
    jobs_file = zipfile.Path(place, JOBS) if place.is_file() else place / JOBS
    if not jobs_file.is_file():
        copied_ledgers = [path.relative_to(place) for path in place.glob(f"{COPIES}**/{FOLDER}")]
        return [job for folder in (folder_of(file), *copied_ledgers) for job in jobs_of(place, folder)]
    jobs = list(json.loads(jobs_file.read_text(encoding="utf-8")))
    if any("script" not in job for job in jobs):
        raise UserError(f"{place} is of an earlier version; unpack it and use source/tools/provenance.py in it.")
    return jobs


def provenance(file: str, place: Path, everything: bool = False) -> Iterator[str]:
    """Yield the lines on the provenance of a file. Raises UserError if no known job made it.

    everything  whether to show every job, even if many are alike
    """
    made_by = makers(known_jobs(place, file))
    job = maker_of(file, made_by)
    if job is None:
        similar = sorted(path for path in made_by if Path(path).name == Path(file).name)[:3]
        more = f"; did you mean {', '.join(similar)}?" if similar else "; allowed: a file that the workflow wrote."
        raise UserError(f"no record in {place} says what made {file}{more}")
    shown: set[str] = set()
    # A stack of lines, and of jobs with their indent and chain length. Recursion would fail: a chain of checkpoints can
    # be longer than Python's stack.
    recorded, current = job["outputs"].get(file), place / file
    changed = recorded and current.is_file() and sha256(current) != recorded
    pending: list[str | tuple[Job, str, int]] = [(job, "", 0), f"{file}{'  changed since' if changed else ''}"]
    while pending:
        entry = pending.pop()
        if isinstance(entry, str):
            yield entry
        else:
            pending += reversed(list(lines_of(*entry, made_by, shown, everything)))


def lines_of(
    job: Job, indent: str, depth: int, made_by: Mapping[str, Job], shown: set[str], everything: bool
) -> Iterator[str | tuple[Job, str, int]]:
    """Yield the lines about a job, and in their places the jobs that it read from."""
    if job["id"] in shown:
        yield f"{indent}  as above: {job['rule']} {job['id']}"
        return
    shown.add(job["id"])
    yield f"{indent}  by {job['rule']}  ({job['script']}, log {job['log']})"
    yield f"{indent}  {time_of_job(job)}"
    if job["params"]:
        text = json.dumps(job["params"], ensure_ascii=False, sort_keys=True, default=str)
        yield f"{indent}  params {text if len(text) <= WIDTH else text[: WIDTH - 3] + '...'}"
    outside, replaced, groups = inputs_by_origin(job, made_by)
    limit = len(outside) if everything else ALIKE
    for path in outside[:limit]:
        yield f"{indent}  |- {path}{digest(job['inputs'][path])}  from outside the workflow"
    if len(outside) > limit:
        yield f"{indent}  |- … and {len(outside) - limit:,} more from outside the workflow"
    limit = len(replaced) if everything else ALIKE
    for path, later in replaced[:limit]:
        moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(later["start"]))
        replacement = f"{later['rule']} {later['id']}, {moment}"
        yield f"{indent}  |- {path}{digest(job['inputs'][path])}  replaced since by {replacement}"
    if len(replaced) > limit:
        yield f"{indent}  |- … and {len(replaced) - limit:,} more that were replaced since"
    rules = Counter(maker["rule"] for maker, _ in groups.values())
    counted: Counter[str] = Counter()
    for number, (maker, paths) in enumerate(groups.values(), start=1):
        counted[maker["rule"]] += 1
        if not everything and counted[maker["rule"]] > ALIKE:
            if counted[maker["rule"]] == rules[maker["rule"]]:
                yield f"{indent}  |- … and {rules[maker['rule']] - ALIKE:,} more of the same rule, {maker['rule']}"
            continue
        limit = len(paths) if everything else FILES
        for path in paths[:limit]:
            yield f"{indent}  |- {path}{digest(job['inputs'][path])}"
        if len(paths) > limit:
            yield f"{indent}  |- … and {len(paths) - limit:,} more of the same job"
        if maker["id"] == job["id"]:
            continue
        inner, links = indent + ("     " if number == len(groups) else "  |  "), 0
        if maker["rule"] == job["rule"]:
            links = depth + 1
            skipped, first = chain_before(maker, made_by) if links >= ALIKE and not everything else (0, maker)
            if skipped:
                yield f"{inner}  … after {skipped:,} more of the same rule; the first:"
                maker = first
        yield maker, inner, links


def inputs_by_origin(
    job: Job, made_by: Mapping[str, Job]
) -> tuple[list[str], list[tuple[str, Job]], dict[str, tuple[Job, list[str]]]]:
    """Return the inputs that no job made, (path, later job) of those replaced since, and {id: (job, files)}."""
    groups: dict[str, tuple[Job, list[str]]] = {}
    outside, replaced = [], []
    for path in sorted(job["inputs"]):
        maker = maker_of(path, made_by)
        if maker is None:
            outside.append(path)
        elif replaced_since(job, path, maker):
            replaced.append((path, maker))
        else:
            groups.setdefault(maker["id"], (maker, []))[1].append(path)
    return outside, replaced, groups


def chain_before(job: Job, made_by: Mapping[str, Job]) -> tuple[int, Job]:
    """Return the first job of a job's chain of one rule, after the number of jobs from `job` up to it, without it."""
    seen = {job["id"]}
    while True:
        read_from = [(path, maker) for path in job["inputs"] if (maker := maker_of(path, made_by))]
        current = [maker for path, maker in read_from if not replaced_since(job, path, maker)]
        earlier = next((maker for maker in current if maker["rule"] == job["rule"] and maker["id"] not in seen), None)
        if earlier is None:
            return len(seen) - 1, job
        job = earlier
        seen.add(job["id"])


def digest(sha256: str | None) -> str:
    """Return the first digits of a file's hash, indented; empty if it is unknown."""
    return f"  {sha256[:12]}" if sha256 else ""


def time_of_job(job: Mapping[str, Any]) -> str:
    """Return time, duration, attempts, host and accelerators of a job in words."""
    moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(job["start"]))
    parts = [moment, f"{job['seconds']:.1f} s"]
    if len(job["attempts"]) > 1:
        parts.append(f"attempt {len(job['attempts'])}")
    repeated = sum(attempt.get("repeated_steps", 0) for attempt in job["attempts"])
    parts += [f"{repeated} steps repeated"] if repeated else []
    host = job["host"]
    parts.append(f"{host['processors']} x {host['processor']}, Python {host['python']}")
    parts += [devices_in_words(job["accelerators"])] if job["accelerators"] else []
    return ", ".join(parts)
