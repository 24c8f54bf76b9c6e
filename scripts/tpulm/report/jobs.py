"""The jobs that made a set of files: when each ran, what it waited for, and what all of them cost.

The records of jobs (tpulm.core.past_jobs) are no artifacts. A job without one of its own counts as Snakemake saw it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tpulm.core import past_jobs
from tpulm.core.accelerators import mean_watts, slice_named
from tpulm.core.job_record import name_here

MODELS = ("mlm", "base", "finetune")  # stages whose jobs compute with cpu_threads; others have one
PAUSE = 60  # seconds in which no job ran that count as a pause between two commands


def jobs_behind(files: Iterable[str]) -> list[dict[str, Any]]:
    """Return the jobs from which files came to be, directly or not.

    Each job has rule, of (what tells it from others of its rule), started (seconds since 1970, of its last attempt),
    seconds, waited (seconds from the end of the last job that made one of its inputs), outputs (how many files), and
    what `attempts_of` says; they are in the order in which they began.
    """
    known = past_jobs.jobs_of(Path(), pods=True)
    made = past_jobs.makers(known)
    behind = [
        job for job in past_jobs.ancestors([name_here(file) for file in files], known) if job["seconds"] is not None
    ]
    spans = {job["id"]: span_of(job) for job in behind}
    found = []
    for job in behind:
        makers = [maker for path in job["inputs"] if (maker := past_jobs.read_from(job, path, made))]
        started, ended = spans[job["id"]]
        ready = max((spans[maker["id"]][1] for maker in makers if maker["id"] in spans), default=started)
        told = {"rule": job["rule"], "of": label(job["log"]), "started": started}
        told |= {"outputs": len(job["outputs"]), "waited": round(max(started - ready, 0.0), 3)}
        found.append(told | {"seconds": round(max(ended - started, 0.0), 3)} | attempts_of(job))
    return sorted(found, key=lambda job: (job["started"], job["rule"], job["of"]))


def span_of(job: past_jobs.Job) -> tuple[float, float]:
    """Return when the last attempt of a job began and ended, seconds since 1970: by its record, else by Snakemake's."""
    started, seconds = job["start"], job["seconds"]
    if job["attempts"] and "seconds" in job["attempts"][-1]:
        started, seconds = job["attempts"][-1]["start"], job["attempts"][-1]["seconds"]
    return started, started + seconds


def attempts_of(job: past_jobs.Job) -> dict[str, Any]:
    """Return what a job's record says of its attempts; nothing where it has none, or lacks the end of the last.

    cpu_seconds     of the last one
    accelerators    of the last one: how many, by kind
    failed          attempts before it, each with started, ended and cpu_seconds (None if it was killed)
    repeated_steps  of training, done again after an attempt that ended early
    """
    if not job["attempts"] or "seconds" not in job["attempts"][-1]:
        return {}
    *failed, last = job["attempts"]
    return {
        "cpu_seconds": last.get("cpu_seconds", 0.0),
        "accelerators": job["accelerators"],
        "failed": [
            {
                "started": attempt["start"],
                "ended": attempt["start"] + attempt["seconds"] if "seconds" in attempt else None,
                "cpu_seconds": attempt.get("cpu_seconds", 0.0) if "seconds" in attempt else None,
            }
            for attempt in failed
        ],
        "repeated_steps": sum(attempt.get("repeated_steps", 0) for attempt in job["attempts"]),
    }


def label(log: str) -> str:
    """Return what tells a job from others of its rule, by the name of its log."""
    return (f"/{log}".partition("/logs/")[2] or log).removesuffix(".log")


def busy(jobs: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return when each attempt of jobs began and for how long it ran, by their begin: of those that were not killed."""
    failed = (attempt for job in jobs for attempt in job.get("failed", []) if attempt["ended"] is not None)
    found = [(attempt["started"], attempt["ended"] - attempt["started"]) for attempt in failed]
    return sorted(found + [(job["started"], job["seconds"]) for job in jobs])


def pauses_between(spans: Iterable[tuple[float, float]]) -> list[dict[str, float]]:
    """Return the times of more than PAUSE seconds in which nothing ran: after (seconds since the begin), seconds."""
    found: list[dict[str, float]] = []
    until = None
    for started, seconds in spans:
        if until is not None and started - until > PAUSE:
            found.append({"after": round(until, 3), "seconds": round(started - until, 3)})
        until = max(until or 0.0, started + seconds)
    return found


def account(files: Iterable[str], recipe: Mapping[str, Any], devices: Mapping[str, str]) -> dict[str, Any]:
    """Return what results/jobs.json says: totals, rules, pauses and jobs.

    files    those that the page is made of
    recipe   of the page: rules (the stage of each), cpu_threads, cpu_watts and cpu_price of a thread, prices of slices
    devices  on what each run was trained, by its label

    Times are seconds from the start of the first attempt of a job, and totals count all attempts, but those that were
    killed: nobody knows how long they ran. The energy of processors is an estimate: for as many threads as were asked
    for, as long as the job ran, or for the time that it computed where its record says that. The energy of accelerators
    is counted where their maker has published what they take.
    """
    jobs = jobs_behind(files)
    attempts = [attempt for job in jobs for attempt in job.get("failed", [])]
    began = min((one["started"] for one in [*jobs, *attempts]), default=0.0)
    for attempt in attempts:
        for key in ("started", "ended"):
            attempt[key] = None if attempt[key] is None else round(attempt[key] - began, 3)
    for job in jobs:
        job["started"] = round(job["started"] - began, 3)
        job["threads"] = recipe["cpu_threads"] if recipe["rules"].get(job["rule"]) in MODELS else 1
    spans = busy(jobs)
    pauses = pauses_between(spans)
    ended = max((started + seconds for started, seconds in spans), default=0.0)
    totals = {
        "jobs": len(jobs),
        "elapsed_seconds": round(ended - sum(pause["seconds"] for pause in pauses), 3),
        "job_seconds": round(sum(seconds for _, seconds in spans), 3),
        "failed_attempts": len(attempts),
        "killed_attempts": sum(attempt["ended"] is None for attempt in attempts),
        "repeated_steps": sum(job.get("repeated_steps", 0) for job in jobs),
    }
    totals |= costs_of(jobs, recipe, devices)
    return {"totals": totals, "rules": by_rule(jobs), "pauses": pauses, "jobs": jobs}


def device_of(job: Mapping[str, Any], devices: Mapping[str, str]) -> str:
    """Return the accelerators of a job as timings.csv names them, empty for processors: its run's, or its record's.

    A record has the devices of one host, timings.csv those of all that trained. It also has GPUs that a job did not
    use, so that only TPUs are taken of it.
    """
    folder, _, segment = job["of"].rpartition("/")
    found = [devices[folder]] if segment.isdigit() and devices.get(folder) else []
    noted = job.get("accelerators", {}).items()
    found += [f"{number} device(s) ({kind})" for kind, number in noted if kind.startswith("TPU")]
    return "" if not found or found[0].endswith(("(CPU)", "(cpu)")) else found[0]


def costs_of(jobs: Iterable[Mapping[str, Any]], recipe: Mapping[str, Any], devices: Mapping[str, str]) -> dict:
    """Return energy and money of jobs: see `account`. A price is null where a part of it is not known."""
    used = watts = money = 0.0
    unknown, unpriced = set(), recipe["cpu_price"] is None
    for job in jobs:
        seconds = job["seconds"]
        used += job.get("cpu_seconds", seconds * job["threads"])
        for attempt in job.get("failed", []):
            used += attempt["cpu_seconds"] or 0.0
            seconds += attempt["ended"] - attempt["started"] if attempt["ended"] is not None else 0.0
        device = device_of(job, devices)
        if device:
            power, price = mean_watts(device), recipe["prices"].get(slice_named(device))
            watts += seconds * (power or 0.0)
            money += seconds / 3600 * (price or 0.0)
            unpriced |= price is None
            unknown |= {device} if power is None else set()
    return {
        "thread_seconds": round(used, 3),
        "watts_per_thread": recipe["cpu_watts"],
        "watt_hours": round((used * recipe["cpu_watts"] + watts) / 3600, 3),
        "unknown_power": sorted(unknown),
        "price": None if unpriced else round(money + used / 3600 * recipe["cpu_price"], 6),
    }


def by_rule(jobs: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return how many jobs each rule had, their seconds (of all, and of the longest), and attempts that failed."""
    found: dict[str, dict[str, float]] = {}
    for job in jobs:
        rule = found.setdefault(job["rule"], {"jobs": 0, "seconds": 0.0, "longest": 0.0, "failed": 0})
        rule["jobs"] += 1
        rule["seconds"] = round(rule["seconds"] + job["seconds"], 3)
        rule["longest"] = max(rule["longest"], job["seconds"])
        rule["failed"] += len(job.get("failed", []))
    return found
