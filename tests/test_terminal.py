"""What a user sees while Snakemake runs, and in its list of rules."""

import io
import json
import logging
import time
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from conftest import write_record
from kills import wait_for
from snakemake.logging import ColorizingTextHandler, DefaultFilter
from snakemake_interface_logger_plugins.common import LogEvent
from tpulm.compat.snakemake import DEFAULT_HANDLER, replace_handler
from tpulm.core import ledger
from tpulm.core.job import ERASE, IN_PLACE
from tpulm.workflow import terminal
from tpulm.workflow.terminal import Terminal

pytestmark = pytest.mark.unit
METRICS = {"step": 415, "last_step": 750, "loss": 5.9734, "tokens": 1, "tokens_per_second": 31868.2}
METRICS |= {"accuracy": 0.095, "learning_rate": 0.003, "mfu": 0.413, "seconds_left": 42.0}


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def at_a_terminal(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv(IN_PLACE, "")
    monkeypatch.delenv(IN_PLACE)
    monkeypatch.setenv("TERM", "xterm")


def shows(dryrun=False, stream=None, quiet=None, local=True, dag=None):
    """Return what takes a record of Snakemake, the stream on which it is shown, and what shows it."""
    stream = io.StringIO() if stream is None else stream
    plain = ColorizingTextHandler(stream=stream)
    plain.addFilter(DefaultFilter(set(), False, False, dryrun, False))
    unforced = SimpleNamespace(forceall=False, forcetargets=False, forcerun=())
    workflow = SimpleNamespace(local_exec=local, touch=False, cores=2, dag=dag or run_of(), dag_settings=unforced)
    shown = Terminal(workflow, plain, SimpleNamespace(dryrun=dryrun, quiet=quiet))

    def take(event, message="", level=logging.INFO, **said):
        record = logging.makeLogRecord({"msg": message, "levelno": level, "levelname": logging.getLevelName(level)})
        record.__dict__.update(said, event=event)
        shown.handle(record)

    return take, stream, shown


def start(take, jobid, rule="write_shard", wildcards=None, reason="Missing output files: a, b", log=()):
    given = {"split": "train", "shard": "00000"} if wildcards is None else wildcards
    said = {"jobid": jobid, "rule_name": rule, "wildcards": given, "reason": reason, "log": list(log)}
    take(LogEvent.JOB_INFO, f"Rule: {rule}", **said)


ENDED = "WorkflowError:\nAt least one job did not complete successfully."
EXITS = "CalledProcessError in file rules/x.smk:\nCommand 'python x.py' "


def fail(take, jobid, log, message=None, **aux):
    said = {"jobid": jobid, "rule_name": "write_shard", "rule_msg": message, "log": [str(log)], "aux": aux}
    take(LogEvent.JOB_ERROR, "Error in rule", logging.ERROR, **said)


def test_a_job_has_a_line_when_it_starts_and_one_when_it_ends():
    take, stream, _ = shows()
    take(LogEvent.WORKFLOW_STARTED, "a page about the machine")
    take(LogEvent.RUN_INFO, "Job stats: ...", stats={"total": 3})
    start(take, 7)
    start(take, 6, reason="Updated input files: ; Input files updated by another job: a.txt")
    start(take, 8, reason="Updated input files: a.txt, b.txt; Params have changed since last execution: {a: 1}; {b: 2}")
    take(LogEvent.JOB_FINISHED, "Finished jobid: 7", job_id=7)
    take(LogEvent.JOB_FINISHED, "Finished jobid: 9", job_id=9)  # whose start was not told
    take(LogEvent.PROGRESS, done=1, total=3)
    take(None, "Nothing to be done")
    stats, first, after, second, done, last = stream.getvalue().splitlines()
    assert "3" in stats and last == "Nothing to be done"
    assert all(line.endswith("write_shard train 00000") for line in (first, after)) and "reason" not in first + after
    assert "a.txt, ...;" in second and "Params have changed" in second and "{a: 1}" not in second
    assert "write_shard train 00000" in done and "2 left" in done
    assert "\x1b" not in stream.getvalue() and "\r" not in stream.getvalue()


@dataclass(eq=False)
class Planned:
    rule: SimpleNamespace
    log: list[str]
    threads: int = 1


def run_of(*chains):
    """Return jobs, as Snakemake has them: each of a rule, with a log, behind the one before it in its chain."""
    jobs, before = [], {}
    for chain in chains:
        for number, (rule, log) in enumerate(chain):
            job = Planned(SimpleNamespace(name=rule), [log] if log else [])
            before[job] = [jobs[-1]] if number else []
            jobs.append(job)
    return SimpleNamespace(needrun_jobs=lambda: jobs, jobid=jobs.index, job_dependencies=before.get)


def test_the_time_that_is_left_is_told_once_it_is_known(tmp_path, monkeypatch):
    """From the jobs of this run, and of earlier ones of the same kind."""
    monkeypatch.chdir(tmp_path)
    tiny = [("train", f"logs/mlm/tiny-128/{step:08d}.log") for step in (750, 1500)]
    for number, log in enumerate((tiny[0][1], "logs/mlm/tiny-1024/00000750.log")):
        write_record(tmp_path, log, "train", 1000.0, 1600.0 + 9000 * number)

    def told(*chains, **options):
        take, stream, shown = shows(dag=run_of(*chains), **options)
        take(LogEvent.RUN_INFO, "Job stats: ...", stats={"total": 3})
        shown.pace.estimated_at = 0
        return take, stream, shown

    assert "about 0:20:00" in told([*tiny, ("all", "")])[1].getvalue()
    assert "about 0:20:00" in told(tiny, tiny)[1].getvalue()  # two cores, two chains
    assert "0:20:00" not in told(tiny, local=False)[1].getvalue()  # where jobs wait in a queue
    take, stream, shown = told([*tiny, ("score", "logs/score.log"), ("all", "")])
    assert "about 0:20:00 or more" in stream.getvalue()
    start(take, 0, "train", {"run": "tiny-128", "step": "00000750"}, log=[tiny[0][1]])
    shown.running[0] = (*shown.running[0][:2], time.time() - 100)  # it took 100 s
    take(LogEvent.JOB_FINISHED, "Finished jobid: 0", job_id=0)
    assert stream.getvalue().endswith("about 0:01:40 or more\n")
    shown.pace.estimated_at = 0
    shown.pace.end(2, ("score", "logs/score.log"), 0.0)
    assert shown.rest() == ", about 0:01:40"
    fail(take, 5, tmp_path / "a.log")
    assert shown.rest() == ""


def test_a_dry_run_has_a_line_for_each_job_and_one_table():
    take, stream, _ = shows(dryrun=True)
    take(LogEvent.RUN_INFO, "THE TABLE", stats={"total": 2})
    start(take, 7, reason="Missing output files: a, b; Input files updated by another job: c")
    start(take, 8, rule="all", wildcards={}, reason="Input files updated by another job: c")
    start(take, 9, reason="Forced execution")
    take(LogEvent.RUN_INFO, "THE TABLE", stats={"total": 2})
    first, second, third, table = stream.getvalue().splitlines()
    assert third.endswith("reason: an earlier run was interrupted in this job")
    assert "write_shard train 00000" in first and first.endswith("a, ...")
    assert "all" in second and second.endswith(": c") and table == "THE TABLE"


@pytest.mark.parametrize(
    ("written", "aux", "shown"),
    [
        ("noise\nerror: the disk is full\n", {}, []),  # the job has said so on the terminal
        ("noise\nerror: the disk is full\n", {"external_jobid": "12"}, ["noise", "error: the disk is full"]),
        ("step 1\nKilled\n", {"external_jobid": "12"}, ["step 1", "Killed"]),
        (None, {"external_jobid": "12"}, []),
    ],
)
def test_a_job_that_fails_names_its_log_and_shows_what_was_not_said(tmp_path, written, aux, shown):
    log = tmp_path / "x.log"
    if written:
        log.write_text(written)
    take, stream, _ = shows()
    start(take, 7, log=[str(log)])
    fail(take, 7, log, aux and "CANCELLED", **aux)
    exited = f"{EXITS} returned non-zero exit status 1."
    take(LogEvent.ERROR, exited, logging.ERROR, exception="RuleException")  # in the log file only
    _, failed, *rest = (line.strip() for line in stream.getvalue().splitlines())
    assert "FAILED" in failed and "write_shard train 00000" in failed
    external = ["message: CANCELLED", *(f"{name}: {value}" for name, value in aux.items())] if aux else []
    assert rest == [*external, f"log: {log}", *shown]
    take(LogEvent.ERROR, "Exiting because a job execution failed. Look above for error messages", logging.ERROR)
    # What was wrong is said again at the end, if other jobs were shown since.
    take(LogEvent.ERROR, ENDED, logging.ERROR)
    assert [line.strip() for line in stream.getvalue().splitlines()][2:] == rest
    start(take, 8)
    take(LogEvent.ERROR, ENDED, logging.ERROR)
    last, why = stream.getvalue().splitlines()[-1], "the disk is full" if "error: " in (written or "") else str(log)
    assert last.startswith("error: write_shard train 00000: ") and why in last
    assert "Exiting" not in stream.getvalue() and "WorkflowError" not in stream.getvalue()


def test_a_job_that_was_stopped_has_not_failed(tmp_path):
    """Ctrl-C is no error; the line says what the next snakemake does."""
    log, said = tmp_path / "x.log", "stopped by SIGINT at step 12; the next snakemake resumes from this step."
    log.write_text(f"step 12\n{said}\n")
    take, stream, _ = shows()
    start(take, 7, log=[str(log)])
    fail(take, 7, log, None)
    start(take, 8)
    take(LogEvent.ERROR, ENDED, logging.ERROR)
    assert stream.getvalue().splitlines()[-1] == f"write_shard train 00000: {said}"
    assert "FAILED" not in stream.getvalue() and "error" not in stream.getvalue()


@pytest.mark.parametrize(
    ("events", "killed"),
    [
        (["start", "end", "start"], True),
        (["start", "end"], False),
        (["before"], False),  # an attempt of earlier was killed, and this one has not begun
    ],
)
def test_a_job_that_was_killed_says_so_and_its_last_words(tmp_path, events, killed):
    log = tmp_path / "logs/x.log"
    log.parent.mkdir()
    log.write_text("step 1\n")
    for event in events:
        line = {"event": event.replace("before", "start"), "time": 0 if event == "before" else time.time(), "exit": 1}
        ledger.append(ledger.path_of(log), line)
    take, stream, _ = shows()
    start(take, 7, log=[str(log)])
    take(LogEvent.ERROR, f"{EXITS} died with <Signals.SIGKILL: 9>.", logging.ERROR, exception="RuleException")
    fail(take, 7, log)
    shown = stream.getvalue()
    assert "Signals.SIGKILL" in shown and "step 1" in shown and ("memory ran out" in shown) == killed


def test_a_message_that_snakemake_repeats_is_shown_once():
    take, stream, _ = shows()
    for message in ("a", "a", "b"):
        take(None, message, logging.WARNING)
    assert stream.getvalue().split() == ["a", "b"]


def test_jobs_go_on_where_nobody_reads_what_is_shown():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    take, _, _ = shows(stream=Closed())
    start(take, 7)


def test_where_nothing_is_shown_in_place_jobs_that_run_elsewhere_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(terminal, "SILENCE", 1)
    (tmp_path / "metrics.jsonl").write_text(json.dumps(METRICS) + "\n")
    here, told_here, first = shows()  # where a training tells by itself how far it has come
    take, stream, last = shows(local=False)
    for taken in (here, take):
        taken(LogEvent.RUN_INFO, "Job stats: ...", stats={"write_shard": 5, "total": 5})
        start(taken, 1, "train_mlm", {"run": "tiny", "step": "00000750"}, log=[str(tmp_path / "00000750.log")])
        start(taken, 2, "plan_training", {"run": "a"})
    wait_for(lambda: "running" in stream.getvalue())
    first.close()
    last.close()
    _, train, plan = stream.getvalue().splitlines()[3:6]
    assert plan.strip().endswith("plan_training a")
    assert "train_mlm tiny 00000750  step 415/750  0.7 min left  loss 5.9734" in train
    assert "running" not in told_here.getvalue() and "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("columns", [80, 220])
def test_a_training_shows_its_progress_in_place(columns, tmp_path, monkeypatch):
    monkeypatch.setattr(terminal, "REFRESH", 0.01)
    monkeypatch.setenv("COLUMNS", str(columns))
    log, long = tmp_path / "01000000.log", {"step": 123456, "last_step": 1000000, "seconds_left": 7404.0}
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(METRICS | long)}\n" + '{"step": 4')  # as it grows
    take, stream, shown = shows(stream=Screen())
    assert IN_PLACE in terminal.os.environ  # jobs see that they need not say it
    take(LogEvent.RUN_INFO, "THE TABLE", stats={"total": 5})
    start(take, 1, "train_mlm_tensorflow", {"run": "a-run-of-a-sweep", "step": "01000000"}, log=[str(log)])
    start(take, 2, "train_mlm_jax", {"run": "tiny", "step": "00001500"}, log=[str(log)])  # not its metrics
    wait_for(lambda: "2 running" in stream.getvalue())
    monkeypatch.setenv("LINES", "4")  # of a terminal with room for one job
    wait_for(lambda: "2 running" in stream.getvalue().rpartition("\x1b[2A")[0].rpartition(ERASE)[2])
    shown.close()
    assert stream.getvalue().endswith(ERASE)
    head, first, second = next(one for one in stream.getvalue().split(ERASE) if "\x1b[3A" in one).splitlines()[:3]
    assert max(map(len, (head, first, second))) < columns and second.endswith(" tiny 00001500  ")
    assert "01000000  step 123456/1000000  123.4 min left" in first
    assert ("a-run-of-a-sweep" in first and first.endswith("MFU 41.3%")) == (columns == 220)


@pytest.mark.parametrize(
    ("settings", "environment", "replaced", "in_place"),
    [
        ({}, {}, True, True),
        ({}, {"CI": "true"}, True, False),
        ({}, {"TERM": "dumb"}, True, False),
        ({"dryrun": True}, {}, True, False),
        ({"quiet": {"rules"}}, {}, True, False),
        ({"verbose": True}, {}, False, False),
    ],
)
def test_snakemakes_own_display_is_there_for_who_asks(settings, environment, replaced, in_place, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    plain = ColorizingTextHandler(stream=Screen())
    plain.name = DEFAULT_HANDLER
    logger = logging.Logger("of this test")
    logger.addHandler(plain)
    defaults = {"verbose": False, "debug_dag": False, "dryrun": False, "quiet": None}
    manager = SimpleNamespace(logger=logger, settings=SimpleNamespace(**defaults | settings))
    replace_handler(SimpleNamespace(logger_manager=manager), Terminal)
    (handler,) = logger.handlers
    assert isinstance(handler, Terminal) == replaced
    assert (IN_PLACE in terminal.os.environ) == in_place == getattr(handler, "in_place", False)
    handler.close()
