"""Which steps of a run can be traced for a profile."""

from tpulm.core.errors import UserError


def check_traced(where: str, recipe: dict) -> None:
    """Check that the steps of a run's profile lie in one segment, and that a dispatch ends among them.

    A trace begins and ends between two dispatches, and each segment is a job of its own. Raises UserError.
    """
    traced = recipe["profile"].get("steps")
    if not traced:
        return
    (first, last), steps, every = traced, recipe["steps"], recipe["checkpoint_every"]
    if not (first < last <= steps and first // every == (last - 1) // every):
        allowed = f"two steps up to {steps}, the first one smaller, and no checkpoint between them (one every {every})"
        raise UserError(f"{where}.profile.steps is {traced}; allowed: {allowed}.")
    at_once = recipe.get("steps_per_execution", 1)
    if first % at_once or last % at_once:
        raise UserError(f"{where}.profile.steps is {traced}; allowed: multiples of steps_per_execution, {at_once}.")
