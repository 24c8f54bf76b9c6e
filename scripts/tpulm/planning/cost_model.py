"""Measure memory and time of a training step on a slice that need not exist."""

import math

from jax.experimental import topologies

from tpulm.core.accelerators import Topology
from tpulm.core.errors import UserError
from tpulm.models.flops import model_flops_of
from tpulm.planning.abstract_run import AbstractRun
from tpulm.planning.compiled import analyze_program
from tpulm.planning.estimate import step_estimate
from tpulm.specs.training_step import TrainingStep
from tpulm.training.runtime import set_precision


class TooLarge(UserError):
    """Weights and optimizer alone need more memory than a device has."""


def measure(step: TrainingStep, slice_: Topology, usable: float = math.inf) -> dict:
    """Return memory (bytes per device), cost, lower bound and estimated time (seconds) of a training step on a slice.

    usable  bytes of HBM; a run whose weights and optimizer need more is not compiled, and raises TooLarge

    Raises UserError for a run that the slice cannot have, whatever its memory.
    """
    set_precision(step.model.precision)
    devices = topologies.get_topology_desc(
        platform="tpu", topology_name=slice_.compiler_name, **slice_.compiler_options
    ).devices
    if len(devices) != slice_.devices:
        raise ValueError(f"{slice_.name} has {len(devices)} devices for the compiler, not {slice_.devices}")
    run = AbstractRun(step, devices)
    mesh = run.distribution.sizes
    devices_used = math.prod(mesh.values())
    weights, optimizer = map(run.bytes_per_device, (run.model.weights, run.optimizer.variables))
    if weights + optimizer > usable:
        raise TooLarge(f"{step.model.where} needs {weights + optimizer:,} bytes of HBM for weights and optimizer.")
    partitions = list(run.distribution.device_mesh.backend_mesh.devices.ravel())
    program = analyze_program(run.lowered(), slice_, partitions)
    step_times = step_estimate(program, slice_, step.steps_per_execution)
    estimate = step_times["estimated_seconds"]
    model_flops, tokens = model_flops_of(run), step.tokens_per_step
    return {
        "mesh": mesh,
        "devices": devices_used,
        "replicated": run.distribution.notes,
        "attention": run.run.attention._asdict(),
        "program_sha256": program["program_sha256"],
        "memory": {
            "hbm": slice_.hbm,
            "usable": program["usable"],
            "weights": weights,
            "optimizer": optimizer,
            "gradients": run.bytes_per_device(run.model.trainable_variables),
            "arguments": program["arguments"],
            "temporaries": program["temporaries"],
            "program": program["program"],
            "total": program["total"],
            "fits": estimate is not None,
        },
        **step_times,
        "tokens_per_step": tokens,
        "tokens_per_second": tokens / estimate if estimate else None,
        "model_flops_per_step": model_flops,
        "model_flops_utilisation": model_flops / (estimate * devices_used * slice_.flops) if estimate else None,
    }
