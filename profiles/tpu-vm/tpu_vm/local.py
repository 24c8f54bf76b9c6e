"""The jobs that ask for no TPU: they run on this machine."""

from __future__ import annotations

import os

from tpu_vm.jobs import Job, JobProcess
from tpu_vm.state import PROGRAM


class LocalJobs:
    """The jobs of this machine: as many at a time as it has cores for their threads."""

    def __init__(self, python: str):
        """Run jobs in this Python."""
        self.python = python
        self.waiting: list[Job] = []
        self.running: dict[Job, JobProcess] = {}
        self.cores = len(os.sched_getaffinity(0))

    def add(self, job: Job) -> None:
        """Take a job."""
        self.waiting.append(job)

    def update(self) -> None:
        """End what is over, start what there is room for."""
        for job, process in list(self.running.items()):
            if job.cancelled():
                process.end()
            if process.ended(0):
                del self.running[job]
                job.end("success" if process.code == 0 else "failed")
        busy = sum(job.threads for job in self.running)
        while self.waiting and (busy + self.waiting[0].threads <= self.cores or not busy):
            job = self.waiting.pop(0)
            self.running[job] = JobProcess(job, [self.python, str(PROGRAM), "work", str(job.folder)])
            busy += job.threads

    def close(self) -> None:
        """End all jobs."""
        for process in self.running.values():
            process.end()
