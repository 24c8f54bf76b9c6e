"""Show Snakemake's jobs on the terminal: a line for each job that starts and ends, and in place what is running.

The handler replaces Snakemake's own, which prints the inputs of every job; tpulm.compat.snakemake installs it. If the
output is no terminal, there are only plain lines: jobs on this machine print their own progress, and jobs elsewhere are
listed after half a minute without a line.
"""

import contextlib
import difflib
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from snakemake_interface_logger_plugins.common import LogEvent

from tpulm.compat import snakemake as inside
from tpulm.core import ledger, live_metrics
from tpulm.core.code_digest import PARAM
from tpulm.core.experiments import find_experiment, from_workflow
from tpulm.core.job import ERASE, IN_PLACE, MEMORY
from tpulm.core.processes import STOPPED
from tpulm.workflow.pace import Job, Pace, kind_of_job
from tpulm.workflow.reasons import reasons_of, retraining_notes

REFRESH = 0.5  # seconds between two updates of the jobs that are shown in place
SILENCE = 30  # seconds without a line
TAIL = 20  # last lines of a failed job's log, which are shown
SAID = re.compile(rf"^error: |^{STOPPED}|Traceback", re.MULTILINE)  # in the log of a job that has printed its error


class Terminal(logging.Handler):
    """Shows jobs in a line each, and other messages of Snakemake in its own words.

    workflow  Snakemake's
    plain     Snakemake's handler, whose stream, filters, colors and words are used
    settings  Snakemake's output settings
    """

    def __init__(self, workflow: Any, plain: Any, settings: Any):
        super().__init__()
        self.workflow, self.plain, self.dryrun = workflow, plain, settings.dryrun
        self.filters = plain.filters
        self.running: dict[int, tuple[str, list[str], float]] = {}  # label, logs and start of each job
        self.jobs: dict[int, Any] = {}  # Snakemake's jobs by their ids
        self.failures: dict[str, str] = {}  # the sentence of each failed job, by its label
        self.buried = False  # whether a line of another job followed that of a failure
        self.shown = ""  # the last message
        self.total = self.left = 0
        self.notes: list[str] = []  # lines that precede the table of a dry run
        self.pace = Pace([], 1)
        self.in_place = plain.can_color_tty() and not (settings.dryrun or settings.quiet or "CI" in os.environ)
        self.closed, self.written = threading.Event(), time.time()
        self.refresher = threading.Thread(target=self.show_running, daemon=True)
        if self.in_place:
            os.environ[IN_PLACE] = "1"  # for jobs, which then print no progress

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record in the words of this handler, or in Snakemake's own."""
        ways: dict[Any, Callable[[Any], str]] = {
            LogEvent.RUN_INFO: self.counted,
            LogEvent.JOB_INFO: self.started,
            LogEvent.JOB_FINISHED: self.finished,
            LogEvent.JOB_ERROR: self.failed,
        }
        try:
            way = ways.get(getattr(record, "event", None), self.other)
            text = "" if inside.only_for_the_log(record) else way(record)
            # After a signal, Snakemake says again and again that it waits for jobs.
            if text and not (way == self.other and text == self.shown):
                self.write(f"{self.plain.decorate(record, text) if record.levelno > logging.INFO else text}\n")
            self.shown = text or self.shown
        except BrokenPipeError:  # the reader has gone, as after `| head`; the log file has it all
            pass
        except Exception:
            self.handleError(record)

    def counted(self, record: Any) -> str:
        """Return the number of jobs, and start to show what is running; in a dry run, return the table at its end."""
        before, self.total, self.left = self.total, record.stats["total"], record.stats["total"]
        if self.dryrun:
            if not before:
                jobs = inside.pending_jobs(self.workflow)
                self.notes = retraining_notes(job for job in jobs if code_changed(self.workflow, job))
            return "\n".join([*self.notes, record.getMessage()]) if before else ""
        if self.workflow.local_exec and not self.workflow.touch:  # elsewhere, jobs wait in a queue
            jobs = list(inside.ordered_jobs(self.workflow))
            timed = [
                Job(number, kind_of_job(job.rule.name, job.log), job.threads, before) for number, job, before in jobs
            ]
            folders = {ledger.folder_of(log) for _, job, _ in jobs for log in job.log}
            self.pace = Pace(timed, self.workflow.cores or 1, folders)
        if self.in_place or not self.workflow.local_exec:
            self.refresher.start()
        return f"jobs to run: {self.total}{self.rest()}"

    def started(self, record: Any) -> str:
        """Return the line of a job that starts, or would."""
        label = " ".join([record.rule_name, *map(str, (record.wildcards or {}).values())])
        if self.dryrun:
            return f"would run  {label}  reason: {'; '.join(self.reasons(record))}"
        self.running[record.jobid] = label, list(record.log), time.time()
        self.buried = bool(self.failures)
        stale = inside.stale(self.reasons(record))
        return moment("start", label) + (f"  reason: {stale}" if stale else "")

    def reasons(self, record: Any) -> list[str]:
        """Return the reasons of a job, with old and new values where it has run before."""
        if record.jobid not in self.jobs:
            self.jobs = inside.jobs_by_id(self.workflow)
        job, said = self.jobs.get(record.jobid), inside.reasons(record.reason)
        if inside.interrupted(self.workflow, said):
            said = ["an earlier run was interrupted in this job"]
        return reasons_of(job, said, code_changed(self.workflow, job)) if job else said

    def finished(self, record: Any) -> str:
        """Return the line of a job that has ended."""
        self.left -= 1
        if record.job_id not in self.running:  # with --quiet rules, which shows no start
            return ""
        label, logs, since = self.running.pop(record.job_id)
        self.failures.pop(label, None)  # an earlier attempt of the job may have failed
        self.buried = bool(self.failures)
        self.pace.end(record.job_id, kind_of_job(label.partition(" ")[0], logs), time.time() - since)
        return f"{moment('done', label)}  {format_elapsed(since)}  {self.left} left{self.rest()}"

    def rest(self) -> str:
        """Return how long the remaining jobs will take, to follow their number; empty if unknown."""
        remaining = self.pace.rest({number: time.time() - since for number, (_, _, since) in self.running.items()})
        return f", {remaining}" if remaining else ""

    def failed(self, record: Any) -> str:
        """Return the lines of a failed job, with the end of its log if the job has not shown its error here."""
        label, _, since = self.running.pop(record.jobid, (record.rule_name, [], time.time()))
        self.pace = Pace([], 1)  # what depends on this job does not run
        lines = []
        scheduled = ({"message": record.rule_msg} if record.rule_msg else {}) | (record.aux or {})  # from a scheduler
        lines += [f"    {name}: {value}" for name, value in scheduled.items()]
        self.failures[label] = f"it failed; see {record.log[0]}." if record.log else "it failed."
        for log in record.log:
            path = Path(str(log).split(" ", 1)[0])
            if ledger.cut_short(path, since):
                lines.append(f"    it was killed, for example because memory ran out, or it crashed; {MEMORY}")
            lines.append(f"    log: {from_workflow(log)}")
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
            if errors := re.findall(rf"^(?:error: |(?={STOPPED}))(.*)", text, re.MULTILINE):
                self.failures[label] = errors[-1]
            if scheduled or not SAID.search(text):
                lines += [f"        {line}" for line in text.splitlines()[-TAIL:]]
        event = "STOPPED" if self.failures[label].startswith(STOPPED) else "FAILED"
        return "\n".join([f"{moment(event, label)}  after {format_elapsed(since)}", *lines])

    def other(self, record: logging.LogRecord) -> str:
        """Return Snakemake's message, reworded if it lacks what users need.

        Reworded are a target that no rule makes, a read-only output, and the end of a run in which jobs failed.
        """
        said = record.getMessage()
        if self.failures and inside.ended_with_failures(said):
            failures = self.failures.items() if self.buried else ()
            begins = ("" if sentence.startswith(STOPPED) else "error: " for _, sentence in failures)
            return "\n".join(f"{begin}{label}: {said}" for begin, (label, said) in zip(begins, failures, strict=True))
        if path := inside.read_only(said):
            return f"error: {path} is read-only, and a job of this run replaces it; to allow that: chmod u+w {path}."
        target = inside.missing_target(said)
        if target is None:
            return self.plain.format(record)
        near = difflib.get_close_matches(target, inside.targets(self.workflow), n=3)
        near += [f"-d {folder}"] if (folder := find_experiment(target)) else []
        more = f"did you mean {' or '.join(near)}?" if near else "`snakemake --list-target-rules` lists the targets."
        return f"error: no rule of this config makes {target}; {more}"

    def write(self, text: str) -> None:
        """Write over what is shown in place, in one call, since a thread writes, too."""
        self.written = time.time()
        self.plain.stream.write(f"{ERASE}{text}" if self.in_place else text)
        self.plain.flush()

    def show_running(self) -> None:
        """Show what is running until the handler is closed: in place, or in lines after SILENCE."""
        while not self.closed.wait(REFRESH):
            if not self.in_place and time.time() < self.written + SILENCE:
                continue
            columns, rows = shutil.get_terminal_size()
            with cast(AbstractContextManager, self.lock), contextlib.suppress(BrokenPipeError):
                jobs = list(self.running.values())[: max(1, rows - 3)]
                lines = [f"{len(self.running)} running, {self.left} of {self.total} left{self.rest()}"]
                for label, logs, since in jobs:
                    begin, training = f"  {format_elapsed(since)}  ", progress(label, logs)
                    room = columns - len(begin) - len("  ".join(["", *training.split("  ")[:2]])) - 2
                    lines.append(f"{begin}{shortened(label, room)}  {training}")
                end = ""
                if self.in_place:  # the cursor goes back to the beginning
                    lines, end = [line[: columns - 1] for line in lines], f"\x1b[{len(lines)}A\r"
                if jobs and not self.closed.is_set():
                    self.write("\n".join([*lines, end]))

    def close(self) -> None:
        """Stop the thread, and erase what is shown in place."""
        self.closed.set()
        if self.refresher.is_alive():
            self.refresher.join(REFRESH)  # not for ever: the caller may hold the lock that it waits for
        if self.in_place:
            self.write("")
        super().close()


def code_changed(workflow: Any, job: Any) -> bool:
    """Return whether the param `code` of a job is another one than in Snakemake's metadata."""
    return any(PARAM.fullmatch(param) for params in inside.changed_params(workflow, job) for param in params)


def progress(label: str, logs: list[str]) -> str:
    """Return the progress of a job that trains, by the live metrics next to its log; empty for other jobs."""
    record = live_metrics.latest(Path(logs[0]).with_name(live_metrics.FILE)) if logs else None
    return live_metrics.line(record) if record and label.endswith(f" {record['last_step']:08d}") else ""


def shortened(label: str, room: int) -> str:
    """Return a label without its middle if there is no room for it beside the step and the time that is left."""
    head, tail = max(room // 3, 4), max(room - room // 3 - 3, 8)  # its end is the run and the step
    return label if len(label) <= room else f"{label[:head]}...{label[-tail:]}"


def moment(event: str, label: str) -> str:
    """Return the beginning of a line about a job: the time of day, the event, and the label."""
    return f"{time.strftime('%H:%M:%S')}  {event:6}  {label}"


def format_elapsed(since: float) -> str:
    """Return the time since a moment, such as 0:03:05."""
    return str(timedelta(seconds=round(time.time() - since)))
