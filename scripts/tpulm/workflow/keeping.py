"""Keeps results that are stale only because code or packages have changed: Snakemake's metadata takes the new code."""

import logging
import os
import re
import sys
from typing import Any

from snakemake_interface_logger_plugins.common import LogEvent

from tpulm.compat import snakemake as inside
from tpulm.core import folder_lock
from tpulm.core.code_digest import PARAM, ROOT
from tpulm.core.errors import UserError
from tpulm.workflow.start import or_exit
from tpulm.workflow.terminal import Terminal

KEEP = "TPULM_KEEP"  # set in the environment of a dry run that keeps results
# Until 0.4.0: in metadata of 0.2.0, the code of this folder is among the inputs.
CODE_INPUT = re.compile(r"(scripts/.*\.py|envs/[\w-]+\.txt)")


class Keeper(Terminal):
    """Takes the place of the terminal in a dry run, keeps what it can once the jobs are known, and ends the program."""

    def __init__(self, workflow: Any, plain: Any, settings: Any):
        super().__init__(workflow, plain, settings)
        self.filters, self.seen = [], folder_lock.last_start()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep results when the jobs are known; show only what else Snakemake says, such as an error."""
        if getattr(record, "event", None) == LogEvent.RUN_INFO:
            or_exit(self.keep)
            sys.exit()
        super().emit(record)

    def keep(self) -> None:
        """Keep and print the jobs that only their code makes stale. Raises UserError for a folder that is taken."""
        pending = [job for job in inside.pending_jobs(self.workflow) if job.output]
        try:
            folder_lock.enter(self.seen)
            kept = inside.renew_metadata(self.workflow, filter(self.differs_by_code, pending))
        except OSError as error:
            raise UserError(f"{error.filename} cannot be written: {error.strerror}.") from None
        for job in kept:
            self.write(f"kept  {' '.join([job.rule.name, *map(str, job.wildcards)])}\n")
        left = sum(bool(job.output) for job in inside.pending_jobs(self.workflow))
        self.write(
            f"{len(kept)} jobs are kept; {left} run for other reasons, see snakemake -n. The entries of jobs go on to "
            "say by which code results were made.\n"
        )

    def differs_by_code(self, job: Any) -> bool:
        """Return whether the metadata of a job differs from the workflow, and by code only."""
        if not inside.may_be_up_to_date(self.workflow, job):
            return False
        (old, new), inputs = inside.changed_params(self.workflow, job), inside.changed_inputs(self.workflow, job)
        matches = [PARAM.fullmatch(param) for param in (*old, *new)]
        scripts = {match["job"] for match in matches if match}
        if not all(matches) or len(scripts) != 1:
            return False
        return not inputs if old else all(CODE_INPUT.fullmatch(os.path.relpath(path, ROOT)) for path in inputs)
