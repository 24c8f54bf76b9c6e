"""Checks of the phases of a run that a schema cannot express. All raise UserError.

`recipe` is what the config says of the run, with its defaults; `where` is its key, such as mlm.runs.tiny.
"""

from collections.abc import Mapping

from tpulm.core.errors import UserError, describe
from tpulm.specs.phases import MIXED, ROPE_SIZES, Phase, phases_of
from tpulm.specs.texts import sources_of
from tpulm.specs.training_step import check_mesh


def check_phases(where: str, recipe: Mapping, sequence_length: int, text: tuple[str, Mapping]) -> dict[str, Phase]:
    """Check the phases of a run, and return each by its key, for checks of the model; none without `phases`.

    sequence_length  of the run's own records; text  key and section of the text that it is trained on
    """
    entries = recipe.get("phases", [])
    if entries and recipe["patience"]:
        raise UserError(f"{where}.patience is given with phases; allowed: null, since a phase would be left out.")
    before, steps, every = 0, recipe["steps"], recipe["checkpoint_every"]
    for number, entry in enumerate(entries):
        key, until = f"{where}.phases[{number}]", entry["until"]
        if until % every or not before < until <= steps:
            raise UserError(
                f"{key}.until is {until}; allowed: a multiple of checkpoint_every, {every}, above {before} and at most "
                f"steps, {steps}."
            )
        before = until
        if "sequence_length" in entry and "batch_size" not in entry:
            raise UserError(
                f"{key}.batch_size is missing; a phase with sequence_length states it, since {recipe['batch_size']} "
                "records of another length are another number of tokens."
            )
        if "weights" in entry:
            check_weights(f"{key}.weights", entry["weights"], *text)
        if "rope_theta" in entry:
            check_rope(f"{key}.rope_theta", recipe)
    if entries and before != steps:
        raise UserError(f"{where}.phases[{len(entries) - 1}].until is {before}; allowed: steps, {steps}, for the last.")
    phases = phases_of(recipe, sequence_length) if entries else []
    by_key = {f"{where}.phases[{number}]": phase for number, phase in enumerate(phases)}
    for key, phase in by_key.items():
        check_mesh(key, dict(phase.recipe))
    return by_key


def check_weights(key: str, weights: Mapping, where: str, text: Mapping) -> None:
    """Check the shares of the sources of a text, whose key is `where`."""
    names = ", ".join(sources_of(where, text)) or "none: it has no sources"
    for name in weights:
        if name not in text.get("sources", {}):
            raise UserError(f"{key} names {describe(name)}; allowed: the sources of {where}, {names}.")
    if not any(weights.values()):
        raise UserError(f"{key} are all 0; allowed: at least one above 0.")
    for name, weight in weights.items():
        if 0 < weight < sum(weights.values()) / MIXED:
            raise UserError(f"{key}.{name} is {weight}; allowed: 0, or at least 1/{MIXED} of the sum of all.")
    if text["max_documents"] is not None:
        raise UserError(f"{key} are given, but {where}.max_documents counts all sources together; allowed: null.")


def check_rope(key: str, recipe: Mapping) -> None:
    """Check that the model of a run is built here with rotary positions of any wavelength."""
    architecture = recipe["model"]["architecture"] if "model" in recipe else "a model that exists"
    if architecture not in ROPE_SIZES:
        allowed = ", ".join(ROPE_SIZES)
        raise UserError(f"{key} is given for {architecture}; allowed: a model that is built here, of {allowed}.")
