"""How a file came to be, back to the text, as a tree."""

import json
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tpulm.archive.records import jobs_of, maker_of, makers
from tpulm.core.errors import UserError

WIDTH = 110  # characters of params that are shown
JOBS = "jobs.json"  # in an archive


def known_jobs(place: Path) -> list[dict[str, Any]]:
    """Return the jobs of an archive (the file, or the folder that it was unpacked to) or of a working folder."""
    if place.is_file():
        if not zipfile.is_zipfile(place):
            raise UserError(f"{place} is no archive; allowed: a folder, or an archive of `snakemake archive`.")
        with zipfile.ZipFile(place) as archive:
            return list(json.loads(archive.read(JOBS)))
    if (place / JOBS).is_file():
        return list(json.loads((place / JOBS).read_text(encoding="utf-8")))
    return jobs_of(place)


def provenance(file: str, place: Path) -> Iterator[str]:
    """Yield the lines that say how a file came to be. Raises UserError where no job is known to have made it."""
    made = makers(known_jobs(place))
    job = maker_of(file, made)
    if job is None:
        near = sorted(path for path in made if Path(path).name == Path(file).name)[:3]
        more = f"; did you mean {', '.join(near)}?" if near else "; allowed: a file that the workflow made."
        raise UserError(f"no job in {place} is known to have made {file}{more}")
    shown: set[str] = set()
    yield file
    yield from told(job, made, "", shown)


def told(job: Mapping[str, Any], made: Mapping[str, dict[str, Any]], indent: str, shown: set[str]) -> Iterator[str]:
    """Yield the lines about a job, and those about what it read; a job that was told of is only named."""
    if job["id"] in shown:
        yield f"{indent}  as above: {job['rule']} {job['id']}"
        return
    shown.add(job["id"])
    yield f"{indent}  by {job['rule']}  (scripts/{job['rule']}.py, log {job['log']})"
    yield f"{indent}  {when(job)}"
    if job["params"]:
        text = json.dumps(job["params"], ensure_ascii=False, sort_keys=True, default=str)
        yield f"{indent}  params {text if len(text) <= WIDTH else text[: WIDTH - 3] + '...'}"
    groups: dict[str, list[str]] = {}
    outside = []
    for path in sorted(job["inputs"]):
        before = maker_of(path, made)
        if before is None:
            outside.append(path)
        else:
            groups.setdefault(before["id"], []).append(path)
    for path in outside:
        yield f"{indent}  |- {path}{digest(job['inputs'][path])}  from outside of the workflow"
    for number, (name, paths) in enumerate(groups.items(), start=1):
        before = next(made_by for made_by in (maker_of(path, made) for path in paths) if made_by)
        last = number == len(groups)
        for path in paths:
            yield f"{indent}  |- {path}{digest(job['inputs'][path])}"
        if name != job["id"]:
            yield from told(before, made, indent + ("     " if last else "  |  "), shown)


def digest(sha256: str | None) -> str:
    """Return the beginning of a file's hash, where it is known."""
    return f"  {sha256[:12]}" if sha256 else ""


def when(job: Mapping[str, Any]) -> str:
    """Return when and where a job ran, in words."""
    parts = []
    if job["start"]:
        parts.append(time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(job["start"])))
        parts.append(f"{job['seconds'] or 0:.1f} s")
    if len(job["attempts"]) > 1:
        parts.append(f"attempt {len(job['attempts'])}")
    repeated = sum(attempt.get("repeated_steps", 0) for attempt in job["attempts"])
    parts += [f"{repeated} steps repeated"] if repeated else []
    host = job["host"]
    if host:
        parts.append(f"{host['processors']} x {host['processor']}, Python {host['python']}")
    parts += [f"{count} x {kind}" for kind, count in job["accelerators"].items()]
    return ", ".join(parts) or "when and where is not known"
