"""The plan of a run on a TPU slice: what a step needs, what would make it fit, what the entire run costs.

Needs tpulm.training.runtime.start first.
"""

from tpulm.config.training_step import TrainingStep
from tpulm.core.accelerators import GIB, Topology
from tpulm.planning.advice import advice, alternatives
from tpulm.planning.cost_model import measure


def plan(stage: str, recipe: dict, slice_: Topology, where: str) -> dict:
    """Return the plan of a run on a TPU slice: what `measure` says, with advice and alternatives.

    stage   as `TrainingStep.of` takes it
    recipe  a plan's: what `TrainingStep.of` reads; alternatives, whether to compile those; and what `check_mesh` reads
    where   the config key of the run, or of the task

    Raises UserError when the run cannot be on such a slice, whatever its memory.
    """
    found = measure(TrainingStep.of(stage, where, recipe), slice_)
    memory = found["memory"]
    found["advice"] = [] if memory["fits"] else advice(stage, recipe, slice_, where, memory["usable"])
    found["alternatives"] = alternatives(stage, recipe, slice_, where) if recipe["alternatives"] else []
    return found


def shortage(found: dict, where: str, name: str) -> str:
    """Return the sentence for a plan that does not fit."""
    memory = found["memory"]
    over = memory["total"] - memory["usable"]
    helps = (
        f"it fits with {'; or with '.join(found['advice'])}"
        if found["advice"]
        else "none of the changes that were tried makes it fit"
    )
    return (
        f"{where} does not fit {name}: a device needs {memory['total'] / GIB:.1f} GiB of HBM and has "
        f"{memory['usable'] / GIB:.1f} for a program, {over / GIB:.1f} too little; {helps}."
    )


def in_money(found: dict, recipe: dict) -> dict:
    """Return a plan with what the whole run takes as estimated: hours, money at `price_per_hour`.

    recipe  steps and price_per_hour (None where no price is known) of the run; chains of that many steps, where a model
            on a task has several
    """
    step, least, price = found["estimated_seconds"], found["lower_bound_seconds"], recipe["price_per_hour"]
    steps = recipe["steps"] * recipe.get("chains", 1)
    hours = None if step is None else step * steps / 3600
    return found | {
        "hours": hours,
        "hours_lower_bound": None if least is None else least * steps / 3600,
        "price_per_hour": price,
        "cost_of_run": None if price is None or hours is None else hours * price,
    }
