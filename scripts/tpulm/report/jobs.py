"""Account for the jobs that made a set of files, from the ledger: times, waits, pauses, failures, energy and cost."""

from collections.abc import Iterable, Mapping
from typing import Any

from tpulm.core import ledger
from tpulm.core.accelerators import mean_watts, slice_named
from tpulm.core.devices import devices_in_words

PAUSE = 60  # seconds without a job that count as a pause between two commands


def jobs_behind(files: Iterable[str], known: list[ledger.Job]) -> list[dict[str, Any]]:
    """Return the jobs that made files, directly or not, sorted by start.

    Each has rule, of (its label within the rule), started (Unix time of its last attempt, seconds), seconds, waited
    (seconds since the last of its inputs was made), outputs (number of files), and the keys of `attempts_of`.
    """
    maker_of = ledger.makers(known)
    behind = ledger.ancestors([ledger.name_here(file) for file in files], known)
    ends = {job["id"]: job["start"] + job["seconds"] for job in behind}
    entries = []
    for job in behind:
        makers = [maker for path in job["inputs"] if (maker := ledger.read_from(job, path, maker_of))]
        ready = max((ends[maker["id"]] for maker in makers if maker["id"] in ends), default=job["start"])
        label = (f"/{job['log']}".partition("/logs/")[2] or job["log"]).removesuffix(".log")
        entry = {"rule": job["rule"], "of": label, "started": job["start"], "outputs": len(job["outputs"])}
        entry |= {"waited": round(max(job["start"] - ready, 0.0), 3), "seconds": round(job["seconds"], 3)}
        entries.append(entry | attempts_of(job))
    return sorted(entries, key=lambda job: (job["started"], job["rule"], job["of"]))


def attempts_of(job: ledger.Job) -> dict[str, Any]:
    """Return the attempts of a job, from its record.

    cpu_seconds     of the last attempt
    accelerators    of the last attempt: their number on all hosts, by kind, without processors
    failed          earlier attempts: started, ended, cpu_seconds (None if it was killed)
    repeated_steps  training steps that were done again after failed attempts
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


def busy(jobs: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return (start, seconds) of each attempt of jobs that was not killed, sorted."""
    failed = (attempt for job in jobs for attempt in job["failed"] if attempt["ended"] is not None)
    spans = [(attempt["started"], attempt["ended"] - attempt["started"]) for attempt in failed]
    return sorted(spans + [(job["started"], job["seconds"]) for job in jobs])


def pauses_between(spans: Iterable[tuple[float, float]]) -> list[dict[str, float]]:
    """Return the spans of more than PAUSE seconds without a job: after (seconds since the first start), seconds."""
    pauses: list[dict[str, float]] = []
    until = None
    for started, seconds in spans:
        if until is not None and started - until > PAUSE:
            pauses.append({"after": round(until, 3), "seconds": round(started - until, 3)})
        until = max(until or 0.0, started + seconds)
    return pauses


def account(files: Iterable[str], recipe: Mapping[str, Any], known: list[ledger.Job]) -> dict[str, Any]:
    """Return the content of results/jobs.json: totals, rules, pauses and jobs.

    files    files of the page
    recipe   cpu_watts and cpu_price of a thread, prices of slices
    known    the jobs of the ledger

    Times are seconds from the first attempt. Totals count all attempts except killed ones, whose duration is unknown.
    Energy is an estimate from CPU time, plus that of accelerators whose maker has published their power.
    """
    jobs = jobs_behind(files, known)
    attempts = [attempt for job in jobs for attempt in job["failed"]]
    began = min((attempt["started"] for attempt in [*jobs, *attempts]), default=0.0)
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
    """Return energy and price of jobs, see `account`; the price is None if a part of it is unknown."""
    thread_seconds = watt_seconds = money = 0.0
    unknown, unpriced = set(), recipe["cpu_price"] is None
    for job in jobs:
        thread_seconds += job["cpu_seconds"] + sum(attempt["cpu_seconds"] or 0.0 for attempt in job["failed"])
        ended = [attempt for attempt in job["failed"] if attempt["ended"] is not None]
        seconds = job["seconds"] + sum(attempt["ended"] - attempt["started"] for attempt in ended)
        for kind, number in job["accelerators"].items():
            power, price = mean_watts(kind, number), recipe["prices"].get(slice_named(kind, number))
            watt_seconds += seconds * (power or 0.0)
            money += seconds / 3600 * (price or 0.0)
            unpriced |= price is None
            unknown |= {devices_in_words({kind: number})} if power is None else set()
    return {
        "thread_seconds": round(thread_seconds, 3),
        "watts_per_thread": recipe["cpu_watts"],
        "watt_hours": round((thread_seconds * recipe["cpu_watts"] + watt_seconds) / 3600, 3),
        "unknown_power": sorted(unknown),
        "price": None if unpriced else round(money + thread_seconds / 3600 * recipe["cpu_price"], 6),
    }


def by_rule(jobs: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return for each rule the number of its jobs, their seconds, those of the longest, and its failed attempts."""
    rules: dict[str, dict[str, float]] = {}
    for job in jobs:
        rule = rules.setdefault(job["rule"], {"jobs": 0, "seconds": 0.0, "longest": 0.0, "failed": 0})
        rule["jobs"] += 1
        rule["seconds"] = round(rule["seconds"] + job["seconds"], 3)
        rule["longest"] = max(rule["longest"], job["seconds"])
        rule["failed"] += len(job["failed"])
    return rules
