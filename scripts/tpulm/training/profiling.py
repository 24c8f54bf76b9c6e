"""Profile some steps of a run: an XProf trace, which TensorBoard opens, and its costliest operations.

The trace is at logs/.../RUN/profile/ and no output, so that a profile makes nothing stale. Its costliest
operations go to timings.csv of the segment (tpulm.training.history), and from there into the report.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import jax
from jax.profiler import ProfileData

NAMED = 5  # operations that take the most time, in a summary


class Profile:
    """A trace of the steps after `first` up to `last`, or as many of them as a segment has."""

    def __init__(self, folder: Path, first: int, last: int):
        """Trace nothing yet; folder  of the trace."""
        self.folder, self.first, self.last = folder, first, last
        self.since: int | None = None
        self.summary: dict | None = None  # when the trace has ended, see `History.profiled`

    @classmethod
    def of(cls, resources: Mapping, log: str) -> Self | None:
        """Return the profile of a job's resource `profile`, such as "10-20"; None without it, or in a later process."""
        if not resources.get("profile") or jax.process_index():
            return None
        first, last = map(int, resources["profile"].split("-"))
        return cls(Path(log).with_name("profile"), first, last)

    def at(self, step: int, wait: Callable[[], None], say: Callable[[str], None]) -> bool:
        """Start or end the trace after `step` steps of the run, if due; return whether it did.

        wait  waits until the devices have made them; say  takes the sentence on the costliest operations
        """
        if self.since is None and self.first <= step < self.last:
            wait()
            jax.profiler.start_trace(str(self.folder))
            self.since = step
            return True
        if self.since is None or step < self.last:
            return False
        wait()
        self.end(step, say)
        return True

    def end(self, step: int, say: Callable[[str], None]) -> None:
        """End the trace after `step` steps, if it has begun."""
        if self.since is None:
            return
        jax.profiler.stop_trace()
        trace = max(self.folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
        operations = costliest(trace)
        named = ", ".join(f"{name} {share:.1%}" for name, share in operations) or "none"
        say(f"profile of steps {self.since + 1} to {step} in {self.folder}; its most expensive operations: {named}")
        self.summary = {"steps": [self.since + 1, step], "operations": operations}
        self.since, self.last = None, -1


def costliest(trace: Path) -> list[tuple[str, float]]:
    """Return the costliest operations of a trace on the devices, with their shares of the time of all; see `called`."""
    nanoseconds: Counter[str] = Counter()
    origins: dict[str, str] = {}
    for plane in ProfileData.from_file(str(trace)).planes:
        for line in plane.lines:
            of_tpu = plane.name.startswith("/device:TPU") and line.name == "XLA Ops"
            events = [event for event in line.events if of_tpu or "hlo_op" in dict(event.stats)]
            nanoseconds.update(own_times(events))
            origins |= {event.name: origin for event in events if (origin := dict(event.stats).get("tf_op"))}
    total, most = sum(nanoseconds.values()), nanoseconds.most_common(NAMED)
    return [(called(name, origins.get(name)), time / total) for name, time in most if time > 0]


def called(name: str, origin: str | None) -> str:
    """Return the name of an operation, followed by its origin, if that is known: "fusion.3 (jvp(gelu)/mul)".

    name    of the event: the instruction, or on a TPU all of its text, such as %fusion.3 = bf16[8,128]{1,0} fusion(...)
    origin  of the model, such as jit(step)/jvp(gelu)/mul:
    """
    instruction = name.split(" = ")[0].removeprefix("%")
    within = "" if origin is None else origin.rstrip(":").partition("/")[2]
    return f"{instruction} ({within})" if within else instruction


def own_times(events: Iterable[Any]) -> Counter[str]:
    """Return the nanoseconds of each operation in a line of a trace, without nested operations, such as a loop's."""
    nanoseconds: Counter[str] = Counter()
    within: list[Any] = []
    for event in sorted(events, key=lambda event: (event.start_ns, -event.duration_ns)):
        while within and within[-1].end_ns <= event.start_ns:
            within.pop()
        if within:
            nanoseconds[within[-1].name] -= event.duration_ns
        nanoseconds[event.name] += event.duration_ns
        within.append(event)
    return nanoseconds
