"""What Snakemake shows on the terminal: a line for each job that starts and ends, and in place what is running.

A handler of Snakemake's logger in place of its own one, which prints the inputs of every job; the file under
.snakemake/log has all of that. It needs no plugin to be installed, so it is there under any profile and in any
environment. With --verbose, with --debug-dag and with a logger plugin, nothing is replaced.

Where standard error is no terminal, it is plain text, a line for each job that starts and each that ends.
"""

import logging
import os
import re
import shutil
import signal
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake.logging import LoggerManager
from snakemake_interface_logger_plugins.common import LogEvent

from tpulm.core import job_record
from tpulm.core.job import ERASE, IN_PLACE, MEMORY
from tpulm.tracking import live_metrics
from tpulm.workflow.targets import unknown

DEFAULT = "DefaultStreamHandler"  # how Snakemake names the handler that is replaced
# What Snakemake says of itself, whatever there is to do.
CHATTER = (
    "Building DAG", "Select jobs", "Execute ", "Using shell", "Conda environments: ignored", "Singularity containers",
    "Group jobs: inactive", "Assuming unrestricted", "Shutting down", "Some jobs were triggered by provenance",
    "Rules with provenance", "Storing output", "Reasons:", "The order of jobs",
)  # fmt: skip
SILENT = {LogEvent.WORKFLOW_STARTED, LogEvent.RESOURCES_INFO, LogEvent.GROUP_INFO, LogEvent.RULEGRAPH}
# Reasons of a job that is not stale.
ROUTINE = ("Missing output files", "Input files updated by another job", "Rules with")
REFRESH = 0.5  # seconds
TAIL = 20  # lines of a failed job's log
CRASHES = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT")
# How Snakemake tells of a process that a signal has ended, also where a shell passes it on as an exit status, 128 more.
KILLED = re.compile(r"died with <Signals\.\w+: (\d+)>|non-zero exit status (1(?:29|[3-5]\d))\.")


@dataclass
class Running:
    """A job that has started."""

    label: str
    log: list[str]
    step: int | None  # the last one of a segment
    since: float = field(default_factory=time.time)


class Terminal(logging.Handler):
    """Shows what happens; passes on what it has no words of its own for.

    plain    Snakemake's handler, whose stream and colors it uses
    dryrun   whether jobs would run only
    in_place  whether it redraws what is running; the cursor then stands before that, where `ERASE` takes it away
    workflow  Snakemake's, whose rules are asked where a target is unknown
    """

    def __init__(self, plain: Any, dryrun: bool, in_place: bool, workflow: Any = None):
        """Take the filters of the handler that is replaced."""
        super().__init__()
        self.plain, self.dryrun, self.in_place, self.workflow = plain, dryrun, in_place, workflow
        self.running: dict[int, Running] = {}
        self.ended: list[str] = []
        self.total = self.left = 0
        self.signals: deque[int] = deque()  # of the jobs that have failed, in their order; 0 where none ended one
        self.closed = threading.Event()
        for part in plain.filters:
            self.addFilter(part)
        if in_place:
            threading.Thread(target=self.refresh, daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record, above what is running."""
        event = getattr(record, "event", None)
        ways = {
            LogEvent.JOB_INFO: self.started,
            LogEvent.JOB_FINISHED: self.finished,
            LogEvent.PROGRESS: self.progress,
            LogEvent.JOB_ERROR: self.failed,
            LogEvent.RUN_INFO: self.counted,
        }
        show = ways.get(event) if event else None
        try:
            sentence = (
                unknown(record.getMessage(), self.workflow.rules) if self.workflow and event == LogEvent.ERROR else None
            )
            if show:
                show(record)
            elif sentence:
                self.write(sentence, record)
            elif event not in SILENT and not self.omitted(record):
                self.erase()
                self.plain.emit(record)
        except BrokenPipeError:
            raise
        except Exception:
            self.handleError(record)

    def omitted(self, record: logging.LogRecord) -> bool:
        """Return whether a record is one that only the log file gets.

        The exception about a script's exit code says no more than the lines about the job that failed.
        """
        if record.levelno > logging.INFO:
            said = record.getMessage()
            if getattr(record, "exception", None) != "RuleException" or "CalledProcessError" not in said:
                return False
            killed = KILLED.search(said)
            self.signals.append(int(killed[1] or int(killed[2]) - 128) if killed else 0)
            return True
        return record.getMessage().startswith(CHATTER)

    def counted(self, record: Any) -> None:
        """Show how many jobs there are: of a dry run as a table at its end, which has it twice."""
        first, self.total = not self.total, record.stats.get("total", 0)
        self.left = self.total
        if not self.dryrun:
            self.write(f"{self.total} job{'s' * (self.total != 1)} to run")
        elif not first:
            self.write(record.getMessage())

    def started(self, record: Any) -> None:
        """Show a job that starts, or would."""
        label = " ".join([record.rule_name, *map(str, (record.wildcards or {}).values())])
        reasons = shortened(record.reason)
        if self.dryrun:
            self.write(f"would run  {label}  reason: {'; '.join(reasons)}")
            return
        step = str((record.wildcards or {}).get("step", ""))
        self.running[record.jobid] = Running(label, list(record.log), int(step) if step.isdigit() else None)
        stale = [reason for reason in reasons if not reason.startswith(ROUTINE)]
        if stale or not self.in_place:
            self.write(f"{now()}  start   {label}" + (f"  reason: {'; '.join(stale)}" if stale else ""))

    def finished(self, record: Any) -> None:
        """Take note of a job that has ended; `progress` says how many are left."""
        job = self.running.pop(record.job_id, None)
        if job:
            self.ended.append(f"{now()}  done    {job.label}  {lasted(time.time() - job.since)}")

    def progress(self, record: Any) -> None:
        """Show the jobs that have just ended."""
        self.total, self.left = record.total, record.total - record.done
        for line in self.ended:
            self.write(f"{line}  {self.left} left")
        self.ended = []

    def failed(self, record: Any) -> None:
        """Show a job that has failed, and what its log says where the job itself could not say it here."""
        job = self.running.pop(record.jobid, None)
        took = f"  after {lasted(time.time() - job.since)}" if job else ""
        lines = [f"{now()}  FAILED  {job.label if job else record.rule_name}{took}"]
        said = {"message": record.rule_msg} if record.rule_msg else {}  # of a scheduler, such as that it was cancelled
        lines += [f"    {name}: {value}" for name, value in (said | (record.aux or {})).items()]
        logs = {log: Path(str(log).split(" ", 1)[0]) for log in record.log}
        signum = self.signals.popleft() if self.signals else 0
        if signum and any(map(interrupted, logs.values())):
            lines.append(f"    {end_of(signum)}")
        for log, path in logs.items():
            words = last_words(path, local=not record.aux)
            lines += [f"    log: {log}", *(f"        {line}" for line in words)]
        self.write("\n".join(lines), record)

    def write(self, text: str, record: logging.LogRecord | None = None) -> None:
        """Write lines above what is running, in the color of a record."""
        self.erase()
        self.plain.stream.write(f"{self.plain.decorate(record, text) if record else text}\n")
        self.plain.flush()

    def erase(self) -> None:
        """Take away what is shown in place."""
        if self.in_place:
            self.plain.stream.write(ERASE)

    def refresh(self) -> None:
        """Redraw what is running, until the handler is closed."""
        while not self.closed.wait(REFRESH):
            with self.lock or threading.Lock():
                if self.closed.is_set() or not self.running:
                    continue
                columns, rows = shutil.get_terminal_size()
                lines = [line[: columns - 1] for line in self.shown(rows)]
                self.plain.stream.write(f"{ERASE}{''.join(f'{line}{chr(10)}' for line in lines)}\x1b[{len(lines)}A\r")
                self.plain.flush()

    def shown(self, rows: int) -> list[str]:
        """Return the lines about what is running, for a terminal of so many rows."""
        jobs = sorted(self.running.values(), key=lambda job: job.since)
        fit = max(1, min(len(jobs), rows - 4))
        lines = [f"{len(jobs)} running, {self.left} of {self.total} left"]
        for job in jobs[:fit]:
            progress = progress_of(job)
            # The last step, which the label ends with, is in the progress, too.
            label = job.label.rpartition(" ")[0] if progress else job.label
            lines.append(f"  {label}  {lasted(time.time() - job.since)}  {progress}".rstrip())
        return lines + ([f"  and {len(jobs) - fit} more"] if len(jobs) > fit else [])

    def close(self) -> None:
        """End; nothing is left in place."""
        if not self.closed.is_set():
            self.closed.set()
            with self.lock or threading.Lock():
                self.erase()
                self.plain.close()
        super().close()


def replace(manager: LoggerManager, workflow: Any = None) -> None:
    """Show jobs by `Terminal` from here on, unless the user asked for Snakemake's own words or for a plugin.

    workflow  Snakemake's, for what is said of unknown targets
    """
    settings = manager.settings
    os.environ.pop(IN_PLACE, None)  # of a Snakemake that started this one
    plain = next((handler for handler in manager.logger.handlers if handler.name == DEFAULT), None)
    if plain is None or settings.verbose or settings.debug_dag:
        return
    in_place = plain.can_color_tty() and not settings.dryrun and not settings.quiet and "CI" not in os.environ
    if in_place:
        os.environ[IN_PLACE] = "1"
    manager.logger.removeHandler(plain)
    manager.logger.addHandler(Terminal(plain, settings.dryrun, in_place, workflow))


def progress_of(job: Running) -> str:
    """Return how far a job that trains has come, by the live metrics beside its log; nothing for others."""
    if not job.log or job.step is None:
        return ""
    record = live_metrics.latest(Path(job.log[0]).with_name(live_metrics.FILE))
    return live_metrics.short_line(record) if record and record["last_step"] == job.step else ""


def shortened(reason: str) -> list[str]:
    """Return the parts of a reason, each with its first file only and without whole recipes.

    That jobs before it run, too, is said where it is the only reason.
    """
    parts = []
    for part in filter(None, reason.split("; ")):
        name, _, files = part.partition(": ")
        names = sorted(files.split(", "))
        if name.startswith(("Params", ROUTINE[1])) or not files:
            parts.append(name)
        else:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            parts.append(f"{name}: {names[0]}{more}")
    return [part for part in parts if part != ROUTINE[1]] or parts


def interrupted(log: Path) -> bool:
    """Return whether the job with this log began and did not come to an end of its own."""
    events = [line["event"] for line in job_record.read(job_record.path_of(log))]
    return bool(events) and events[-1] != "end"


def end_of(signum: int) -> str:
    """Return how a job was ended by a signal, and what may have sent that."""
    name = signal.Signals(signum).name
    if name == "SIGKILL":
        return f"ended by {name}, as the system does where memory runs out; {MEMORY}"
    return f"ended by {name}" + (", often a fault in a library" if name in CRASHES else "")


def last_words(log: Path, local: bool) -> list[str]:
    """Return the end of a failed job's log, from its sentence about the error where it has one.

    local  whether the job ran here, and so has itself said on the terminal what it knew
    """
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]
    except OSError:
        return []
    told = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    if told:
        return [] if local else lines[told[-1] :]
    return [] if local and any(line.startswith("Traceback") for line in lines) else lines


def now() -> str:
    """Return the time of day."""
    return time.strftime("%H:%M:%S")


def lasted(seconds: float) -> str:
    """Return a duration in words, such as 12 s, 3 min 05 s, 2 h 07 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, hours = divmod(whole, 60), divmod(whole // 60, 60)
    return f"{minutes[0]} min {minutes[1]:02d} s" if whole < 3600 else f"{hours[0]} h {hours[1]:02d} min"
