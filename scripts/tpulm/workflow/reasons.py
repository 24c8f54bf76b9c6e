"""Explain why a job runs, by the differences between the record of its last run and the config."""

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from tpulm.core import job_record, ledger
from tpulm.core.secrets import redacted_values

PARAMS, INPUTS, FOLLOWS = "Params have changed", "Updated input files", "Input files updated by another job"


def reasons_of(job: Any, said: Sequence[str], updated: Collection[str]) -> list[str]:
    """Return the reasons of a job, with old and new values where its record has them.

    said     reasons in Snakemake's words, each with the first file of its list; updated  all updated input files
    """
    record = ledger.last_success(ledger.path_of(job.log[0])) if job.log else None
    if record is None:
        return list(said)
    # Snakemake does not compare the params of a job that follows another. A missing output needs no comparison.
    compared = any(part.startswith((PARAMS, FOLLOWS)) for part in said)
    recipe = redacted_values(json.loads(json.dumps(job.params.get("recipe"), default=str)))
    changes = differences({"": record["recipe"]}, {"": recipe}) if compared else {}
    code = [str(path) for path in job.input.get("code", [])]
    others = code_changes(record, tuple(code)) if not {*code}.isdisjoint(updated) else []
    data = [path for path in updated if path not in code]
    inputs = [f"{INPUTS}: {data[0]}{', ...' * bool(data[1:])}"] if data else []
    replaced = (*[PARAMS] * bool(changes), *[INPUTS] * bool(others))
    unexplained = [part for part in said if not part.startswith(replaced)] if replaced else list(said)
    return [*([explain(changes)] if changes else []), *others, *(inputs if others else []), *unexplained]


def code_changes(record: Mapping[str, Any], files: tuple[str, ...]) -> list[str]:
    """Return how packages and modules differ from those of a record; nothing if it has none, as those of 0.2.0."""
    if not record["code"]:
        return []
    _, code, packages = code_now(files)
    versions = explain(differences(record["packages"], packages))
    modules = [name for name in code if code[name] != record["code"].get(name)]
    names = ", ".join(modules[:3]) + (", ..." if modules[3:] else "")
    return [text for text in (versions, f"the code has changed: {names}" if names else "") if text]


code_now = cache(job_record.code_of)


def differences(before: Mapping, now: Mapping, prefix: str = "") -> dict[str, tuple]:
    """Return the keys that differ between two recipes: (before, now) by dotted key."""
    changes: dict[str, tuple] = {}
    for key in sorted(set(before) | set(now)):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict) and key != "schedule":
            changes |= differences(old, new, f"{prefix}{key}." if key else "")
        elif old != new:
            changes[f"{prefix}{key}" or "the recipe"] = (old, new)
    return changes


def explain(changes: Mapping[str, tuple]) -> str:
    """Return changes in words."""
    return ", ".join(f"{key} was {format_value(old)} and is {format_value(new)}" for key, (old, new) in changes.items())


def format_value(value: object) -> str:
    """Return a value of a recipe in words; of a schedule, its knots."""
    if value is None:
        return "none"
    return str(value.get("knots", value)) if isinstance(value, dict) else str(value)
