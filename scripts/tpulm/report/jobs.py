"""The jobs that made a set of files: when each ran, what it waited for, and what all of them cost.

The ledger (tpulm.core.ledger) is no artifact.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tpulm.core import ledger
from tpulm.core.accelerators import mean_watts, slice_named
from tpulm.core.devices import devices_in_words

PAUSE = 60  # seconds in which no job ran that count as a pause between two commands


def jobs_behind(files: Iterable[str], known: list[ledger.Job]) -> list[dict[str, Any]]:
    """Return those of the known jobs from which files came to be, directly or not.

    Each job has rule, of (what tells it from others of its rule), started (seconds since 1970, of its last attempt),
    seconds, waited (seconds from the end of the last job that made one of its inputs), outputs (how many files), and
    what `attempts_of` says; they are in the order in which they began.
    """
    made = ledger.makers(known)
    behind = ledger.ancestors([ledger.name_here(file) for file in files], known)
    ends = {job["id"]: job["start"] + job["seconds"] for job in behind}
    found = []
    for job in behind:
        makers = [maker for path in job["inputs"] if (maker := ledger.read_from(job, path, made))]
        ready = max((ends[maker["id"]] for maker in makers if maker["id"] in ends), default=job["start"])
        entry = {"rule": job["rule"], "of": label(job["log"]), "started": job["start"], "outputs": len(job["outputs"])}
        entry |= {"waited": round(max(job["start"] - ready, 0.0), 3), "seconds": round(job["seconds"], 3)}
        found.append(entry | attempts_of(job))
    return sorted(found, key=lambda job: (job["started"], job["rule"], job["of"]))


def attempts_of(job: ledger.Job) -> dict[str, Any]:
    """Return the attempts of a job, from its record.

    cpu_seconds     of the last one
    accelerators    of the last one: how many, by kind, on all hosts that trained; none for processors
    failed          attempts before it, each with started, ended and cpu_seconds (None if it was killed)
    repeated_steps  of training, done again after an attempt that ended early
    """
    *failed, last = job["attempts"]
    # Without a note, a job has the GPUs of its machine, which it need not have used.
    noted = last.get("devices") or {kind: n for kind, n in job["accelerators"].items() if kind.startswith("TPU")}
    return {
        "cpu_seconds": last["cpu_seconds"],
        "accelerators": {kind: number for kind, number in noted.items() if kind.lower() != "cpu"},
        "failed": [
            {
                "started": attempt["start"],
                "ended": attempt["start"] + attempt["seconds"] if "seconds" in attempt else None,
                "cpu_seconds": attempt.get("cpu_seconds"),
            }
            for attempt in failed
        ],
        "repeated_steps": sum(attempt.get("repeated_steps", 0) for attempt in job["attempts"]),
    }


def label(log: str) -> str:
    """Return the part of a job's log that tells it from others of its rule."""
    return (f"/{log}".partition("/logs/")[2] or log).removesuffix(".log")


def busy(jobs: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return when each attempt of jobs began and for how long it ran, by their begin: of those that were not killed."""
    failed = (attempt for job in jobs for attempt in job["failed"] if attempt["ended"] is not None)
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


def account(files: Iterable[str], recipe: Mapping[str, Any], known: list[ledger.Job]) -> dict[str, Any]:
    """Return the content of results/jobs.json: totals, rules, pauses and jobs.

    files    those that the page is made of
    recipe   of the page: cpu_watts and cpu_price of a thread, prices of slices
    known    the jobs of the ledger

    Times are seconds from the start of the first attempt of a job, and totals count all attempts, but those that were
    killed: nobody knows how long they ran. The energy of processors is an estimate, for the time that jobs computed.
    The energy of accelerators is counted where their maker has published what they take.
    """
    jobs = jobs_behind(files, known)
    attempts = [attempt for job in jobs for attempt in job["failed"]]
    began = min((one["started"] for one in [*jobs, *attempts]), default=0.0)
    for attempt in attempts:
        for key in ("started", "ended"):
            attempt[key] = None if attempt[key] is None else round(attempt[key] - began, 3)
    for job in jobs:
        job["started"] = round(job["started"] - began, 3)
    spans = busy(jobs)
    pauses = pauses_between(spans)
    ended = max((started + seconds for started, seconds in spans), default=0.0)
    totals = {
        "jobs": len(jobs),
        "elapsed_seconds": round(ended - sum(pause["seconds"] for pause in pauses), 3),
        "job_seconds": round(sum(seconds for _, seconds in spans), 3),
        "failed_attempts": len(attempts),
        "killed_attempts": sum(attempt["ended"] is None for attempt in attempts),
        "repeated_steps": sum(job["repeated_steps"] for job in jobs),
    }
    totals |= costs_of(jobs, recipe)
    return {"totals": totals, "rules": by_rule(jobs), "pauses": pauses, "jobs": jobs}


def costs_of(jobs: Iterable[Mapping[str, Any]], recipe: Mapping[str, Any]) -> dict:
    """Return energy and money of jobs: see `account`. A price is null where a part of it is not known."""
    used = watts = money = 0.0
    unknown, unpriced = set(), recipe["cpu_price"] is None
    for job in jobs:
        used += job["cpu_seconds"] + sum(attempt["cpu_seconds"] or 0.0 for attempt in job["failed"])
        ended = [attempt for attempt in job["failed"] if attempt["ended"] is not None]
        seconds = job["seconds"] + sum(attempt["ended"] - attempt["started"] for attempt in ended)
        for kind, number in job["accelerators"].items():
            power, price = mean_watts(kind, number), recipe["prices"].get(slice_named(kind, number))
            watts += seconds * (power or 0.0)
            money += seconds / 3600 * (price or 0.0)
            unpriced |= price is None
            unknown |= {devices_in_words({kind: number})} if power is None else set()
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
        rule["failed"] += len(job["failed"])
    return found
