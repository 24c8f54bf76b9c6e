"""The jobs that left files in a working folder: what each read and wrote, by its bytes, and which followed from which.

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
import shlex
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


Job = dict[str, Any]


def jobs_of(folder: Path, pods: bool = False) -> list[Job]:
    """Return the jobs that are known in a working folder, by their ids in order.

    Those of a module of another workflow have the prefix that the other gives to its paths, also to the logs.

    pods  whether to fetch the records of pods from the bucket that they are in
    """
    found: dict[str, Job] = {}
    logs_of: dict[str, str] = {}
    for output, record in metadata(folder / METADATA):
        log = name_here(record["log"][0]) if record.get("log") else f"logs/{record['rule']}.log"
        job = found.setdefault(identity(log), blank(log))
        later = record["starttime"] - (job["start"] or record["starttime"])
        if later < -SAME_JOB:
            continue
        if later > SAME_JOB:
            job = found[identity(log)] = blank(log)
        logs_of |= {identity(log): path for path in record.get("log") or []}
        job |= {"rule": record["rule"], "params": params(record), "start": record["starttime"]}
        job["seconds"] = max(job["seconds"] or 0.0, record["endtime"] - record["starttime"])
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
    without = {path: name for name, path in logs_of.items() if pods and not found[name]["attempts"]}
    for log, lines in job_record.of_logs(without).items():
        add_record(found[without[log]], lines)
    return [found[name] for name in sorted(found) if found[name]["rule"]]


def identity(log: str) -> str:
    """Return the id of the job with this log."""
    return log.removeprefix("logs/").removesuffix(".log")


def blank(log: str) -> Job:
    """Return a job of which only its log is known."""
    known: Job = {"id": identity(log), "rule": "", "wildcards": {}, "params": None, "log": log}
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


def add_record(job: Job, lines: list[dict[str, Any]]) -> None:
    """Add to a job what its own record says, unless that is of an earlier job."""
    starts = [line["time"] for line in lines if line["event"] == "start"]
    if job["start"] and starts and starts[-1] < job["start"] - job_record.CLOCKS_DIFFER:
        return
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


def makers(jobs: list[Job]) -> dict[str, Job]:
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


def refuse_changed(paths: Iterable[str | Path]) -> None:
    """Raise UserError for a file that is not as its job left it, by the SHA-256 of the job's record.

    paths  files, and folders with files
    """
    jobs = jobs_of(Path(), pods=True)
    made = makers(jobs)
    for given in map(Path, paths):
        for file in sorted(given.rglob("*")) if given.is_dir() else [given]:
            name = name_here(str(file))
            job = made.get(name)
            if job and job["outputs"][name] and file.is_file() and sha256(file) != job["outputs"][name]:
                raise UserError(
                    f"{name} is not what {job['rule']} wrote; to write it again, with the options of this command: "
                    f"{repair_of([name], jobs)}"
                )


def repair_of(paths: Iterable[str], jobs: list[Job], options: Sequence[str] = ()) -> str:
    """Return the command that makes files again, and nothing else; empty where no job is known that made them.

    options  of the Snakemake that found the damage

    A Snakemake that may run only the rules of its targets takes all else as it is, though it follows from a target.
    Files that follow from each other have a Snakemake each: the earlier one has its old bytes again by then, which
    Snakemake compares, unless it is larger than max-checksum-file-size.
    """
    made = makers(jobs)
    targets = {job["id"]: target_of(path, job) for path in sorted(paths) if (job := maker_of(path, made))}
    levels: dict[str, int] = {}
    commands: dict[int, list[Job]] = {}
    for job in ancestors(list(targets.values()), jobs):
        before = [levels[maker["id"]] for path in job["inputs"] if (maker := read_from(job, path, made))]
        levels[job["id"]] = max(before, default=0) + (job["id"] in targets)
        if job["id"] in targets:
            commands.setdefault(levels[job["id"]], []).append(job)
    return " && ".join(
        shlex.join(
            ["snakemake", "--force", *(targets[job["id"]] for job in own)]
            + ["--allowed-rules", *dict.fromkeys(job["rule"] for job in own), *options]
        )
        for _, own in sorted(commands.items())
    )


def target_of(path: str, job: Mapping[str, Any]) -> str:
    """Return the output of a job by which Snakemake makes a file again: the folder, where it is in one."""
    folder = next((folder for folder in job.get("folders", ()) if f"{path}/".startswith(f"{folder}/")), None)
    return folder or (path if path in job["outputs"] else min(job["outputs"]))


def ancestors(paths: list[str], jobs: list[Job]) -> list[Job]:
    """Return the jobs that paths came to be by, in an order in which each stands behind those that it follows from.

    What a job read and a later one has replaced since leads nowhere: its job is not known any more.
    """
    made, found, done = makers(jobs), [], set()
    stack = [(job, False) for job in (maker_of(path, made) for path in reversed(paths)) if job]
    while stack:
        job, ready = stack.pop()
        if ready:
            found.append(job)
        elif job["id"] not in done:
            done.add(job["id"])
            stack.append((job, True))
            before = [maker for path in sorted(job["inputs"], reverse=True) if (maker := read_from(job, path, made))]
            stack += [(other, False) for other in before if other["id"] not in done]
    return found


def replaced_since(job: Job, path: str, maker: Job) -> bool:
    """Return whether the file that a job read is not the one that its last maker wrote: by checksums, else by time."""
    # The fingerprint beside a folder tells whether it is the same.
    known = f"{path}.json" if path in maker.get("folders", ()) and f"{path}.json" in job["inputs"] else path
    read, written = job["inputs"].get(known), maker["outputs"].get(known)
    if read and written:
        return bool(read != written)
    return bool(job["start"] and maker["start"] and maker["start"] > job["start"])


def read_from(job: Job, path: str, made: Mapping[str, Job]) -> Job | None:
    """Return the job that wrote what another read at a path; None where none did, or it was replaced since.

    made  of `makers`
    """
    maker = maker_of(path, made)
    return None if maker is None or replaced_since(job, path, maker) else maker
