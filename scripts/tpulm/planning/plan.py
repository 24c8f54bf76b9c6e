"""Plan a run on a TPU slice: what a step needs, what would make it fit, what the entire run costs."""

import math
from collections.abc import Iterator

from tpulm.core.accelerators import GIB, Topology
from tpulm.core.errors import UserError
from tpulm.planning.cost_model import measure
from tpulm.specs.training_step import MOST_HOST_DEVICES, TrainingStep, check_mesh


def variants(recipe: dict, stage: str, devices: int) -> Iterator[tuple[str, dict]]:
    """Yield changes that may make a run smaller, in words and as a recipe, the gentlest first.

    Some may not be allowed by the config, or not fit the slice. A model on a task has no remat and no microbatches.
    """
    remat, has_microbatches = "remat" in recipe, "microbatches" in recipe
    if remat and not recipe["remat"]:
        yield "remat: true", recipe | {"remat": True}
    lora = stage == "finetune" and recipe["method"] == "lora"
    precision = "bfloat16" if lora else "mixed_bfloat16"
    float32_base = lora and recipe.get("base_precision") == "float32"  # the config refuses it under bfloat16
    if recipe["precision"] != precision and not float32_base:
        yield f"precision: {precision}", recipe | {"precision": precision}
        if remat:
            yield f"precision: {precision} with remat: true", recipe | {"precision": precision, "remat": True}
    if lora and recipe.get("base_precision") != "int8":
        yield "base_precision: int8", recipe | {"base_precision": "int8"}
    for factor in (2, 4, 8, 16) if has_microbatches else ():
        microbatches = recipe["microbatches"] * factor
        yield f"microbatches: {microbatches}", recipe | {"microbatches": microbatches}
    size = 1
    while size <= devices and recipe.get("backend") != "tensorflow":  # TensorFlow has no mesh
        # The config refuses a mesh that the virtual devices do not fit.
        virtual = math.lcm(size, recipe["host_device_count"])
        if [size, -1] != recipe["mesh"] and virtual <= MOST_HOST_DEVICES:
            words = "" if virtual == recipe["host_device_count"] else f", host_device_count: {virtual}"
            yield f"mesh: [{size}, -1]{words}", recipe | {"mesh": [size, -1], "host_device_count": virtual}
        size *= 2
    if recipe["batch_size"] > 1 and recipe["batch_size"] % 2 == 0:
        yield f"batch_size: {recipe['batch_size'] // 2}", recipe | {"batch_size": recipe["batch_size"] // 2}


def alternatives(stage: str, recipe: dict, slice_: Topology, where: str) -> list[dict]:
    """Return key, value, memory and times for each single change of how a step is computed."""
    lora = stage == "finetune" and recipe["method"] == "lora"
    float32_base = recipe.get("base_precision") == "float32"  # the config refuses it under bfloat16
    precisions = ["float32", "mixed_bfloat16", *(["bfloat16"] if lora and not float32_base else [])]
    single: list[tuple[str, object]] = [("remat", not recipe["remat"])] if "remat" in recipe else []
    single += [("precision", precision) for precision in precisions if precision != recipe["precision"]]
    if recipe.get("microbatches", 1) > 1:
        single.append(("microbatches", 1))
    elif "microbatches" in recipe and recipe["batch_size"] % 4 == 0:
        single.append(("microbatches", 4))
    rows = []
    for key, value in single:
        try:
            check_mesh(where, recipe | {key: value})
            measured = measure(TrainingStep.of(stage, where, recipe | {key: value}), slice_)
        except UserError:  # for example, the mesh does not divide the microbatches
            continue
        keys = (
            "memory", "seconds", "bound_by", "lower_bound_seconds", "estimated_seconds", "tokens_per_second",
            "model_flops_utilisation",
        )  # fmt: skip
        rows.append({"key": key, "value": value} | {name: measured[name] for name in keys})
    return rows


def advice(stage: str, recipe: dict, slice_: Topology, where: str, usable: int, most: int = 3) -> list[str]:
    """Return up to `most` compiled changes, in words, with which a run fits in `usable` bytes of HBM.

    The config allows each change: for that check, `recipe` has host_device_count, resources and checkpoint_every.
    """
    fitting: list[str] = []
    for words, changed in variants(recipe, stage, slice_.devices):
        try:
            check_mesh(where, changed)
            measured = measure(TrainingStep.of(stage, where, changed), slice_, usable)
        except UserError:
            continue
        if measured["memory"]["fits"]:
            fitting.append(f"{words} ({measured['memory']['total'] / GIB:.1f} GiB)")
        if len(fitting) == most:
            break
    return fitting


def plan(stage: str, recipe: dict, slice_: Topology, where: str) -> dict:
    """Return the plan of a run on a TPU slice: the result of `measure`, with advice and alternatives.

    stage   see `TrainingStep.of`
    recipe  keys of `TrainingStep.of` and `check_mesh`; alternatives, whether to compile these
    where   config key of the run or task

    Raises UserError for a run that the slice cannot have, whatever its memory.
    """
    measured = measure(TrainingStep.of(stage, where, recipe), slice_)
    memory = measured["memory"]
    measured["advice"] = [] if memory["fits"] else advice(stage, recipe, slice_, where, memory["usable"])
    measured["alternatives"] = alternatives(stage, recipe, slice_, where) if recipe["alternatives"] else []
    return measured


def plan_phases(stage: str, recipe: dict, slice_: Topology, where: str) -> dict:
    """Return the plan of the phase that needs the most memory, with `phases`: the plan of each phase and its hours.

    recipe  as for `plan` and `with_cost`, with `phases`. Its hours and cost are those of all phases
    """
    plans = []
    for number, phase in enumerate(recipe["phases"]):
        key = where if phase["batch_size"] == recipe["batch_size"] else f"{where}.phases[{number}]"
        phase_plan = with_cost(plan(stage, recipe | phase, slice_, key), recipe | phase)
        plans.append(phase_plan | {"first": phase["first"], "until": phase["until"]})
    largest = max(plans, key=lambda phase_plan: phase_plan["memory"]["total"])
    totals = {key: [phase_plan[key] for phase_plan in plans] for key in ("hours", "cost_of_run")}
    sums = {key: None if None in values else sum(values) for key, values in totals.items()}
    return largest | sums | {"phases": plans}


def shortage(run_plan: dict, where: str, name: str) -> str:
    """Return a sentence on the missing memory of a plan that does not fit, with advice."""
    memory = run_plan["memory"]
    missing = memory["total"] - memory["usable"]
    helps = (
        f"it fits with {'; or with '.join(run_plan['advice'])}"
        if run_plan["advice"]
        else "none of the changes that were tried makes it fit"
    )
    return (
        f"{where} does not fit {name}: a device needs {memory['total'] / GIB:.1f} GiB of HBM and has "
        f"{memory['usable'] / GIB:.1f} for a program, {missing / GIB:.1f} too little; {helps}."
    )


def with_cost(run_plan: dict, recipe: dict) -> dict:
    """Return a plan with the estimated hours, price_per_hour and cost_of_run of the whole run.

    recipe  steps, price_per_hour (None if unknown), chains (number of trainings of that many steps, by default 1)
    """
    step_seconds, price = run_plan["estimated_seconds"], recipe["price_per_hour"]
    steps = recipe["steps"] * recipe.get("chains", 1)
    hours = None if step_seconds is None else step_seconds * steps / 3600
    return run_plan | {
        "hours": hours,
        "price_per_hour": price,
        "cost_of_run": None if price is None or hours is None else hours * price,
    }
