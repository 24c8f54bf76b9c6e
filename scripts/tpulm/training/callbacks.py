"""Step callbacks: evaluations, snapshots, profiles and stops between two steps of a segment."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol, Self

import numpy as np

from tpulm.core import job_record, processes
from tpulm.core.processes import LOST, STOPPED, Stopped, StopRequest
from tpulm.training.history import FigureReader, History, Stopwatch
from tpulm.training.snapshots import Snapshots

SNAPSHOT_INTERVAL = 50  # minimum time between two snapshots, in multiples of the time that one takes
SECONDS_BETWEEN_AGREEMENTS = 30  # between two agreements of the processes whether a snapshot is due


class Trainable(Protocol):
    """The interface of a trainer between two steps."""

    def state_parts(self) -> tuple[dict[str, np.ndarray], dict[str, tuple[int, ...]]]:
        """Return the parts of arrays that this process keeps, and the shapes of the arrays; see `Snapshots.save`."""

    def load(self, weights: Any, optimizer: Any, source: str) -> None:
        """Load the state from arrays by name; `source` names them in errors."""


class Tracing(Protocol):
    """A trace of some steps, see tpulm.training.profiling.

    summary  when it has ended, see `History.profiled`
    """

    summary: dict | None

    def at(self, step: int, wait: Callable[[], None], say: Callable[[str], None]) -> bool:
        """Start or end the trace after `step` steps of the run, if due; return whether it did."""

    def end(self, step: int, say: Callable[[str], None]) -> None:
        """End the trace, if it has begun."""


class SingleProcess:
    """The coordinator of a run that trains in one process."""

    def first(self, values: list[int]) -> list[int]:
        """Return the values of the first process."""
        return values

    def gather(self, digest: str) -> list[str]:
        """Return the SHA-256 of every process, after waiting for all of them."""
        return [digest]

    def stops(self, request: StopRequest, moment: int) -> bool:
        """Return whether all stop at this moment; every process numbers the moments in the same way."""
        return request.name is not None


class StepCallbacks:
    """The callbacks of one segment, a context: within it, SIGTERM and Ctrl-C wait for the end of a step.

    trainer         holds the state; history  of the segment
    measure         returns the held-out figures; takes a function that passes on the batches, and may raise
    evaluate_every  steps between two evaluations within the segment; None for none
    coordinator     of the processes that train
    """

    def __init__(
        self,
        trainer: Trainable,
        measure: Callable[[Callable[[Iterable], Iterator]], dict[str, float]],
        history: History,
        snapshots: Snapshots,
        say: Callable[[str], None],
        evaluate_every: int | None = None,
        coordinator: SingleProcess | None = None,
    ):
        self.trainer, self.measure, self.history = trainer, measure, history
        self.snapshots, self.say, self.first = snapshots, say, history.step
        self.evaluate_every, self.coordinator = evaluate_every, coordinator or SingleProcess()
        self.request, self.moment = StopRequest(), 0
        self.began = self.saved = time.monotonic()
        self.steps, self.agreement, self.period = 0, 10, 60 * snapshots.every
        self.profile: Tracing | None = None
        self.stopwatch = Stopwatch()
        self.stopwatch.end("start")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the effect of signals."""
        self.request.restore()

    def resume(self) -> bool:
        """Resume from the newest snapshot of the segment; return whether there is one."""
        with ExitStack() as local:
            snapshot = self.snapshots.latest(local)
            if snapshot:
                source = f"the snapshot at step {snapshot.step} in {self.snapshots.folder}"
                self.trainer.load(snapshot.arrays("weights/"), snapshot.arrays("optimizer/"), source)
                self.history.restore(snapshot.history)
                job_record.note(resumed_from_step=snapshot.step)
                self.say(f"resuming from the snapshot at step {snapshot.step}")
        return snapshot is not None

    def __call__(self, step: int, reader: FigureReader) -> None:
        """Trace, evaluate, stop or save after `step` steps of the run, if due; `reader` has figures yet to be read.

        Raises Stopped, after a snapshot, at SIGTERM or Ctrl-C.
        """
        # A trace would be empty after the last step; `finish` ends one that has begun.
        within = step < self.history.last
        if self.profile and within and self.profile.at(step, reader.finish, self.say):
            self.history.profiled(self.profile.summary)
            self.history.restart_clock()
        if self.evaluates_at(step):
            reader.finish()
            self.evaluate()
        if self.stops():
            reader.finish()
            self.stop()
        if self.snapshot_due():
            reader.finish()
            self.save()
            self.history.restart_clock()

    def defer_signals(self) -> None:
        """Defer signals from now on; called after each dispatch, so that the first can be interrupted.

        With several processes, JAX handles signals in all of them.
        """
        if "compile" not in self.stopwatch.seconds:
            self.stopwatch.end("compile")
        if processes.count() == 1 and not self.request.before:
            self.request.defer()

    def evaluates_at(self, step: int) -> bool:
        """Return whether the model is evaluated after this step, within the segment."""
        within = self.first < step < self.history.last
        return bool(self.evaluate_every) and step % (self.evaluate_every or 1) == 0 and within

    def redo_evaluation(self) -> None:
        """Repeat the evaluation that was interrupted by the snapshot from which training resumes."""
        self.stopwatch.end("load")
        if self.evaluates_at(self.history.step) and self.history.step not in self.history.held_out:
            self.evaluate()

    def evaluate(self) -> dict[str, float]:
        """Evaluate the model at the history's current step; return the held-out figures."""
        figures = self.measure(self.stop_between)
        self.history.evaluated(figures, keep=bool(self.evaluate_every))
        return figures

    def stop_between(self, batches: Iterable) -> Iterator:
        """Yield batches, and stop between two of them at SIGTERM, in the state before the evaluation."""
        for batch in batches:
            if self.stops():
                self.stop()
            yield batch

    def stops(self) -> bool:
        """Return whether to stop now, the same in all processes."""
        self.moment += 1
        return self.coordinator.stops(self.request, self.moment)

    def stop(self) -> None:
        """Make a snapshot and raise Stopped."""
        sentence = f"{STOPPED}{self.request.name or 'SIGTERM'} at step {self.history.step}"
        if self.snapshots.folder is None:
            raise Stopped(f"{sentence}; {LOST}")
        self.save()
        raise Stopped(f"{sentence}; the next snakemake resumes from this step.")

    def snapshot_due(self) -> bool:
        """Return whether a periodic snapshot is due, the same in all processes."""
        self.steps += 1
        if not self.period or self.snapshots.folder is None or self.steps < self.agreement:
            return False
        now = time.monotonic()
        wait = max(1, round(SECONDS_BETWEEN_AGREEMENTS * self.steps / max(now - self.began, 1e-9)))
        due, wait = self.coordinator.first([int(now - self.saved >= self.period), wait])
        self.agreement = self.steps + wait
        return bool(due)

    def finish(self) -> dict[str, float]:
        """Evaluate the model at the end of the segment; return the held-out figures."""
        if self.profile:
            self.profile.end(self.history.step, self.say)
            self.history.profiled(self.profile.summary)
        self.stopwatch.end("train")
        figures = self.evaluate()
        self.stopwatch.end("evaluate")
        return figures

    def segment_written(self) -> None:
        """Report the seconds of the segment after the checkpoint is written, and delete the snapshots."""
        self.stopwatch.end("write")
        self.history.report(self.stopwatch.record(self.history.step))
        self.snapshots.delete()

    def save(self) -> None:
        """Make a snapshot of the trainer's state and the history."""
        began = time.monotonic()
        parts, shapes = self.trainer.state_parts()
        self.snapshots.save(self.history.step, parts, shapes, self.history.state(), self.coordinator.gather)
        self.saved = time.monotonic()
        self.period = max(60 * self.snapshots.every, SNAPSHOT_INTERVAL * (self.saved - began))
