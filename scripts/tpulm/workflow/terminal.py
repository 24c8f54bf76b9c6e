"""What Snakemake shows on the terminal: a line for each job that starts and ends, and in place what is running.

A handler in the place of Snakemake's own one, which prints the inputs of every job; tpulm.compat.snakemake puts it
there. Where the output is no terminal, all are plain lines; what is running is told after half a minute without one.
"""

import contextlib
import difflib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.common import LogEvent

from tpulm.compat import snakemake as inside
from tpulm.core import job_record, live_metrics
from tpulm.core.job import ERASE, IN_PLACE, MEMORY
from tpulm.workflow.pace import Job, Pace, kind_of


def unknown(target: str, known: Iterable[str]) -> str:
    """Return a sentence about a target that no rule makes, with those of the known ones that are like it."""
    near = difflib.get_close_matches(target, list(known), n=3, cutoff=0.7)
    more = f"did you mean {' or '.join(near)}?" if near else "`snakemake --list-rules` lists the targets by name."
    return f"error: no rule of this config makes {target}; {more}"


REFRESH = 0.5  # seconds
SILENCE = 30  # seconds without a line
NAMED = 3  # jobs that run, in a line
TAIL = 20  # lines of a log
ERROR = "error: "


class Terminal(logging.Handler):
    """Shows jobs in a line each; what else Snakemake says, in its own words.

    workflow  Snakemake's, whose targets a misspelt one is like
    plain     Snakemake's handler, whose stream, filters, colors and words are used
    settings  of Snakemake's output
    """

    def __init__(self, workflow: Any, plain: Any, settings: Any):
        super().__init__()
        self.workflow, self.plain, self.dryrun = workflow, plain, settings.dryrun
        self.filters = plain.filters
        self.running: dict[int, tuple[str, list[str], float]] = {}  # label, logs and start of each job
        self.failures: dict[str, str] = {}  # what was wrong, by the label of the job
        self.buried = False  # whether other jobs were shown since
        self.total = self.left = 0
        self.pace = Pace([], 1, Path())
        self.in_place = plain.can_color_tty() and not (settings.dryrun or settings.quiet or "CI" in os.environ)
        self.closed, self.written = threading.Event(), time.time()
        self.drawing = threading.Thread(target=self.draw if self.in_place else self.remind, daemon=True)
        if self.in_place:
            os.environ[IN_PLACE] = "1"  # for jobs, which then print no progress
        if not (settings.dryrun or settings.quiet):
            self.drawing.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record in the words that there are for it."""
        ways: dict[Any, Callable[[Any], str]] = {
            LogEvent.RUN_INFO: self.counted,
            LogEvent.JOB_INFO: self.started,
            LogEvent.JOB_FINISHED: self.finished,
            LogEvent.JOB_ERROR: self.failed,
        }
        try:
            text = ways.get(getattr(record, "event", None), self.other)(record)
            if text:
                self.write(f"{self.plain.decorate(record, text) if record.levelno > logging.INFO else text}\n")
        except BrokenPipeError:  # nobody reads on, as after `| head`; the log file has it all
            pass
        except Exception:
            self.handleError(record)

    def counted(self, record: Any) -> str:
        """Return how many jobs there are: of a dry run, which tells it before and after them, the table at the end."""
        before, self.total, self.left = self.total, record.stats["total"], record.stats["total"]
        if self.dryrun:
            return record.getMessage() if before else ""
        if self.workflow.local_exec and not self.workflow.touch:  # elsewhere, jobs wait in a queue
            jobs = inside.ordered_jobs(self.workflow)
            timed = [Job(number, kind_of(job.rule.name, job.log), job.threads, before) for number, job, before in jobs]
            self.pace = Pace(timed, self.workflow.cores or 1, Path())
        return f"jobs to run: {self.total}{self.rest()}"

    def started(self, record: Any) -> str:
        """Return the line of a job that starts, or would."""
        label = " ".join([record.rule_name, *map(str, (record.wildcards or {}).values())])
        if self.dryrun:
            return f"would run  {label}  reason: {'; '.join(inside.reasons(record.reason))}"
        self.running[record.jobid] = label, list(record.log), time.time()
        self.buried = bool(self.failures)
        stale = inside.stale(record.reason)
        return moment("start", label) + (f"  reason: {stale}" if stale else "")

    def finished(self, record: Any) -> str:
        """Return the line of a job that has ended."""
        self.left -= 1
        if record.job_id not in self.running:  # with --quiet rules, which is silent about the start
            return ""
        label, logs, since = self.running.pop(record.job_id)
        self.pace.end(record.job_id, kind_of(label.partition(" ")[0], logs), time.time() - since)
        self.failures.pop(label, None)  # of an earlier attempt
        self.buried = bool(self.failures)
        return f"{moment('done', label)}  {lasted(since)}  {self.left} left{self.rest()}"

    def rest(self) -> str:
        """Return how long the jobs that are left will take, behind their number; nothing where it is not known."""
        if self.failures:  # what depends on a job that failed does not run
            return ""
        told = self.pace.rest({number: time.time() - since for number, (_, _, since) in self.running.items()})
        return f", {told}" if told else ""

    def failed(self, record: Any) -> str:
        """Return the lines of a job that has failed, with the end of its log if the job has not said it here itself."""
        label, _, since = self.running.pop(record.jobid, (record.rule_name, [], time.time()))
        lines = [f"{moment('FAILED', label)}  after {lasted(since)}"]
        elsewhere = ({"message": record.rule_msg} if record.rule_msg else {}) | (record.aux or {})  # by a scheduler
        lines += [f"    {name}: {value}" for name, value in elsewhere.items()]
        self.failures[label] = f"it failed; see {record.log[0]}." if record.log else "it failed."
        for log in record.log:
            path = Path(str(log).split(" ", 1)[0])
            killed = job_record.cut_short(path, since)
            if killed:
                lines.append(f"    it was killed, for example because memory ran out, or it crashed; {MEMORY}")
            lines.append(f"    log: {log}")
            words, told = last_words(path)
            if words and words[0].startswith(ERROR):
                self.failures[label] = words[0].removeprefix(ERROR)
            if killed or elsewhere or not told:
                lines += [f"        {line}" for line in words]
        return "\n".join(lines)

    def other(self, record: logging.LogRecord) -> str:
        """Return what Snakemake says, but for what only the log gets."""
        if inside.only_for_the_log(record):
            return ""
        said = record.getMessage()
        if target := inside.missing_target(said):
            return unknown(target, inside.targets(self.workflow))
        if self.failures and inside.ended_with_failures(said):
            last = [f"{ERROR}{label}: {sentence}" for label, sentence in self.failures.items()]
            return "\n".join(last) if self.buried else ""
        if path := inside.read_only(said):
            return f"error: {path} is read-only, and a job of this run replaces it; to allow that: chmod u+w {path}."
        return self.plain.format(record)

    def write(self, text: str) -> None:
        """Write over what is shown in place; all at once, since a thread draws that."""
        self.written = time.time()
        self.plain.stream.write(f"{ERASE}{text}" if self.in_place else text)
        self.plain.flush()

    def draw(self) -> None:
        """Show in place what is running, until the handler is closed; the cursor stays at its beginning."""
        while not self.closed.wait(REFRESH):
            columns, rows = shutil.get_terminal_size()
            with self.lock or threading.Lock():
                jobs = list(self.running.values())[: max(1, rows - 3)]
                lines = [f"{len(self.running)} running, {self.left} of {self.total} left{self.rest()}"]
                lines += [f"  {lasted(since)}  {label}  {progress(label, logs)}" for label, logs, since in jobs]
                if jobs and not self.closed.is_set():
                    self.write("".join(f"{line[: columns - 1]}\n" for line in lines) + f"\x1b[{len(lines)}A\r")

    def remind(self) -> None:
        """Write after SILENCE which jobs have begun, or wait in a queue, and how far those have come that train.

        On this machine, a job that trains writes that by itself.
        """
        while not self.closed.wait(max(REFRESH, self.written + SILENCE - time.time())):
            if time.time() < self.written + SILENCE:
                continue
            with self.lock or threading.Lock(), contextlib.suppress(BrokenPipeError):
                self.written, jobs = time.time(), []
                for label, logs, since in self.running.values():
                    come = progress(label, logs)
                    if not (come and self.workflow.local_exec):
                        jobs.append("  ".join(filter(None, [label, lasted(since), come])))
                if jobs and not self.closed.is_set():
                    more = [f"and {len(jobs) - NAMED} more"] if len(jobs) > NAMED else []
                    self.write(f"{moment('active', '; '.join(jobs[:NAMED] + more))}  {self.left} left{self.rest()}\n")

    def close(self) -> None:
        """End; nothing is left in place."""
        self.closed.set()
        if self.drawing.is_alive():
            self.drawing.join(REFRESH)  # not for ever: whoever closes may hold the lock that it waits for
        if self.in_place:
            self.write("")
        super().close()


def progress(label: str, logs: list[str]) -> str:
    """Return how far a job that trains has come, by the live metrics beside its log: those of its last step."""
    record = live_metrics.latest(Path(logs[0]).with_name(live_metrics.FILE)) if logs else None
    return live_metrics.short_line(record) if record and label.endswith(f" {record['last_step']:08d}") else ""


def last_words(log: Path) -> tuple[list[str], bool]:
    """Return the end of a log, from the sentence about an error on where it has one; and whether the job told of it."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    _, found, error = f"\n{text}".rpartition("\nerror: ")
    lines = f"{found.strip()} {error}".splitlines() if found else text.splitlines()[-TAIL:]
    return lines, bool(found) or "Traceback" in text


def moment(event: str, label: str) -> str:
    """Return the beginning of a line about a job: the time of day, what happens, and to which."""
    return f"{time.strftime('%H:%M:%S')}  {event:6}  {label}"


def lasted(since: float) -> str:
    """Return the time since then, such as 0:03:05."""
    return str(timedelta(seconds=round(time.time() - since)))
