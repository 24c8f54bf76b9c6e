"""Explain, before any job starts, why existing checkpoints will be made again."""

import json
from collections.abc import Iterator

from tpulm.config.artifacts import CHECKPOINT_FILES
from tpulm.config.runs import Run
from tpulm.core import bucket

ALL_STEPS = "linear and cosine spread over all steps; constant and wsd keep what more steps leave as it was"


def note(run: Run, folder: str) -> str | None:
    """Return why a run trains again though it has checkpoints, as one sentence; None where it need not.

    folder  of the run: a path or a URL
    """
    segments = [run.segment(last) for last in run.segment_ends]
    for recipe, before in zip(segments, made_with(folder, segments)):  # noqa: B905 (it may end early)
        changes = differences(before, recipe)
        if changes:
            step = start(folder, segments, recipe["first"])
            return f"{run.key} trains again from step {step}: {explain(changes, run.recipe['schedule']['shape'])}."
    return None


def made_with(folder: str, segments: list[dict]) -> Iterator[dict]:
    """Yield the recipe with which each checkpoint of a run was made, up to the first that is not there, or damaged."""
    for content in bucket.contents(
        [f"{folder}/checkpoints/{recipe['last']:08d}/{CHECKPOINT_FILES['state']}" for recipe in segments]
    ):
        try:
            yield json.loads(content)["recipe"]
        except (ValueError, LookupError, TypeError):
            return  # whoever needs it will say so


def start(folder: str, segments: list[dict], first: int) -> int:
    """Return the last step up to `first` whose checkpoint still has its weights, 0 for none."""
    steps = [recipe["first"] for recipe in segments if recipe["first"] <= first]
    kept = [step for step in steps if bucket.exists(f"{folder}/checkpoints/{step:08d}/{CHECKPOINT_FILES['weights']}")]
    return max(kept, default=0)


def differences(before: dict, now: dict, prefix: str = "") -> dict[str, tuple]:
    """Return what two recipes have in different values, by dotted key: (before, now)."""
    found: dict[str, tuple] = {}
    for key in sorted(set(before) | set(now)):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict) and key != "schedule":
            found |= differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found[f"{prefix}{key}"] = (old, new)
    return found


def explain(changes: dict[str, tuple], shape: str) -> str:
    """Return changes in words."""
    text = ", ".join(f"{key} was {shown(old)} and is {shown(new)}" for key, (old, new) in changes.items())
    return f"{text} ({ALL_STEPS})" if set(changes) == {"schedule"} and shape in ("linear", "cosine") else text


def shown(value: object) -> str:
    """Return a value of a recipe as a user reads it."""
    if value is None:
        return "none"
    return str(value.get("knots", value)) if isinstance(value, dict) else str(value)
