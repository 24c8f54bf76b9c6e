"""Kill a workflow in its jobs, go on with a plain `snakemake`; beside that, what tests of faults share."""

import base64
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from conftest import Workflow, outside, write_yaml
from forked import Process
from tpulm.config.reading import read_yaml
from tpulm.core import files, ledger

# Measured with a clock: the only files that differ from run to run.
TIMED = {"timings.csv", "jobs.json", "report.html"}


def fingerprints(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every artifact, but those that a clock decides."""
    found = files.fingerprints(folder).items()
    return {name: digest for name, digest in found if Path(name).name not in TIMED and not name.startswith("jobs/")}


@contextlib.contextmanager
def edited(workflow: Workflow, name: str = "config.yaml") -> Iterator[dict]:
    """Yield what config.yaml holds, to be changed; it is written to `name` then."""
    config = read_yaml(workflow / "config.yaml")
    yield config
    write_yaml(workflow / name, json.loads(json.dumps(config)))


def flipped(data: bytes, place: int) -> bytes:
    """Return data with a bit flipped."""
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


def flip(path: Path, share: float = 0.5) -> None:
    """Flip a bit of a file, at a share of its length."""
    data = path.read_bytes()
    path.write_bytes(flipped(data, int(len(data) * share)))


def half_written(workflow: Workflow) -> list[Path]:
    """Return the files that are being written under a temporary name."""
    return list((workflow / "results").rglob(".*.partial"))


def checkpoints(workflow: Workflow) -> dict[str, int]:
    """Return the inode of every state.json that Snakemake knows to be finished."""
    unfinished = {path.name for path in (workflow / ".snakemake/incomplete").glob("*")}
    found = {}
    for path in (workflow / "results").glob("*/*/checkpoints/*/state.json"):
        name = str(path.relative_to(workflow.folder))
        if encoded(name) not in unfinished:
            found[name] = path.stat().st_ino
    return found


def encoded(name: str) -> str:
    """Return the name of Snakemake's mark for an output."""
    return base64.urlsafe_b64encode(name.encode()).decode()


def start(workflow: Workflow, *targets: str) -> subprocess.Popen:
    """Start a plain `snakemake` in a process group of its own."""
    command = [str(Path(sys.executable).with_name("snakemake")), *targets, "--cores", "2"]
    log = open(workflow / "snakemake.out", "ab")  # noqa: SIM115 (the process writes to it)
    return subprocess.Popen(command, cwd=workflow.folder, env=outside(), stdout=log, stderr=log, start_new_session=True)


def attempts(workflow: Workflow) -> dict[str, tuple[str, str, int, bool]]:
    """Return what each job's record says: rule, wildcards, how many attempts, and whether the last one has ended."""
    found = {}
    for path in (workflow / ledger.FOLDER).rglob("*.jsonl"):
        lines = ledger.read_record(path)
        starts = [line for line in lines if line["event"] == "start"]
        if starts:
            rule, wildcards = starts[-1]["rule"], " ".join(starts[-1]["wildcards"].values())
            found[str(path)] = (rule, wildcards, len(starts), lines[-1]["event"] == "end")
    return found


def kill_in_rules(workflow: Workflow, rules: set[str], dice: random.Random) -> tuple[int, list[str]]:
    """Kill a workflow once in a job of each of `rules`, as they come; it goes on after each.

    Returns how many kills hit a job before its end, and such jobs as the next start did not list.
    """
    left, within, forgotten = set(rules), 0, []
    while left:
        before, process, hit = attempts(workflow), start(workflow), None
        alive = True
        while hit is None and alive:
            time.sleep(0.01)
            alive = process.poll() is None
            begun = {found[0] for log, found in attempts(workflow).items() if before.get(log) != found}
            hit = next(iter(sorted(begun & left)), None)
        assert hit, f"no job of {sorted(left)} began: {(workflow / 'snakemake.out').read_text()[-3000:]}"
        time.sleep(dice.uniform(0.0, 0.3))
        if alive:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        left.remove(hit)
        cut = [" ".join([rule, of]).strip() for rule, of, _, ended in attempts(workflow).values() if not ended]
        within += any(job.split()[0] == hit for job in cut)
        # Not the order of the wildcards.
        listed = [sorted(job.split()) for job in re.findall("would run  (.+?)  reason: ", workflow("-n").stdout)]
        forgotten += [job for job in cut if sorted(job.split()) not in listed]
    return within, forgotten


def wait_for(condition: Callable, running: subprocess.Popen | Process | None = None, every: float = 0.1):
    """Wait until something is there, however slow this machine is, and return it; a process that is given must run."""
    while not (found := condition()):
        assert running is None or running.poll() is None, "the process has ended"
        time.sleep(every)
    return found


def processes_in(folder: Path) -> list[int]:
    """Return the processes that work in a folder."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.readlink(f"/proc/{entry}/cwd") == str(folder):
                found.append(int(entry))
        except OSError:
            continue
    return found
