"""Estimate how long the remaining jobs will take, by the times of jobs of the same kind, now or in earlier runs.

Jobs of a rule are of one kind if their logs differ only by numbers: the segments of a run, the shards of a split.
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

JobKind = tuple[str, str]
# Numbers in paths of logs: the step of a checkpoint, a part of a text, a shard of so many.
NUMBERS = re.compile(r"(?<=/)(\d{8}|\d{5}(-of-\d{5})?)(?=[/.-])")
LEAST = 10  # seconds; less is not shown
PATIENCE = 1.0  # seconds to wait for earlier times; those of many thousand files arrive some jobs later


def kind_of_job(rule: str, logs: Iterable) -> JobKind:
    """Return the kind of a job, by its rule and its first log."""
    return rule, NUMBERS.sub("", name_here(str(next(iter(logs), ""))))


class Job(NamedTuple):
    """A job that is going to run: its id, its kind, its threads, and the ids of the jobs that it waits for."""

    number: int
    kind: JobKind
    threads: int
    before: list[int]


class Pace:
    """Estimates how long a run of Snakemake on this machine will still take.

    jobs    that are going to run, each after those that it waits for; without any, there is no estimate
    cores   that they share
    folders with the records of earlier runs, which a thread reads
    """

    def __init__(self, jobs: Sequence[Job], cores: int, folders: Iterable[Path] = ()):
        self.jobs, self.cores, self.ended = jobs, cores, set[int]()
        self.ended_times: dict[JobKind, list[float]] = {}
        self.earlier: dict[JobKind, list[float]] = {job.kind: [] for job in jobs}
        self.estimate, self.estimated_at = "", 0.0
        if jobs:
            reading = threading.Thread(target=self.read, args=[folders], daemon=True)
            reading.start()
            reading.join(PATIENCE)

    def read(self, folders: Iterable[Path]) -> None:
        """Read the times of jobs of earlier runs."""
        for job in (job for folder in folders for job in jobs_of(Path(), folder)):
            kind = kind_of_job(job["rule"], [job["log"]])
            if kind in self.earlier and job["seconds"]:
                self.earlier[kind].append(job["seconds"])

    def end(self, number: int, kind: JobKind, seconds: float) -> None:
        """Note that a job has ended after these seconds."""
        self.ended.add(number)
        self.ended_times.setdefault(kind, []).append(seconds)

    def rest(self, running: dict[int, float]) -> str:
        """Return in words about how long the remaining jobs will take, or more if some kinds are unknown.

        running  seconds that the jobs which have begun have run, by their ids

        The time is the longer of two: of the longest chain of jobs that wait for each other, and of all jobs spread
        over all cores. Jobs of unknown kinds count nothing. The text is empty if the time is LEAST or less.
        """
        if time.time() < self.estimated_at + 1:  # with many thousand jobs, this takes a while
            return self.estimate
        self.estimated_at, longest, work, tails = time.time(), 0.0, 0.0, dict[int, float]()
        known, earlier = True, False
        for job in self.jobs:
            if job.number in self.ended:
                continue
            times, since = self.ended_times.get(job.kind) or self.earlier[job.kind], running.get(job.number, 0.0)
            known = known and bool(times or not job.kind[1])
            earlier = earlier or bool(times) and job.kind not in self.ended_times
            seconds_left = max(fmean(times) - since, 0.0) if times else 0.0
            work += seconds_left * min(job.threads, self.cores) / self.cores
            tails[job.number] = seconds_left + max((tails.get(number, 0.0) for number in job.before), default=0.0)
            longest = max(longest, tails[job.number])
        seconds = max(longest, work)
        by = " by earlier runs" if earlier else ""
        more = "" if known else " or more"
        self.estimate = f"about {timedelta(seconds=round(seconds))}{more}{by}" if seconds > LEAST else ""
        return self.estimate
