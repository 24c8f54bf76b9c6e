"""The segment of a run that a training job reads from its inputs, params and resources.

The rules of training scripts have, in addition to their own:

input.previous         the previous checkpoint: weights, optimizer, best, state; empty for the first segment
output.*               the checkpoint, see tpulm.training.checkpoint; history and timings, see tpulm.training.history
params.recipe          first and last step, schedule, batch_size, optimizer, precision, seed, cpu_threads,
                       host_device_count; patience where it can matter; evaluate_every, if it is given; on JAX also
                       mesh, layout, microbatches, remat, steps_per_execution; z_loss, responses, determinism, if they
                       are given; phases, see tpulm.specs.phases
resources.hosts        on JAX: processes that train together; resources.launcher  how to start them, see
                       tpulm.core.processes
resources.accelerator  what the run requests; the job fails on other devices
resources.snapshots    folder of snapshots, see tpulm.training.snapshots; resources.snapshot_every  minutes
resources.profile      on JAX: steps to trace, see tpulm.training.profiling
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tpulm.training import checkpoint
from tpulm.training.snapshots import Snapshots


@dataclass(frozen=True)
class Segment:
    """The inputs and outputs of a trainer for one segment.

    recipe     params.recipe; the checkpoint's state keeps all of it
    outputs    paths of the checkpoint, history and timings by name
    previous   paths of the previous checkpoint by name, None at first
    snapshots  of this segment
    say        reports progress
    log        of the job; live metrics are next to it
    resources  of the job
    """

    recipe: dict
    outputs: dict[str, str]
    previous: dict[str, str] | None
    snapshots: Snapshots
    say: Callable[[str], None]
    log: str
    resources: Mapping = field(default_factory=dict)

    @classmethod
    def of(cls, job: Any, say: Callable[[str], None]) -> Self:
        """Return the segment of a job, which is the script's `snakemake`.

        Ends the program if the run has stopped before this segment, see `tpulm.training.checkpoint.finish_if_stopped`.
        Raises UserError if the previous checkpoint is damaged.
        """
        previous = checkpoint.verified_previous(job.input.previous)
        snapshots = Snapshots.of(job.resources, job.params, job.input, say)
        outputs = dict(job.output.items())
        segment = cls(job.params.recipe, outputs, previous, snapshots, say, job.log[0], job.resources)
        if checkpoint.finish_if_stopped(segment):
            sys.exit()
        return segment
