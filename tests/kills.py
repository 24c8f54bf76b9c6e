"""Kill a workflow at seeded random moments, go on with a plain `snakemake`.

Each kill is SIGKILL to the whole process group. Most wait until a trainer is between the first and the last step of
a segment, by its log; the others until a file is half-written. Beside that, what tests of faults share.
"""

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
from collections.abc import Iterator
from pathlib import Path

from conftest import Workflow, reduced, write_yaml
from tpulm.config.reading import read_yaml
from tpulm.core import files, ledger

# Measured with a clock: the only files that differ from run to run.
TIMED = {"timings.csv", "jobs.json", "report.html"}
TRAINERS = {"mlm": ["logs/mlm/*/[0-9]*.log"], "causal": ["logs/base/*/[0-9]*.log", "logs/finetune/*/[0-9]*.log"]}
# What is asked for where a trainer is to be killed: the other one would be done before, on another machine.
TARGETS = {"mlm": ["mlm"], "causal": ["finetune"]}


def fingerprints(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every artifact, but those that a clock decides."""
    found = files.fingerprints(folder).items()
    return {name: digest for name, digest in found if Path(name).name not in TIMED and not name.startswith("jobs/")}


def prepare(folder: Path, segments: dict) -> Workflow:
    """Return a workflow whose config.yaml is small, with `segments` for its three kinds of runs."""
    workflow = Workflow(folder)
    reduced(workflow, segments)
    (workflow / "small.yaml").rename(workflow / "config.yaml")
    return workflow


@contextlib.contextmanager
def edited(workflow: Workflow, name: str = "config.yaml") -> Iterator[dict]:
    """Yield what config.yaml holds, to be changed; it is written to `name` then."""
    config = read_yaml(workflow / "config.yaml")
    yield config
    write_yaml(workflow / name, json.loads(json.dumps(config)))


def within_a_segment(workflow: Workflow, trainer: str, since: float) -> set[str]:
    """Return the logs, written to after `since`, of segments that have made a step and not yet their last."""
    found = set()
    for pattern in TRAINERS[trainer]:
        for path in workflow.folder.glob(pattern):
            try:
                text = path.read_text() if path.stat().st_mtime >= since else ""
            except FileNotFoundError:  # the next job has just begun
                continue
            if "\nstep " in text and "held-out loss" not in text and "stopped" not in text:
                found.add(str(path.relative_to(workflow.folder)))
    return found


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
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return subprocess.Popen(
        command, cwd=workflow.folder, env=environment, stdout=log, stderr=log, start_new_session=True
    )


def kill_at(workflow: Workflow, process: subprocess.Popen, kind: str, dice: random.Random) -> bool:
    """Kill the process group at a moment of this kind; return False where the workflow ended before."""
    launched, seen, skip = time.time() - 1, set(), dice.choice((0, 0, 1))
    delay = dice.uniform(0.0, 1.5) if kind in TRAINERS else 0.0
    while process.poll() is None:
        if kind in TRAINERS:
            seen |= within_a_segment(workflow, kind, launched)
            ready = len(seen) > skip
        else:
            ready = any(path.parent.parent.name == "checkpoints" for path in half_written(workflow))
        if ready:
            time.sleep(delay)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return True
        time.sleep(0.05 if kind in TRAINERS else 0.0005)
    return False


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


def torment(workflow: Workflow, kinds: list[str], seed: int) -> dict[str, int]:
    """Kill a workflow once for each of `kinds`, then let it finish; return how many kills hit what.

    Raises AssertionError where a finished checkpoint was made again, or the workflow does not go on.
    """
    dice = random.Random(seed)
    hits = {"kills": 0, "mlm": 0, "causal": 0, "writing": 0}
    for kind in kinds:
        finished, since = checkpoints(workflow), time.time() - 1
        killed = kill_at(workflow, start(workflow, *TARGETS.get(kind, [])), kind, dice)
        now = checkpoints(workflow)
        again = [name for name, inode in finished.items() if now.get(name) != inode]
        assert not again, f"made again though finished before the kill: {again}"
        if not killed:
            break
        hits["kills"] += 1
        hits["writing"] += bool(half_written(workflow))
        for trainer in TRAINERS:
            hits[trainer] += bool(within_a_segment(workflow, trainer, since))
        print(f"kill {hits['kills']} ({kind}): {len(now)} checkpoints; so far {hits}", flush=True)
    code = start(workflow).wait()
    assert code == 0, (workflow / "snakemake.out").read_text()[-3000:]
    assert "--unlock" not in (workflow / "snakemake.out").read_text()
    assert not half_written(workflow)
    return hits


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
