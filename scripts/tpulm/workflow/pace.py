"""How long the jobs that are left will take, by how long jobs of the same kind have taken, now or in earlier runs.

Of one kind are the jobs of a rule whose logs differ by numbers only: the segments of a run, the shards of a split.
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from statistics import fmean

from tpulm.core.past_jobs import METADATA, metadata

Kind = tuple[str, str]
LEAST = 10  # seconds that are worth telling
PATIENCE = 1.0  # seconds: those of many thousand files take longer, and are known some jobs later


def kind_of(rule: str, logs: Iterable) -> Kind:
    """Return the kind of a job, by its rule and its first log."""
    return rule, re.sub(r"\d{3,}", "", str(next(iter(logs), "")))


class Pace:
    """Tells how long a run of Snakemake will still take.

    jobs    the kinds of those that are going to run
    folder  the working folder, which has the times of earlier runs. They are read beside what runs
    """

    def __init__(self, jobs: Iterable[Kind], folder: Path):
        self.left, self.began = Counter(jobs), time.time()
        self.taken: dict[Kind, list[float]] = {}
        self.earlier: dict[Kind, list[float]] = {}
        reading = threading.Thread(target=self.read, args=[folder / METADATA], daemon=True)
        reading.start()
        reading.join(PATIENCE)

    def read(self, folder: Path) -> None:
        """Read how long the jobs of earlier runs have taken."""
        for _, record in metadata(folder):
            kind = kind_of(record["rule"], record.get("log") or [])
            if kind in self.left:
                self.earlier.setdefault(kind, []).append(record["endtime"] - record["starttime"])

    def ended(self, kind: Kind, seconds: float) -> None:
        """Note how long a job has taken."""
        self.left[kind] -= 1
        self.taken.setdefault(kind, []).append(seconds)

    def mean(self, kind: Kind) -> float | None:
        """Return how long jobs of a kind take, seconds; None where none has ended. Targets, without logs, take none."""
        times = self.taken.get(kind) or self.earlier.get(kind)
        return fmean(times) if times else None if kind[1] else 0.0

    def rest(self, running: Iterable[tuple[Kind, float]]) -> str:
        """Return how long all jobs that are left will take: about or, where some kinds are not known, at least.

        running  the jobs that have begun, and for how many seconds they have run. As many jobs as so far run at once

        Empty where nothing is known, or it is not worth telling.
        """
        running = list(running)
        means = {kind: self.mean(kind) for kind, count in self.left.items() if count > 0}
        work = sum(self.left[kind] * mean for kind, mean in means.items() if mean is not None)
        work -= sum(min(since, means.get(kind) or 0.0) for kind, since in running)
        busy = sum(map(sum, self.taken.values())) + sum(since for _, since in running)
        seconds = work / max(1.0, busy / max(time.time() - self.began, 1e-9))
        if seconds < LEAST:
            return ""
        how = "at least" if None in means.values() else "about"
        return f"{how} {timedelta(seconds=round(seconds))}"
