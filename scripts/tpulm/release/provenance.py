"""How a file came to be, back to the text, as lines to print: of a working folder or an archive."""

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

WIDTH = 110  # characters of params that are shown
ALIKE, FILES = 3, 8  # jobs of one rule, and files of one job, that a job's inputs are shown of
JOBS = "jobs.json"  # in an archive


def known_jobs(place: Path, file: str) -> list[Job]:
    """Return the jobs of an archive (the file, or the folder that it was unpacked to), or of a file's ledger.

    Raises UserError for what is no archive, or one of an earlier version.
    """
    if place.is_file() and not zipfile.is_zipfile(place):
        raise UserError(f"{place} is not an archive; allowed: a folder, or an archive of `snakemake archive`.")
    kept = zipfile.Path(place, JOBS) if place.is_file() else place / JOBS
    if not kept.is_file():
        copies = [path.relative_to(place) for path in place.glob(f"{COPIES}**/{FOLDER}")]
        return [job for folder in (folder_of(file), *copies) for job in jobs_of(place, folder)]
    jobs = list(json.loads(kept.read_text(encoding="utf-8")))
    if any("script" not in job for job in jobs):
        raise UserError(f"{place} is of an earlier version; unpack it and use source/tools/provenance.py in it.")
    return jobs


def provenance(file: str, place: Path, everything: bool = False) -> Iterator[str]:
    """Yield the lines that say how a file came to be. Raises UserError where no job is known to have made it.

    everything  whether to tell of every job, also of many that are alike
    """
    made = makers(known_jobs(place, file))
    job = maker_of(file, made)
    if job is None:
        near = sorted(path for path in made if Path(path).name == Path(file).name)[:3]
        more = f"; did you mean {', '.join(near)}?" if near else "; allowed: a file that the workflow wrote."
        raise UserError(f"no record in {place} says what made {file}{more}")
    shown: set[str] = set()
    # What is still to be said, the next thing last: a line, or a job with its indent and how many like it led here. A
    # chain of checkpoints can be longer than Python's stack.
    known, now = job["outputs"].get(file), place / file
    changed = known and now.is_file() and sha256(now) != known
    waiting: list[str | tuple[Job, str, int]] = [(job, "", 0), f"{file}{'  changed since' if changed else ''}"]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, str):
            yield entry
        else:
            waiting += reversed(list(lines_of(*entry, made, shown, everything)))


def lines_of(
    job: Job, indent: str, depth: int, made: Mapping[str, Job], shown: set[str], everything: bool
) -> Iterator[str | tuple[Job, str, int]]:
    """Yield the lines about a job, and each job that it follows from, in their places.

    A job that was told of is only named. Of jobs of one rule that it reads from, or that are a chain before it, the
    first few stand for all, unless `everything` is asked for.
    """
    if job["id"] in shown:
        yield f"{indent}  as above: {job['rule']} {job['id']}"
        return
    shown.add(job["id"])
    yield f"{indent}  by {job['rule']}  ({job['script']}, log {job['log']})"
    yield f"{indent}  {when(job)}"
    if job["params"]:
        text = json.dumps(job["params"], ensure_ascii=False, sort_keys=True, default=str)
        yield f"{indent}  params {text if len(text) <= WIDTH else text[: WIDTH - 3] + '...'}"
    outside, replaced, groups = read_by(job, made)
    few = len(outside) if everything else ALIKE
    for path in outside[:few]:
        yield f"{indent}  |- {path}{digest(job['inputs'][path])}  from outside the workflow"
    if len(outside) > few:
        yield f"{indent}  |- … and {len(outside) - few:,} more from outside the workflow"
    few = len(replaced) if everything else ALIKE
    for path, later in replaced[:few]:
        moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(later["start"]))
        by = f"{later['rule']} {later['id']}, {moment}"
        yield f"{indent}  |- {path}{digest(job['inputs'][path])}  replaced since by {by}"
    if len(replaced) > few:
        yield f"{indent}  |- … and {len(replaced) - few:,} more that were replaced since"
    rules = Counter(before["rule"] for before, _ in groups.values())
    counted: Counter[str] = Counter()
    for number, (before, paths) in enumerate(groups.values(), start=1):
        counted[before["rule"]] += 1
        if not everything and counted[before["rule"]] > ALIKE:
            if counted[before["rule"]] == rules[before["rule"]]:
                yield f"{indent}  |- … and {rules[before['rule']] - ALIKE:,} more of the same rule, {before['rule']}"
            continue
        few = len(paths) if everything else FILES
        for path in paths[:few]:
            yield f"{indent}  |- {path}{digest(job['inputs'][path])}"
        if len(paths) > few:
            yield f"{indent}  |- … and {len(paths) - few:,} more of the same job"
        if before["id"] == job["id"]:
            continue
        inner, links = indent + ("     " if number == len(groups) else "  |  "), 0
        if before["rule"] == job["rule"]:
            links = depth + 1
            skipped, first = chain_before(before, made) if links >= ALIKE and not everything else (0, before)
            if skipped:
                yield f"{inner}  … after {skipped:,} more of the same rule; the first:"
                before = first
        yield before, inner, links


def read_by(
    job: Job, made: Mapping[str, Job]
) -> tuple[list[str], list[tuple[str, Job]], dict[str, tuple[Job, list[str]]]]:
    """Return the inputs of a job that no job made; those that a later job replaced, with it; and the others.

    The others are by the id of the job that made them, each with its files.
    """
    groups: dict[str, tuple[Job, list[str]]] = {}
    outside, replaced = [], []
    for path in sorted(job["inputs"]):
        before = maker_of(path, made)
        if before is None:
            outside.append(path)
        elif replaced_since(job, path, before):
            replaced.append((path, before))
        else:
            groups.setdefault(before["id"], (before, []))[1].append(path)
    return outside, replaced, groups


def chain_before(job: Job, made: Mapping[str, Job]) -> tuple[int, Job]:
    """Return how many jobs of a chain of one rule are left out to come from a job to the first one, and the first."""
    seen = {job["id"]}
    while True:
        known = [(path, one) for path in job["inputs"] if (one := maker_of(path, made))]
        before = [one for path, one in known if one["rule"] == job["rule"] and not replaced_since(job, path, one)]
        earlier = next((one for one in before if one["id"] not in seen), None)
        if earlier is None:
            return len(seen) - 1, job
        job = earlier
        seen.add(job["id"])


def digest(sha256: str | None) -> str:
    """Return the beginning of a file's hash, where it is known."""
    return f"  {sha256[:12]}" if sha256 else ""


def when(job: Mapping[str, Any]) -> str:
    """Return when and where a job ran, in words."""
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
