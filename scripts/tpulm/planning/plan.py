"""The plan of a run on a TPU slice: what a step needs, what would make it fit, what the entire run costs.

Needs tpulm.training.runtime.start first.
"""

import math
from collections.abc import Iterator

from tpulm.core.accelerators import GIB, Topology
from tpulm.core.errors import UserError
from tpulm.planning.cost_model import measure
from tpulm.specs.training_step import MOST_HOST_DEVICES, TrainingStep, check_mesh


def variants(recipe: dict, stage: str, devices: int) -> Iterator[tuple[str, dict]]:
    """Yield changes that may make a run smaller, in words and as a recipe, the gentlest first.

    Not all of it is allowed by the config, or fits the slice. A model on a task has no remat and no microbatches.
    """
    remat, several = "remat" in recipe, "microbatches" in recipe
    if remat and not recipe["remat"]:
        yield "remat: true", recipe | {"remat": True}
    lora = stage == "finetune" and recipe["method"] == "lora"
    precision = "bfloat16" if lora else "mixed_bfloat16"
    widest = lora and recipe.get("base_precision") == "float32"  # which the config refuses under bfloat16
    if recipe["precision"] != precision and not widest:
        yield f"precision: {precision}", recipe | {"precision": precision}
        if remat:
            yield f"precision: {precision} with remat: true", recipe | {"precision": precision, "remat": True}
    if lora and recipe.get("base_precision") != "int8":
        yield "base_precision: int8", recipe | {"base_precision": "int8"}
    for parts in (2, 4, 8, 16) if several else ():
        microbatches = recipe["microbatches"] * parts
        yield f"microbatches: {microbatches}", recipe | {"microbatches": microbatches}
    size = 1
    while size <= devices and recipe.get("backend") != "tensorflow":  # which has no mesh
        # The config refuses a mesh that the virtual devices do not fit.
        virtual = math.lcm(size, recipe["host_device_count"])
        if [size, -1] != recipe["mesh"] and virtual <= MOST_HOST_DEVICES:
            words = "" if virtual == recipe["host_device_count"] else f", host_device_count: {virtual}"
            yield f"mesh: [{size}, -1]{words}", recipe | {"mesh": [size, -1], "host_device_count": virtual}
        size *= 2
    if recipe["batch_size"] > 1 and recipe["batch_size"] % 2 == 0:
        yield f"batch_size: {recipe['batch_size'] // 2}", recipe | {"batch_size": recipe["batch_size"] // 2}


def alternatives(stage: str, recipe: dict, slice_: Topology, where: str) -> list[dict]:
    """Return memory and estimated time for each single change of how a step is computed."""
    lora = stage == "finetune" and recipe["method"] == "lora"
    widest = recipe.get("base_precision") == "float32"  # which the config refuses under bfloat16
    precisions = ["float32", "mixed_bfloat16", *(["bfloat16"] if lora and not widest else [])]
    single: list[tuple[str, object]] = [("remat", not recipe["remat"])] if "remat" in recipe else []
    single += [("precision", precision) for precision in precisions if precision != recipe["precision"]]
    if recipe.get("microbatches", 1) > 1:
        single.append(("microbatches", 1))
    elif "microbatches" in recipe and recipe["batch_size"] % 4 == 0:
        single.append(("microbatches", 4))
    found = []
    for key, value in single:
        try:
            check_mesh(where, recipe | {key: value})
            made = measure(TrainingStep.of(stage, where, recipe | {key: value}), slice_)
        except UserError:  # such as a batch that cannot be cut into so many parts on this mesh
            continue
        kept = (
            "memory", "seconds", "bound_by", "lower_bound_seconds", "estimated_seconds", "tokens_per_second",
            "model_flops_utilisation",
        )  # fmt: skip
        found.append({"key": key, "value": value} | {name: made[name] for name in kept})
    return found


def advice(stage: str, recipe: dict, slice_: Topology, where: str, usable: int, most: int = 3) -> list[str]:
    """Return up to `most` changes with which a run fits in `usable` bytes of HBM, each compiled.

    The config allows each: `recipe` has host_device_count, resources and checkpoint_every for that, which change no
    step.
    """
    found: list[str] = []
    for words, changed in variants(recipe, stage, slice_.devices):
        try:
            check_mesh(where, changed)
            made = measure(TrainingStep.of(stage, where, changed), slice_, usable)
        except UserError:
            continue
        if made["memory"]["fits"]:
            found.append(f"{words} ({made['memory']['total'] / GIB:.1f} GiB)")
        if len(found) == most:
            break
    return found


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
    step, price = found["estimated_seconds"], recipe["price_per_hour"]
    steps = recipe["steps"] * recipe.get("chains", 1)
    hours = None if step is None else step * steps / 3600
    return found | {
        "hours": hours,
        "price_per_hour": price,
        "cost_of_run": None if price is None or hours is None else hours * price,
    }
