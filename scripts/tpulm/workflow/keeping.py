"""Keeps results that are stale only because code or packages have changed: Snakemake's metadata takes the new code."""

import logging
import re
import sys
from typing import Any

from snakemake_interface_logger_plugins.common import LogEvent

from tpulm.compat import snakemake as inside
from tpulm.core import folder_lock
from tpulm.workflow.start import or_exit
from tpulm.workflow.terminal import Terminal

KEEP = "TPULM_KEEP"  # in the environment of a dry run that keeps
CODE_PARAM = re.compile(r"'scripts/\S+\.py \w+ [0-9a-f]{16}'")
# Before 0.3.0, code was among the inputs.
CODE_INPUT = re.compile(r"(.*/)?(scripts/.*\.py|envs/[\w-]+\.txt)")


class Keeper(Terminal):
    """Takes the place of the terminal in a dry run, keeps what it can once the jobs are known, and ends the program."""

    def __init__(self, workflow: Any, plain: Any, settings: Any):
        super().__init__(workflow, plain, settings)
        self.seen = folder_lock.last_start()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep results when the jobs are known; show only what else Snakemake says, such as an error."""
        if getattr(record, "event", None) == LogEvent.RUN_INFO:
            or_exit(folder_lock.enter, self.seen)
            self.keep()
            sys.exit()
        super().emit(record)

    def keep(self) -> None:
        """Keep the jobs whose only reason is their code, then those that only followed from these, until none is left.

        Prints each job.
        """
        number = 0
        while jobs := [job for job in inside.pending_jobs(self.workflow) if job.output and self.is_kept(job)]:
            inside.renew_metadata(self.workflow, jobs)
            number += len(jobs)
            for job in jobs:
                self.write(f"kept  {' '.join([job.rule.name, *map(str, job.wildcards)])}\n")
        left = sum(bool(job.output) for job in inside.pending_jobs(self.workflow))
        self.write(
            f"{number} jobs are kept; {left} are stale for other reasons, see snakemake -n. The records of jobs go on "
            "to say by which code results were made.\n"
        )

    def is_kept(self, job: Any) -> bool:
        """Return whether a job is stale by its code only."""
        changes = inside.differences_of_metadata(self.workflow, job)
        return bool(
            changes
            and any(changes)
            and all(map(CODE_PARAM.fullmatch, changes[0]))
            and all(map(CODE_INPUT.fullmatch, changes[1]))
        )
