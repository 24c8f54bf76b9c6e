"""How a file came to be, back to the text: the jobs that made a folder of results, without Snakemake.

Snakemake keeps, for each output, the rule, the inputs with their checksums, the params and the times; the record beside
a job's log has the rest, see tpulm.core.job_record. Where one of the two is gone, the other says what it knows.
Jobs whose results are in a bucket are told as if those were in the folder, to which they can be copied.

A job is a dictionary that JSON can hold:

id        its log, without the ending and logs/ at its beginning, such as mlm/tiny/00001500
rule, wildcards, params, log
inputs, code, outputs  sha256 (None where it is not known) by path: data; scripts, modules and lock; what it made
folders   those of the outputs that are folders, whose files `outputs` has; archives of 0.1.0 do not have them
start, seconds         when it began (seconds since 1970), how long it took
attempts               of each: start, and what `end` and `note` of the record say; `exit` is None where it was killed
host, software, accelerators  of the last attempt; empty where there is no record
"""

import ast
import base64
import contextlib
import json
import os
import time
import zipfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from tpulm.core import job_record
from tpulm.core.errors import UserError
from tpulm.core.files import sha256
from tpulm.core.job_record import name_here

METADATA = Path(".snakemake") / "metadata"
LOGS = Path("logs")
CODE = ("scripts", "envs")
# Seconds between the records of a job's outputs. More is an earlier job of the same log, whose output has gone since.
SAME_JOB = 1.0


def script_run(job: Mapping[str, Any]) -> str:
    """Return the script of a job: the one among its code, since a module's rules have names that its user gives."""
    scripts = [path for path in job.get("code", ()) if Path(path).parts[-3:-2] == (CODE[0],) and "tpulm" not in path]
    return scripts[0] if len(scripts) == 1 else next(map(str, Path().glob(f"scripts/*/{job['rule']}.py")), "")


def jobs_of(folder: Path) -> list[dict[str, Any]]:
    """Return the jobs that are known in a working folder, by their ids in order.

    Those of a module of another workflow have the prefix that the other gives to its paths, also to the logs.
    """
    found: dict[str, dict[str, Any]] = {}
    for output, record in metadata(folder / METADATA):
        log = name_here(record["log"][0]) if record.get("log") else f"logs/{record['rule']}.log"
        job = found.setdefault(identity(log), blank(log))
        later = record["starttime"] - (job["start"] or record["starttime"])
        if later < -SAME_JOB:
            continue
        if later > SAME_JOB:
            job = found[identity(log)] = blank(log)
        job |= {"rule": record["rule"], "params": params(record), "start": record["starttime"]}
        job["seconds"] = record["endtime"] - record["starttime"]
        job["outputs"][name_here(output)] = None
        sums = record.get("input_checksums") or {}
        for path in record["input"]:
            known = sums.get(path, "").removeprefix("sha256:") or None
            job["code" if is_code(path) else "inputs"][name_here(path)] = known
    logs = {folder / place for job in found.values() for place in Path(job["log"]).parents if place.name == LOGS.name}
    places = [*({folder / LOGS, *folder.glob(f"experiments/*/{LOGS}")} | logs), folder / job_record.COPIES]
    for path in sorted(path for place in places for path in place.rglob(f"*{job_record.ENDING}")):
        log = name_here(str(path.relative_to(folder))).removesuffix(job_record.ENDING) + ".log"
        add_record(found.setdefault(identity(log), blank(log)), job_record.read(path))
    return [found[name] for name in sorted(found) if found[name]["rule"]]


def identity(log: str) -> str:
    """Return the id of the job with this log."""
    return log.removeprefix("logs/").removesuffix(".log")


def blank(log: str) -> dict[str, Any]:
    """Return a job of which only its log is known."""
    known: dict[str, Any] = {"id": identity(log), "rule": "", "wildcards": {}, "params": None, "log": log}
    known |= {"inputs": {}, "code": {}, "outputs": {}, "folders": [], "start": None, "seconds": None}
    return known | {"attempts": [], "host": {}, "software": {}, "accelerators": {}}


def is_code(path: str) -> bool:
    """Return whether an input is the workflow's own source: a module of Python, or a lock."""
    parts = Path(path).parts
    return path.endswith((".py", ".txt")) and any(part in CODE for part in parts[:-1]) and "results" not in parts


def metadata(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each output and what Snakemake has written of it, of jobs that ended well.

    The names of the files are the outputs in base64, in folders that begin with @ where they are long.
    """
    for root, _, names in os.walk(folder):
        parents = [part.removeprefix("@") for part in Path(root).relative_to(folder).parts]
        for name in sorted(names):
            with contextlib.suppress(OSError, ValueError):
                record = json.loads((Path(root) / name).read_bytes())
                if record.get("rule") and record.get("starttime") and not record.get("incomplete"):
                    yield base64.urlsafe_b64decode("".join([*parents, name])).decode(), record


def params(record: Mapping[str, Any]) -> Any:
    """Return the recipe of a job: Snakemake keeps the text of each param, and rules have one or none."""
    found = []
    for text in record.get("params") or []:
        try:
            found.append(ast.literal_eval(text))
        except (ValueError, SyntaxError):
            found.append(text)
    return found[0] if len(found) == 1 else found or None


def add_record(job: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    """Add to a job what its own record says."""
    # Snakemake names the inputs as they are in the workflow, a record as the job saw them: copies, perhaps.
    named = bool(job["inputs"] or job["code"])
    for line in lines:
        event, facts = line["event"], {key: value for key, value in line.items() if key != "event"}
        if event == "start":
            job["attempts"].append({"start": facts["time"], "exit": None})
            job |= {"wildcards": facts["wildcards"], "host": facts["host"], "rule": facts["rule"]}
            job["params"] = facts["recipe"] if job["params"] is None else job["params"]
            for path in [] if named else facts["inputs"]:
                kind = "code" if is_code(path) else "inputs"
                job[kind].setdefault(name_here(path), None)
            continue
        if not job["attempts"]:
            continue
        attempt = job["attempts"][-1]
        if event == "note":
            attempt |= facts
            continue
        attempt |= {"seconds": facts["time"] - attempt["start"], "exit": facts["exit"]}
        attempt |= {key: facts[key] for key in ("cpu_seconds", "memory_bytes") if key in facts}
        job |= {key: facts.get(key, {}) for key in ("software", "accelerators")}
        made = {name_here(path): facts_of["sha256"] for path, facts_of in facts.get("outputs", {}).items()}
        if made:
            # Of a folder, Snakemake knows the folder only.
            folders = [path for path in job["outputs"] if any(file.startswith(f"{path}/") for file in made)]
            job["outputs"] = {path: None for path in job["outputs"] if path not in folders} | made
            job["folders"] = folders
    if job["attempts"] and job["start"] is None:
        job |= {"start": job["attempts"][-1]["start"], "seconds": job["attempts"][-1].get("seconds")}


def makers(jobs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the job that made each output, by path, in the order of paths; the last one where there are several."""
    ordered = sorted(jobs, key=lambda job: job["start"] or 0)
    return dict(sorted({path: job for job in ordered for path in job["outputs"]}.items(), key=itemgetter(0)))


def maker_of(path: str, made: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Return the job that made a file, or the folder that it is in, or a file in it where it is a folder.

    made  of `makers`
    """
    for place in (Path(path), *Path(path).parents):
        if str(place) in made:
            return made[str(place)]
    files, folder = list(made), f"{path.rstrip('/')}/"
    at = bisect_left(files, folder)
    return made[files[at]] if at < len(files) and files[at].startswith(folder) else None


def target_of(path: str, job: Mapping[str, Any]) -> str:
    """Return the output of a job by which Snakemake makes a file again: the folder, where it is in one."""
    folder = next((folder for folder in job.get("folders", ()) if f"{path}/".startswith(f"{folder}/")), None)
    return folder or (path if path in job["outputs"] else min(job["outputs"]))


def ancestors(paths: list[str], jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the jobs that paths came to be by, in an order in which each stands behind those that it follows from."""
    made, found, done = makers(jobs), [], set()
    stack = [(job, False) for job in (maker_of(path, made) for path in reversed(paths)) if job]
    while stack:
        job, ready = stack.pop()
        if ready:
            found.append(job)
        elif job["id"] not in done:
            done.add(job["id"])
            stack.append((job, True))
            before = [maker_of(path, made) for path in sorted(job["inputs"], reverse=True)]
            stack += [(other, False) for other in before if other and other["id"] not in done]
    return found


WIDTH = 110  # characters of params that are shown
ALIKE, FILES = 3, 8  # jobs of one rule, and files of one job, that a job's inputs are shown of
JOBS = "jobs.json"  # in an archive
Job = dict[str, Any]  # of tpulm.release.provenance


def known_jobs(place: Path) -> list[dict[str, Any]]:
    """Return the jobs of an archive (the file, or the folder that it was unpacked to) or of a working folder."""
    if place.is_file():
        if not zipfile.is_zipfile(place):
            raise UserError(f"{place} is not an archive; allowed: a folder, or an archive of `snakemake archive`.")
        with zipfile.ZipFile(place) as archive:
            return list(json.loads(archive.read(JOBS)))
    if (place / JOBS).is_file():
        return list(json.loads((place / JOBS).read_text(encoding="utf-8")))
    return jobs_of(place)


def provenance(file: str, place: Path, everything: bool = False) -> Iterator[str]:
    """Yield the lines that say how a file came to be. Raises UserError where no job is known to have made it.

    everything  whether to tell of every job, also of many that are alike
    """
    made = makers(known_jobs(place))
    job = maker_of(file, made)
    if job is None:
        near = sorted(path for path in made if Path(path).name == Path(file).name)[:3]
        more = f"; did you mean {', '.join(near)}?" if near else "; allowed: a file that the workflow wrote."
        raise UserError(f"no known job in {place} made {file}{more}")
    shown: set[str] = set()
    # What is still to be said, the next thing last: a line, or a job with its indent and how many like it led here. A
    # chain of checkpoints can be longer than Python's stack.
    known, now = job["outputs"].get(file), place / file
    changed = known and now.is_file() and sha256(now) != known
    waiting: list[str | tuple[Job, str, int]] = [(job, "", 0), f"{file}{'  changed since' if changed else ''}"]
    while waiting:
        told = waiting.pop()
        if isinstance(told, str):
            yield told
        else:
            waiting += reversed(list(lines_of(*told, made, shown, everything)))


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
    yield f"{indent}  by {job['rule']}  ({script_run(job)}, log {job['log']})"
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
        moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(later["start"] or 0))
        by = f"{later['rule']} {later['id']}, {moment}"
        yield f"{indent}  |- {path}{digest(job['inputs'][path])}  replaced since by {by}"
    if len(replaced) > few:
        yield f"{indent}  |- … and {len(replaced) - few:,} more that were replaced since"
    rules = Counter(before["rule"] for before, _ in groups.values())
    told: Counter[str] = Counter()
    for number, (before, paths) in enumerate(groups.values(), start=1):
        told[before["rule"]] += 1
        if not everything and told[before["rule"]] > ALIKE:
            if told[before["rule"]] == rules[before["rule"]]:
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


def replaced_since(job: Job, path: str, maker: Job) -> bool:
    """Return whether the file that a job read is not the one that its last maker wrote: by checksums, else by time."""
    # The fingerprint beside a folder tells whether it is the same.
    known = f"{path}.json" if path in maker.get("folders", ()) and f"{path}.json" in job["inputs"] else path
    read, written = job["inputs"].get(known), maker["outputs"].get(known)
    if read and written:
        return bool(read != written)
    return bool(job["start"] and maker["start"] and maker["start"] > job["start"])


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
    return ", ".join(parts) or "time and place are not known"
