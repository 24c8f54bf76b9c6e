"""Explain why a job runs, by the differences between the record of its last run and the config."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from tpulm.core import ledger
from tpulm.core.code_digest import code_of_param
from tpulm.core.secrets import redacted_values

KEEPING = "`python tools/keep_results.py`, with the options of this command, keeps what only its code makes stale."
PARAMS, FOLLOWS = "Params have changed", "Input files updated by another job"


def reasons_of(job: Any, given_reasons: Sequence[str], code_changed: bool) -> list[str]:
    """Return the reasons of a job, with old and new values where its record has them.

    job            Snakemake's
    given_reasons  in Snakemake's words, each with the first file of its list
    code_changed   whether the param `code` is another one than in Snakemake's metadata
    """
    record = last_record(job)
    # Snakemake does not compare the params of a job that follows another. A missing output needs no comparison.
    if record is None or not any(reason.startswith((PARAMS, FOLLOWS)) for reason in given_reasons):
        return list(given_reasons)
    changes = recipe_changes(job, record)
    explained = [explain(changes)] if changes else []
    explained += code_changes(record, job.params["code"]) if code_changed else []
    return [*explained, *(reason for reason in given_reasons if not (explained and reason.startswith(PARAMS)))]


def retraining_notes(jobs: Iterable[Any]) -> list[str]:
    """Return the lines of a dry run on runs that train again because of their code only, and on how to keep them.

    jobs  Snakemake's that are going to run and whose param `code` has changed
    """
    notes: dict[str, str] = {}
    segments = (job for job in jobs if job.output.get("state"))
    for job in sorted(segments, key=lambda job: job.params["recipe"]["first"]):
        record, where = last_record(job), job.resources.run_key
        if record and not recipe_changes(job, record):
            changes, first = "; ".join(code_changes(record, job.params["code"])), job.params["recipe"]["first"]
            notes.setdefault(where, f"note: {where} trains again from step {first}: {changes}.")
    return [*sorted(notes.values()), f"note: {KEEPING}"] if notes else []


def recipe_changes(job: Any, record: Mapping[str, Any]) -> dict[str, tuple]:
    """Return the keys of a job's recipe that differ from its record, see `differences`."""
    recipe = redacted_values(json.loads(json.dumps(job.params.get("recipe"), default=str)))
    return differences({"": record["recipe"]}, {"": recipe})


def last_record(job: Any) -> Mapping[str, Any] | None:
    """Return the record of the last run of a job that succeeded; None without one."""
    return ledger.last_success(ledger.path_of(job.log[0])) if job.log else None


def code_changes(record: Mapping[str, Any], param: str) -> list[str]:
    """Return how packages and modules differ from those of a record."""
    code = code_of_param(param)
    lengths = {len(digest) for digest in record["code"].values()}
    if lengths != {len(code.modules[code.script])}:  # until 0.4.0: 0.2.0 has SHA-256s of files, or nothing
        return ["it was made by a version before 0.3.0, which compared code otherwise"]
    versions = explain(differences(record["packages"], code.packages))
    modules = [
        name.removeprefix("scripts/").removeprefix("tpulm/")
        for name in sorted(record["code"].keys() | code.modules.keys())
        if code.modules.get(name) != record["code"].get(name)
    ]
    names = ", ".join(modules[:3]) + (f" and {len(modules) - 3} more" if modules[3:] else "")
    compute = f"{names} compute{'' if modules[1:] else 's'} otherwise" if modules else ""
    return [text for text in (versions, compute) if text]


def differences(before: Mapping, now: Mapping, prefix: str = "") -> dict[str, tuple]:
    """Return the keys that differ between two recipes: (before, now) by dotted key."""
    changes: dict[str, tuple] = {}
    for key in sorted(set(before) | set(now)):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict) and key != "schedule":
            changes |= differences(old, new, f"{prefix}{key}." if key else "")
        elif are_mappings(old) and are_mappings(new) and len(old) == len(new):
            for number, items in enumerate(zip(old, new, strict=True)):
                changes |= differences(*items, f"{prefix}{key}[{number}].")
        elif old != new:
            changes[f"{prefix}{key}" or "the recipe"] = (old, new)
    return changes


def are_mappings(value: object) -> TypeGuard[list[dict]]:
    """Return whether a value is a list of mappings, such as the phases of a run."""
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def explain(changes: Mapping[str, tuple]) -> str:
    """Return changes in words."""
    return ", ".join(f"{key} was {format_value(old)} and is {format_value(new)}" for key, (old, new) in changes.items())


def format_value(value: object) -> str:
    """Return a value of a recipe in words; of a schedule, its knots."""
    if value is None:
        return "none"
    return str(value.get("knots", value)) if isinstance(value, dict) else str(value)
