"""Phases of a run: parts of its steps with text, record length, batch size and rotary positions of their own.

A segment lies in one phase. Its recipe has the values of that phase, and `phases`: what the phase and those before it
take of the records, but nothing of later ones, so that a change of the last phase leaves earlier segments as they are.

The key `phases` is a list of mappings, of
a run in the config      until, and what differs from the run
a segment's recipe       `Phase.entry`, of its phase and of those before it
a plan and its recipe    the plan of each phase, with first and until
a run in a page's recipe `Phase.entry`, with until
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIXED = 2048  # records that are mixed together, in which each source has its share
WHOLE_TEXT = ""  # stands for all documents of a text, in place of the name of a source
# The size of a model that sets the wavelength of its rotary positions, by architecture.
ROPE_SIZES = {
    "modernbert": "global_rope_theta",
    **dict.fromkeys(("llama3", "mistral", "qwen2", "qwen3"), "rope_max_wavelength"),
}


@dataclass(frozen=True)
class Phase:
    """A phase: steps `first` + 1 to `until` of a run.

    recipe           of the run, with the values of the phase
    sequence_length  tokens of a record that the model reads
    shares           share of each source in the records, by name; WHOLE_TEXT alone if the phase has no weights
    is_plain         whether it reads the run's own records and says nothing else than the run
    """

    first: int
    until: int
    recipe: Mapping[str, Any]
    sequence_length: int
    shares: Mapping[str, float]
    is_plain: bool

    @property
    def entry(self) -> dict[str, Any]:
        """What it takes of the records, as the recipe of its segments has it."""
        return {
            "first": self.first,
            "batch_size": self.recipe["batch_size"],
            "sequence_length": self.sequence_length,
            "shares": dict(self.shares),
        }


def phases_of(recipe: Mapping, sequence_length: int) -> list[Phase]:
    """Return the phases of a run in order; one, if its recipe has none.

    sequence_length  of the run's own records
    """
    phases, first = [], 0
    for entry in recipe.get("phases") or [{"until": recipe["steps"]}]:
        length, weights = entry.get("sequence_length", sequence_length), entry.get("weights", {})
        changed = {**recipe, "batch_size": entry.get("batch_size", recipe["batch_size"])}
        if "sequence_length" in recipe:
            changed["sequence_length"] = length
        if "rope_theta" in entry:
            size = ROPE_SIZES[recipe["model"]["architecture"]]
            changed["model"] = {**recipe["model"], size: float(entry["rope_theta"])}
        total = sum(weights.values())
        shares = {source: weight / total for source, weight in sorted(weights.items()) if weight} or {WHOLE_TEXT: 1.0}
        is_plain = changed == recipe and length == sequence_length and not weights
        phases.append(Phase(first, entry["until"], changed, length, shares, is_plain))
        first = entry["until"]
    return phases


def phase_at(phases: Sequence[Phase], last: int) -> Phase:
    """Return the phase of the segment that ends at step `last`."""
    return next(phase for phase in phases if last <= phase.until)


def entries_until(phases: Sequence[Phase], last: int) -> list[dict[str, Any]]:
    """Return what the phase of the segment that ends at step `last`, and those before it, take of the records.

    Empty while all of them are plain, so that a run keeps its segments when it gets another phase at its end.
    """
    so_far = [phase for phase in phases if phase.first < last]
    return [] if all(phase.is_plain for phase in so_far) else [phase.entry for phase in so_far]


def begins_phase(recipe: Mapping) -> bool:
    """Return whether a segment is the first one of a phase; recipe  of the segment."""
    return "phases" in recipe and recipe["phases"][-1]["first"] == recipe["first"]


def tokens_until(recipe: Mapping, step: int, sequence_length: int) -> int:
    """Return the tokens that a run has read after `step` steps.

    recipe  of the segment with that step; sequence_length  of the run's own records
    """
    phases = recipe.get("phases")
    if not phases:
        return step * recipe["batch_size"] * sequence_length
    ends = [*(phase["first"] for phase in phases[1:]), step]
    return sum(
        (end - phase["first"]) * phase["batch_size"] * phase["sequence_length"]
        for phase, end in zip(phases, ends, strict=True)
    )
