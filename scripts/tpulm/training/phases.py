"""Where the time of a segment goes: what of it is training, and what is the gap between two segments."""

import os
import time


def process_age(process: int | str = "self") -> float:
    """Return how many seconds ago a process was started (Linux), this one or that of an id.

    0 where the system does not say.
    """
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


class Phases:
    """The seconds that the phases of a segment take, from the start of its process.

    start       of Python, imports, inputs read, model built
    load        the checkpoint or snapshot
    compile     until the first step is dispatched
    train       the steps, and what is between them
    evaluate    at the end; write  the checkpoint
    """

    def __init__(self) -> None:
        """The first phase began with the process."""
        self.seconds: dict[str, float] = {}
        self.mark = time.monotonic() - process_age()

    def end(self, name: str) -> None:
        """End a phase; the next one begins."""
        now = time.monotonic()
        self.seconds[name], self.mark = self.seconds.get(name, 0.0) + now - self.mark, now

    def record(self, step: int) -> dict:
        """Return the record of live metrics at the end of the segment."""
        return {"step": step, "seconds": {name: round(taken, 3) for name, taken in self.seconds.items()}}
