"""The ledger: records of what each job read and wrote, by its bytes, when and where it ran, and by which code.

results/jobs/ID.jsonl is the record of the job with the log logs/ID.log: JSON objects, one a line, that are only
appended. It is no output and no input, so that clocks and hosts make nothing stale. With results in a bucket, it is
there, too, and the working folder has a copy. Only Snakemake's metadata decides what is stale.

start  an attempt: time (seconds since 1970), rule, script, wildcards, threads, recipe; code (of the script and each
       module), packages (pinned versions of those that compute), inputs, all by name; host
note   facts about an attempt: resumed_from_step, repeated_steps, devices (that train), a receipt, ...
end    time, exit (0 or 1), cpu_seconds (of the job and its processes), memory_bytes (peak of one of them),
       device_memory_bytes (peak of the first device; null where JAX does not tell it), software (versions of imported
       packages), accelerators (number by kind), outputs (of each file: bytes, sha256), folders (outputs that are
       folders). A killed attempt has none.

`jobs_of` returns the jobs as dictionaries that JSON can hold, each as it last ran:

id, rule, script, wildcards, params, log
inputs, code, outputs  sha256 by path, None if it is not known
packages, folders, host, software, accelerators, start, seconds  of the last attempt
attempts               since the success before the last run: start, seconds, exit (None: killed), and facts of
                       `record_end` and `note`
"""

import contextlib
import errno
import json
import os
import re
import shlex
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from tpulm.core import bucket
from tpulm.core.errors import UserError
from tpulm.core.files import files_of, sha256, write_text
from tpulm.core.secrets import redacted_values

FOLDER = "results/jobs"
# Folder of Snakemake's copies of objects in buckets: BUCKET/NAME.
COPIES = ".snakemake/storage/gcs/"
IN_FOLDER = re.compile(r"/(?:results|logs)/")  # where the path in a working folder begins
CLOCKS_DIFFER = 60  # seconds between the clocks of hosts, at most
MANY, AT_ONCE = "all.json", 50  # an object with many records by name; the number of records that need it

Job = dict[str, Any]


# A record.


def path_of(log: str | Path) -> Path:
    """Return the path of the record of the job with this log."""
    place, _, name = f"/{log}".partition("/logs/")
    return Path(f"{place}/{FOLDER}/{name.removesuffix('.log')}.jsonl"[1:])


def folder_of(path: str | Path) -> Path:
    """Return the folder of records for a path of a result, a log or a record."""
    known = IN_FOLDER.search(f"/{path}")
    return Path(str(path)[: known.start()] if known else "", FOLDER)


def log_of(path: Path) -> str:
    """Return the log of the job with this record, as a path in the working folder."""
    place, _, name = f"/{name_here(str(path))}".partition(f"/{FOLDER}/")
    return f"{place}/logs/{name.removesuffix('.jsonl')}.log"[1:]


def name_here(path: str) -> str:
    """Return the path of a result or a log in a working folder, given that, its URL or Snakemake's copy of it."""
    known = IN_FOLDER.search(path) if bucket.remote(path) or COPIES in path else None
    return path[known.start() + 1 :] if known else path


def url_of(path: str | Path) -> str | None:
    """Return the URL of the object whose copy Snakemake has at this path; None for a file that is no copy."""
    _, copy, name = str(path).partition(COPIES)
    return f"{bucket.SCHEME}{name}" if copy else None


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Append a line to a record, in one write, and upload the record to its bucket. Raises OSError, UserError."""
    plain = json.loads(json.dumps(line, default=str, sort_keys=True))
    text = json.dumps(redacted_values(plain), sort_keys=True) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # a crash cut the last line short
            text = f"\n{text}"
        if os.write(descriptor, text.encode()) < len(text.encode()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)
    if url := url_of(path):
        bucket.upload(path, url)


def read_record(path: Path) -> list[dict[str, Any]]:
    """Return the valid lines of a record; none if it cannot be read."""
    with contextlib.suppress(OSError):
        return lines_of(path.read_text(encoding="utf-8", errors="replace"))
    return []


def lines_of(text: str) -> list[dict[str, Any]]:
    """Return the valid lines of a record's text."""
    lines = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            lines.append(json.loads(line))
    return [line for line in lines if isinstance(line, dict) and line.get("event") in ("start", "note", "end")]


def cut_short(log: str | Path, since: float) -> bool:
    """Return whether the last attempt of a job began after `since` and has no end: it was killed, or crashed.

    since  seconds since 1970, by this machine's clock
    """
    last = last_attempt(path_of(log))
    return last is not None and last["began"] >= since - CLOCKS_DIFFER and last["exit"] is None


def last_attempt(path: Path) -> dict[str, Any] | None:
    """Return the last attempt of a job, see `runs_of`; None without one."""
    runs = runs_of(read_record(path))
    return runs[-1][-1] if runs else None


def runs_of(lines: Iterable[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the runs of a job, each a list of attempts. A run ends with its first attempt that succeeded.

    An attempt has the facts of start, notes and end; `exit` is None without an end, `began` is the time of its start.
    """
    runs: list[list[dict[str, Any]]] = [[]]
    for line in lines:
        facts = {key: value for key, value in line.items() if key not in ("event", "time")}
        if line["event"] == "start":
            if runs[-1] and runs[-1][-1]["exit"] == 0:
                runs.append([])
            runs[-1].append(facts | {"began": line["time"], "exit": None})
        elif runs[-1]:
            runs[-1][-1].update(facts | ({"ended": line["time"]} if line["event"] == "end" else {}))
    return [run for run in runs if run]


def notes_of(path: Path, name: str) -> list[Any]:
    """Return the notes of a job under a name, in order."""
    return [line[name] for line in read_record(path) if line["event"] == "note" and name in line]


def last_success(path: Path) -> dict[str, Any] | None:
    """Return the last successful attempt of a job, see `runs_of`; None without one."""
    return next((run[-1] for run in reversed(runs_of(read_record(path))) if run[-1]["exit"] == 0), None)


# All records.


def synchronize(folder: Path) -> None:
    """Download records from the bucket to `folder` if the copy is shorter. Raises UserError.

    A record only grows: a longer copy belongs to a running job. Many records are read from one object, MANY, which has
    them as of the end of an earlier workflow.
    """
    url = url_of(folder)
    remote_sizes = bucket.sizes(url) if url else {}

    def shorter() -> list[str]:
        sizes = {name: (folder / name).stat().st_size if (folder / name).is_file() else -1 for name in remote_sizes}
        return [name for name, size in remote_sizes.items() if sizes[name] < size and name != MANY]

    if len(shorter()) > AT_ONCE and MANY in remote_sizes:
        combined = json.loads(bucket.read_object(f"{url}/{MANY}"))
        for name in shorter():
            write_text(folder / name, combined.get(name, ""))
    requests = {name: bucket.request(f"{url}/{name}") for name in shorter()}
    for name, request in requests.items():
        write_text(folder / name, bucket.result(request, f"{url}/{name}").decode())


def combine(folder: Path) -> None:
    """Write many records in the bucket into one object, for `synchronize` in another folder. Raises UserError."""
    synchronize(folder)
    records = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.jsonl")}
    if len(records) > AT_ONCE:
        write_text(folder / MANY, json.dumps(records))
        bucket.upload(folder / MANY, f"{url_of(folder)}/{MANY}")


def jobs_of(working: Path, folder: Path = Path(FOLDER)) -> list[Job]:
    """Return the jobs with records in a folder of a working folder, see `folder_of`, sorted by id."""
    jobs = {}
    for path in sorted((working / folder).rglob("*.jsonl")):
        with contextlib.suppress(LookupError):  # a record without an attempt, or with a line that lacks something
            job = job_of(log_of(path.relative_to(working)), runs_of(read_record(path))[-1])
            jobs[job["id"]] = job
    return [jobs[name] for name in sorted(jobs)]


def job_of(log: str, attempts: Sequence[Mapping[str, Any]]) -> Job:
    """Return a job, given the attempts of its last run."""
    last = attempts[-1]
    job = {"id": log.removeprefix("logs/").removesuffix(".log"), "log": log, "params": last["recipe"]}
    job |= {key: last[key] for key in ("rule", "script", "wildcards", "packages", "code", "inputs", "host")}
    job["outputs"] = {path: facts["sha256"] for path, facts in last.get("outputs", {}).items()}
    job |= {"folders": last.get("folders", [])}
    job |= {key: last.get(key, {}) for key in ("software", "accelerators")}
    keys = (
        *("exit", "cpu_seconds", "memory_bytes", "device_memory_bytes"),
        *("resumed_from_step", "repeated_steps", "devices"),
    )
    job["attempts"] = [
        {"start": attempt["began"]}
        | ({"seconds": attempt["ended"] - attempt["began"]} if "ended" in attempt else {})
        | {key: attempt[key] for key in keys if key in attempt}
        for attempt in attempts
    ]
    return job | {"start": last["began"], "seconds": job["attempts"][-1].get("seconds")}


def makers(jobs: list[Job]) -> dict[str, Job]:
    """Return the job that wrote each output last, by path, sorted."""
    ordered = sorted(jobs, key=itemgetter("start"))
    return dict(sorted({path: job for job in ordered for path in job["outputs"]}.items(), key=itemgetter(0)))


def maker_of(path: str, maker_jobs: Mapping[str, Job]) -> Job | None:
    """Return the job that wrote a file, or a file in a folder; maker_jobs  of `makers`."""
    if path in maker_jobs:
        return maker_jobs[path]
    files, folder = list(maker_jobs), f"{path.rstrip('/')}/"
    at = bisect_left(files, folder)
    return maker_jobs[files[at]] if at < len(files) and files[at].startswith(folder) else None


def replaced_since(job: Job, path: str, maker: Job) -> bool:
    """Return whether the file that a job read differs from the one that its maker wrote: by SHA-256, else by time."""
    read, written = job["inputs"].get(path), maker["outputs"].get(path)
    return bool(read != written if read and written else maker["start"] > job["start"])


def read_from(job: Job, path: str, maker_jobs: Mapping[str, Job]) -> Job | None:
    """Return the job that wrote the file that another job read; None without one, or if the file was replaced since.

    maker_jobs  of `makers`
    """
    maker = maker_of(path, maker_jobs)
    return None if maker is None or replaced_since(job, path, maker) else maker


def ancestors(paths: list[str], jobs: list[Job]) -> list[Job]:
    """Return the jobs from which paths follow, each after the jobs whose outputs it read.

    The job that wrote a file is not known any more if a later job has replaced the file.
    """
    maker_jobs, ordered, done = makers(jobs), [], set()
    stack = [(job, False) for job in (maker_of(path, maker_jobs) for path in reversed(paths)) if job]
    while stack:
        job, ready = stack.pop()
        if ready:
            ordered.append(job)
        elif job["id"] not in done:
            done.add(job["id"])
            stack.append((job, True))
            before = [
                maker for path in sorted(job["inputs"], reverse=True) if (maker := read_from(job, path, maker_jobs))
            ]
            stack += [(parent, False) for parent in before if parent["id"] not in done]
    return ordered


def damages_of(files: Mapping[str, Path], maker_jobs: Mapping[str, Job]) -> Iterator[tuple[str, str]]:
    """Yield each file that is not as its job wrote it, and a message about it.

    files  paths by name in the working folder; maker_jobs  of `makers`
    """
    for name, path in files.items():
        job = maker_jobs.get(name)
        if job and job["outputs"][name] and path.is_file() and sha256(path) != job["outputs"][name]:
            yield name, f"{name} is corrupt: its SHA-256 is not that of what {job['rule']} wrote ({job['log']})."


def refuse_changed(paths: Iterable[str | Path], jobs: list[Job]) -> None:
    """Raise UserError for a file that is not as its job wrote it; paths  files, and folders with files."""
    files = [file for path in paths for file in files_of(path)]
    for name, sentence in damages_of({name_here(str(file)): file for file in files}, makers(jobs)):
        command = repair_of([name], jobs)
        raise UserError(f"{sentence[:-1]}; to write it again, with the options of this command: {command}")


def repair_of(paths: Iterable[str], jobs: list[Job], options: Sequence[str] = ()) -> str:
    """Return the command that writes files again, and nothing else; "" if their jobs are not known.

    options  of the Snakemake that found the damage

    With --allowed-rules, Snakemake leaves all other files as they are, even if they follow from a target. Files that
    follow from each other have one command each: after the first, its file has its old bytes, which Snakemake compares,
    unless it is larger than max-checksum-file-size.
    """
    maker_jobs = makers(jobs)
    targets = {job["id"]: target_of(path, job) for path in sorted(paths) if (job := maker_of(path, maker_jobs))}
    levels: dict[str, int] = {}
    commands: dict[int, list[Job]] = {}
    for job in ancestors(list(targets.values()), jobs):
        before = [levels[maker["id"]] for path in job["inputs"] if (maker := read_from(job, path, maker_jobs))]
        levels[job["id"]] = max(before, default=0) + (job["id"] in targets)
        if job["id"] in targets:
            commands.setdefault(levels[job["id"]], []).append(job)
    return " && ".join(
        shlex.join(
            ["snakemake", "--force", *(targets[job["id"]] for job in level_jobs)]
            + ["--allowed-rules", *dict.fromkeys(job["rule"] for job in level_jobs), *options]
        )
        for _, level_jobs in sorted(commands.items())
    )


def target_of(path: str, job: Mapping[str, Any]) -> str:
    """Return the output of a job that Snakemake must write for a file: the folder, if the file is in one."""
    folder = next((folder for folder in job["folders"] if f"{path}/".startswith(f"{folder}/")), None)
    return folder or (path if path in job["outputs"] else min(job["outputs"]))
