"""What a user sees while Snakemake runs, and in its list of rules."""

import io
import json
import logging
import re
from types import SimpleNamespace

import pytest
from conftest import ROOT
from snakemake.logging import ColorizingTextHandler, DefaultFilter
from snakemake_interface_logger_plugins.common import LogEvent
from tpulm.core.job import ERASE, IN_PLACE
from tpulm.workflow import terminal
from tpulm.workflow.targets import unknown
from tpulm.workflow.terminal import DEFAULT, Terminal, lasted, replace, shortened

pytestmark = pytest.mark.unit
METRICS = {
    "step": 415, "last_step": 750, "loss": 5.9734, "accuracy": 0.095, "learning_rate": 0.003, "tokens": 1,
    "tokens_per_second": 31868.2, "mfu": 0.413, "seconds_left": 42.0,
}  # fmt: skip


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def shows(dryrun=False, in_place=False, quiet=()):
    """Return what takes a record of Snakemake, and the stream on which it is shown."""
    stream = Screen() if in_place else io.StringIO()
    plain = ColorizingTextHandler(stream=stream)
    plain.addFilter(DefaultFilter(set(quiet), False, False, dryrun, False))
    shown = Terminal(plain, dryrun, in_place)

    def take(event, message="", level=logging.INFO, **said):
        record = logging.makeLogRecord({"msg": message, "levelno": level, "levelname": logging.getLevelName(level)})
        record.__dict__.update(said, event=event)
        shown.handle(record)

    return take, stream, shown


def start(take, jobid, rule="write_shard", wildcards=None, reason="Missing output files: a, b", log=()):
    given = {"split": "train", "shard": "00000"} if wildcards is None else wildcards
    said = {"jobid": jobid, "rule_name": rule, "wildcards": given, "reason": reason, "log": list(log)}
    take(LogEvent.JOB_INFO, f"Rule: {rule}", **said)


def test_a_job_has_a_line_when_it_starts_and_one_when_it_ends():
    take, stream, _ = shows()
    take(LogEvent.WORKFLOW_STARTED, "a page about the machine")
    take(None, "Building DAG of jobs...")
    take(LogEvent.RUN_INFO, "Job stats: ...", stats={"write_shard": 3, "total": 3})
    start(take, 7)
    start(take, 8, reason="Updated input files: b.txt, a.txt, c.txt; Params have changed since last execution: {long}")
    take(LogEvent.JOB_FINISHED, "Finished jobid: 7", job_id=7)
    take(LogEvent.PROGRESS, done=1, total=3)
    take(None, "Nothing to be done")
    text = re.sub(r"^\d\d:\d\d:\d\d", "TIME", stream.getvalue(), flags=re.M)
    assert text.splitlines() == [
        "3 jobs to run",
        "TIME  start   write_shard train 00000",
        "TIME  start   write_shard train 00000  reason: Updated input files: a.txt and 2 more; Params have changed "
        "since last execution",
        "TIME  done    write_shard train 00000  0 s  2 left",
        "Nothing to be done",
    ]
    assert "\x1b" not in text and "\r" not in text


def test_a_dry_run_has_a_line_for_each_job_and_one_table():
    take, stream, _ = shows(dryrun=True)
    take(LogEvent.RUN_INFO, "THE TABLE", stats={"total": 1})
    start(take, 7, reason="Missing output files: b, a; Input files updated by another job: c")
    start(take, 8, rule="all", wildcards={}, reason="Input files updated by another job: c")
    take(LogEvent.RUN_INFO, "THE TABLE", stats={"total": 1})
    assert stream.getvalue().splitlines() == [
        "would run  write_shard train 00000  reason: Missing output files: a and 1 more",
        "would run  all  reason: Input files updated by another job",
        "THE TABLE",
    ]


@pytest.mark.parametrize(
    ("written", "aux", "shown"),
    [
        ("noise\nerror: the disk is full\n", {}, []),  # the job has said so on the terminal
        ("noise\nerror: the disk is full\n", {"external_jobid": "12"}, ["error: the disk is full"]),
        ("step 1\nKilled\n", {}, ["step 1", "Killed"]),
        ("Traceback (most recent call last):\nValueError\n", {}, []),
        (None, {}, []),
    ],
)
def test_a_job_that_fails_names_its_log_and_shows_what_was_not_said(tmp_path, written, aux, shown):
    log = tmp_path / "x.log"
    if written:
        log.write_text(written)
    take, stream, _ = shows()
    start(take, 7, log=[str(log)])
    said = {"jobid": 7, "rule_name": "write_shard", "rule_msg": aux and "CANCELLED", "log": [str(log)], "aux": aux}
    take(LogEvent.JOB_ERROR, "Error in rule", logging.ERROR, **said)
    message = "CalledProcessError in file rules/x.smk"
    take(LogEvent.ERROR, message, logging.ERROR, exception="RuleException")  # in the log file only
    _, failed, *rest = stream.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d  FAILED  write_shard train 00000  after 0 s", failed)
    external = ["    message: CANCELLED", *(f"    {name}: {value}" for name, value in aux.items())] if aux else []
    assert rest == [*external, f"    log: {log}", *(f"        {line}" for line in shown)]


@pytest.mark.parametrize(
    ("end", "events", "shown"),
    [
        (
            "died with <Signals.SIGKILL: 9>.",
            ["start"],
            "ended by SIGKILL, as the system does where memory runs out",
        ),
        ("returned non-zero exit status 137.", ["start", "note"], "ended by SIGKILL, as the system does where memory "),
        ("died with <Signals.SIGSEGV: 11>.", ["start", "end", "start"], "ended by SIGSEGV, often a fault in a library"),
        ("returned non-zero exit status 129.", ["start"], "ended by SIGHUP"),
        ("died with <Signals.SIGKILL: 9>.", ["start", "end"], None),  # another job, at the same time
        ("returned non-zero exit status 1.", ["start"], None),
    ],
)
def test_a_job_that_a_signal_has_ended_says_which(tmp_path, end, events, shown):
    log = tmp_path / "x.log"
    (tmp_path / "x.jobs.jsonl").write_text("".join(f'{{"event": "{event}"}}\n' for event in events))
    take, stream, _ = shows()
    start(take, 7, log=[str(log)])
    message = f"CalledProcessError in file rules/x.smk, line 2:\nCommand 'python x.write_shard.py' {end}"
    take(LogEvent.ERROR, message, logging.ERROR, exception="RuleException")
    said = {"jobid": 7, "rule_name": "write_shard", "rule_msg": None, "log": [str(log)], "aux": {}}
    take(LogEvent.JOB_ERROR, "Error in rule", logging.ERROR, **said)
    _, _, *rest = stream.getvalue().splitlines()
    assert rest[-1] == f"    log: {log}" and len(rest) == (2 if shown else 1)
    assert not shown or rest[0].startswith(f"    {shown}") and ("library" in rest[0]) == ("SIGSEGV" in end)


def test_of_two_jobs_each_has_the_signal_that_ended_it(tmp_path):
    take, stream, _ = shows()
    ends = {
        "x": "died with <Signals.SIGABRT: 6>.",
        "y": "returned non-zero exit status 1.",
        "z": "died with <Signals.SIGBUS: 7>.",
    }
    for number, (name, end) in enumerate(ends.items()):
        (tmp_path / f"{name}.jobs.jsonl").write_text('{"event": "start"}\n')
        start(take, number, log=[str(tmp_path / f"{name}.log")])
        message = f"CalledProcessError in file rules/x.smk, line 2:\nCommand 'python x.write_shard.py' {end}"
        take(LogEvent.ERROR, message, logging.ERROR, exception="RuleException")
    for number, name in enumerate(ends):
        said = {"jobid": number, "rule_name": "write_shard", "rule_msg": None, "aux": {}}
        take(LogEvent.JOB_ERROR, "Error in rule", logging.ERROR, log=[str(tmp_path / f"{name}.log")], **said)
    ended = [line.split(",")[0].strip() for line in stream.getvalue().splitlines() if "ended by" in line]
    assert ended == ["ended by SIGABRT", "ended by SIGBUS"]


def test_other_errors_are_shown_in_full():
    take, stream, _ = shows()
    take(LogEvent.ERROR, "MissingInputException in rule x:\nfile y", logging.ERROR, exception="MissingInputException")
    assert stream.getvalue() == "MissingInputException in rule x:\nfile y\n"


def test_a_training_shows_its_progress_in_place(tmp_path, monkeypatch):
    monkeypatch.setattr(terminal, "REFRESH", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    log = tmp_path / "00000750.log"
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(METRICS)}\n" + '{"step": 4')  # as it grows
    take, stream, shown = shows(in_place=True)
    take(LogEvent.RUN_INFO, "THE TABLE", stats={"total": 5})
    start(take, 1, "train_mlm_jax", {"run": "tiny", "step": "00000750"}, log=[str(log)])
    start(take, 2, "train_mlm_jax", {"run": "tiny", "step": "00001500"}, log=[str(log)])  # not its metrics
    assert shown.shown(rows=24) == [
        "2 running, 5 of 5 left",
        "  train_mlm_jax tiny  0 s  415/750  loss 5.9734  31,868 tokens/s  MFU 41.3%  0.7 min left",
        "  train_mlm_jax tiny 00001500  0 s",
    ]
    assert shown.shown(rows=5)[1:] == [shown.shown(rows=24)[1], "  and 1 more"]
    while "2 running" not in stream.getvalue():
        pass
    shown.close()
    written = stream.getvalue()
    assert "start" not in written  # what runs is shown anyway
    assert written.endswith(ERASE) and f"{ERASE}2 running, 5 of 5 left\n" in written and "\x1b[3A\r" in written


@pytest.mark.parametrize(
    ("settings", "environment", "replaced", "in_place"),
    [
        ({}, {}, True, True),
        ({}, {"CI": "true"}, True, False),
        ({}, {"TERM": "dumb"}, True, False),
        ({"dryrun": True}, {}, True, False),
        ({"quiet": {"rules"}}, {}, True, False),
        ({"verbose": True}, {}, False, False),
        ({"debug_dag": True}, {}, False, False),
    ],
)
def test_snakemakes_own_display_is_there_for_who_asks(settings, environment, replaced, in_place, monkeypatch):
    for name in ("CI", IN_PLACE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(IN_PLACE, "")  # so that it is as before afterwards
    monkeypatch.delenv(IN_PLACE)
    for name, value in ({"TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    plain = ColorizingTextHandler(stream=Screen())
    plain.name = DEFAULT
    logger = logging.Logger("of this test")
    logger.addHandler(plain)
    defaults = {"verbose": False, "debug_dag": False, "dryrun": False, "quiet": None}
    replace(SimpleNamespace(logger=logger, settings=SimpleNamespace(**defaults | settings)))
    (handler,) = logger.handlers
    assert isinstance(handler, Terminal) == replaced
    assert (IN_PLACE in terminal.os.environ) == in_place == getattr(handler, "in_place", False)
    handler.close()


def test_durations_and_reasons_in_words():
    assert [lasted(seconds) for seconds in (0.4, 59.4, 60, 185, 7620)] == [
        "0 s", "59 s", "1 min 00 s", "3 min 05 s", "2 h 07 min",
    ]  # fmt: skip
    assert shortened("Forced execution") == ["Forced execution"]


def test_every_rule_says_in_a_line_what_it_is_and_targets_say_so():
    rules = {}
    for path in (ROOT / "Snakefile", *(ROOT / "rules").glob("*.smk")):
        parts = re.split(r"^ *rule (\w+):\n", path.read_text(), flags=re.M)
        rules |= dict(zip(parts[1::2], parts[2::2], strict=True))
    assert {"all", "compare", "track", "train_base"} <= set(rules)
    for name, body in rules.items():
        words = re.match(r' *"""(.+)"""\n', body)
        assert words and words[1].endswith("."), name
        assert words[1].startswith("Target: ") == (not re.search(r"^ +output:", body, re.M)), name


def test_an_unknown_target_is_told_with_those_that_are_like_it():
    rule = SimpleNamespace(
        name="mlm", has_wildcards=lambda: False, products=list, input=["results/mlm/tiny/metrics.json", len]
    )
    said = (
        "MissingRuleException:\nNo rule to produce {} (if you use input functions make sure that they don't raise ...)."
    )
    assert unknown(said.format("mlmm"), [rule]) == "error: no rule of this config makes mlmm; did you mean mlm?"
    assert unknown(said.format("results/mlm/tinny/metrics.json"), [rule]).endswith(
        "mean results/mlm/tiny/metrics.json?"
    )
    assert unknown(said.format("x"), [rule]).endswith("x; `snakemake --list-rules` lists the targets by name.")
    assert unknown("MissingInputException", [rule]) is None
