"""The roofline model of a training step: FLOPs, memory traffic and bytes sent, each against the chip's peak.

The slowest of the three bounds the step (Williams, Waterman and Patterson 2009). Input, dispatch and Python are left
out. Needs tpulm.training.runtime.start first.
"""

import math

from jax.experimental import topologies

from tpulm.config.training_step import TrainingStep
from tpulm.core.accelerators import Topology
from tpulm.core.errors import UserError
from tpulm.planning.abstract_run import AbstractRun
from tpulm.planning.compiled import compiled
from tpulm.training.model_flops import model_flops_of
from tpulm.training.runtime import set_precision


class TooLarge(UserError):
    """Weights and optimizer alone need more memory than there is."""


def measure(step: TrainingStep, slice_: Topology, usable: float = math.inf) -> dict:
    """Return memory, cost and modelled time of a training step on a slice.

    usable  bytes of HBM: a run whose weights and optimizer alone need more is not compiled

    Raises UserError when the run cannot be on such a slice, whatever its memory; TooLarge for one that is not compiled.
    """
    set_precision(step.model.precision)
    devices = topologies.get_topology_desc(
        platform="tpu", topology_name=slice_.compiler_name, **slice_.compiler_options
    ).devices
    if len(devices) != slice_.devices:
        raise ValueError(f"{slice_.name} has {len(devices)} devices for the compiler, not {slice_.devices}")
    run = AbstractRun(step, devices)
    mesh = run.distribution.sizes
    used = math.prod(mesh.values())
    weights, optimizer = (run.bytes_per_device(part.variables) for part in (run.model, run.optimizer))
    if weights + optimizer > usable:
        raise TooLarge(f"{step.model.where} needs {weights + optimizer:,} bytes of HBM for weights and optimizer.")
    cost, memory = cost_of(run, slice_, used)
    seconds = roofline(cost, slice_)
    modelled = max(seconds.values()) if memory["arguments"] is not None else None
    model_flops, tokens = model_flops_of(run), step.tokens_per_step
    return {
        "mesh": mesh,
        "devices": used,
        "replicated": run.distribution.notes,
        "memory": {
            "hbm": slice_.hbm,
            "usable": memory["usable"],
            "weights": weights,
            "optimizer": optimizer,
            "gradients": run.bytes_per_device(run.model.trainable_variables),
            "arguments": memory["arguments"],
            "temporaries": memory["temporaries"],
            "program": memory["program"],
            "total": memory["total"],
            "fits": modelled is not None,
        },
        "cost": cost,
        "seconds": seconds | {"step": modelled},
        "bound_by": max(seconds, key=seconds.__getitem__) if modelled else None,
        "tokens_per_step": tokens,
        "tokens_per_second": tokens / modelled if modelled else None,
        "model_flops_per_step": model_flops,
        "model_flops_utilisation": model_flops / (modelled * used * slice_.flops) if modelled else None,
        # weights, two moments of Adam, and the best weights so far
        "checkpoint_bytes": 4 * sum(math.prod(v.shape) * 4 for v in run.model.trainable_variables),
    }


def cost_of(run: AbstractRun, slice_: Topology, devices: int) -> tuple[dict, dict]:
    """Return what a device does in a step (flops, bytes, collective_bytes), and what `compiled` says of its memory."""
    step = run.step
    # Loops of the program: over the steps of a dispatch, of which one is wanted; over all microbatches of a step.
    turns = [1] * (step.steps_per_execution > 1) + [step.microbatches]
    found = compiled(run.lowered(), slice_, devices, turns)
    flops, moved = found["flops"], found["bytes"]
    again = step.microbatches - 1
    if again and found["arguments"] is not None:
        # Not what the microbatch alone sends: in a loop, the compiler sums most gradients over devices once, after it.
        part = compiled(run.lowered_microbatch(), slice_, devices)
        flops, moved = flops + again * part["flops"], moved + again * part["bytes"]
    return {"flops": flops, "bytes": moved, "collective_bytes": found["collective_bytes"]}, found


def roofline(cost: dict, slice_: Topology) -> dict[str, float]:
    """Return how many seconds a device takes at its peaks for arithmetic, for memory, and for what it sends."""
    return {
        "compute": cost["flops"] / slice_.flops,
        "memory": cost["bytes"] / slice_.hbm_bandwidth,
        "interconnect": sum(cost["collective_bytes"].values()) / slice_.ici_bandwidth,
    }
