"""How long the jobs that are left will take, by how long jobs of the same kind have taken, now or in earlier runs.

Of one kind are the jobs of a rule whose logs differ by numbers only: the segments of a run, the shards of a split.
"""

import re
import threading
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from tpulm.core.ledger import jobs_of, name_here

Kind = tuple[str, str]
# In paths of logs: the step of a checkpoint, a part of a text, a shard of so many.
NUMBERS = re.compile(r"(?<=/)(\d{8}|\d{5}(-of-\d{5})?)(?=[/.-])")
LEAST = 10  # seconds that are worth telling
PATIENCE = 1.0  # seconds: the times of many thousand files take longer, and are known some jobs later


def kind_of_job(rule: str, logs: Iterable) -> Kind:
    """Return the kind of a job, by its rule and its first log."""
    return rule, NUMBERS.sub("", name_here(str(next(iter(logs), ""))))


class Job(NamedTuple):
    """A job that is going to run: its id, its kind, its threads, and the ids of those that must end before it."""

    number: int
    kind: Kind
    threads: int
    before: list[int]


class Pace:
    """Tells how long a run of Snakemake on this machine will still take.

    jobs    those that are going to run, each behind those that must end before it; none: then nothing is told
    cores   that they share
    folders with the records of earlier runs, which are read beside what runs
    """

    def __init__(self, jobs: Sequence[Job], cores: int, folders: Iterable[Path] = ()):
        self.jobs, self.cores, self.ended = jobs, cores, set[int]()
        self.taken: dict[Kind, list[float]] = {}
        self.earlier: dict[Kind, list[float]] = {job.kind: [] for job in jobs}
        self.estimate, self.estimated_at = "", 0.0
        if jobs:
            reading = threading.Thread(target=self.read, args=[folders], daemon=True)
            reading.start()
            reading.join(PATIENCE)

    def read(self, folders: Iterable[Path]) -> None:
        """Read how long the jobs of earlier runs have taken."""
        for job in (job for folder in folders for job in jobs_of(Path(), folder)):
            kind = kind_of_job(job["rule"], [job["log"]])
            if kind in self.earlier and job["seconds"]:
                self.earlier[kind].append(job["seconds"])

    def end(self, number: int, kind: Kind, seconds: float) -> None:
        """Note that a job has ended, and how long it has taken."""
        self.ended.add(number)
        self.taken.setdefault(kind, []).append(seconds)

    def rest(self, running: dict[int, float]) -> str:
        """Return how long the jobs that are left will take: about, or at least where some kinds are not known.

        Empty where nothing is known, or it is not worth telling.

        running  for how many seconds those have run that have begun

        It is the longer of two times: of the longest chain of jobs of which each needs the one before, and of all jobs,
        spread over all cores. Jobs of kinds that are not known count nothing.
        """
        if time.time() < self.estimated_at + 1:  # with many thousand jobs, this takes a while
            return self.estimate
        self.estimated_at, chain, work, tails = time.time(), 0.0, 0.0, dict[int, float]()
        known, earlier = True, False
        for job in self.jobs:
            if job.number in self.ended:
                continue
            times, since = self.taken.get(job.kind) or self.earlier[job.kind], running.get(job.number, 0.0)
            known, earlier = (
                known and bool(times or not job.kind[1]),
                earlier or bool(times) and job.kind not in self.taken,
            )
            own = max(fmean(times) - since, 0.0) if times else 0.0
            work += own * min(job.threads, self.cores) / self.cores
            tails[job.number] = own + max((tails.get(number, 0.0) for number in job.before), default=0.0)
            chain = max(chain, tails[job.number])
        seconds = max(chain, work)
        by = " by earlier runs" if earlier else ""
        self.estimate = (
            f"{'about' if known else 'at least'} {timedelta(seconds=round(seconds))}{by}" if seconds > LEAST else ""
        )
        return self.estimate
