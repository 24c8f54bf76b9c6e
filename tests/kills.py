"""Kill a workflow at seeded random moments, go on with a plain `snakemake`, compare with an undisturbed run.

    python tests/kills.py --kills 20 --seed 0

Each kill is SIGKILL to the whole process group. Most wait until a trainer is between the first and the last step of
a segment, by its log; one in ten until a file is half-written; the others come at any moment. Ends with exit code
1 unless every artifact has the bytes of the undisturbed run and no finished checkpoint was made again.
"""

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))  # as pytest does

from conftest import Workflow, reduced

# Measured with a clock: the only files that differ from run to run.
TIMED = {"timings.csv", "jobs.json", "report.html"}
TRAINERS = {"mlm": ["logs/mlm/*/[0-9]*.log"], "causal": ["logs/base/*/[0-9]*.log", "logs/finetune/*/[0-9]*.log"]}
# What is asked for where a trainer is to be killed: the other one would be done before, on another machine.
TARGETS = {"mlm": ["mlm"], "causal": ["finetune"]}
# Segments of some seconds, so that a kill can fall between two steps.
SEGMENTS = {
    "mlm": {"steps": 2250, "checkpoint_every": 150},
    "base": {"steps": 4800, "checkpoint_every": 400},
    "finetune": {"steps": 2000, "checkpoint_every": 200},
}


def fingerprints(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every artifact, but those that a clock decides."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in TIMED
    }


def prepare(folder: Path, segments: dict = SEGMENTS) -> Workflow:
    """Return a workflow whose config.yaml is small, with `segments` for its three kinds of runs."""
    workflow = Workflow(folder)
    reduced(workflow, segments)
    (workflow / "small.yaml").rename(workflow / "config.yaml")
    return workflow


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
    import base64

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
    delay = dice.uniform(0.0, 1.5) if kind in TRAINERS else dice.uniform(1.0, 20.0)
    while process.poll() is None:
        if kind in TRAINERS:
            seen |= within_a_segment(workflow, kind, launched)
            ready = len(seen) > skip
        elif kind == "writing":
            ready = any(path.parent.parent.name == "checkpoints" for path in half_written(workflow))
            delay = 0.0
        else:
            ready = True
        if ready:
            time.sleep(delay)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return True
        time.sleep(0.05 if kind in TRAINERS else 0.0005)
    return False


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


def plan(kills: int) -> list[str]:
    """Return the kinds of kills in their order: of 20, 8 in each trainer, 2 while a file is written, 2 at any time."""
    kinds = ["mlm", "causal", "mlm", "causal", "writing", "causal", "mlm", "causal", "mlm", "any"]
    return [kinds[number % len(kinds)] for number in range(kills)]


def main() -> int:
    """Run the comparison in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = prepare(Path(folder) / "undisturbed")
        assert start(undisturbed).wait() == 0, (undisturbed / "snakemake.out").read_text()[-3000:]
        expected = fingerprints(undisturbed / "results")
        killed = prepare(Path(folder) / "killed")
        hits = torment(killed, plan(arguments.kills), arguments.seed)
        found = fingerprints(killed / "results")
    differing = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    print(f"{hits['kills']} kills: {hits['mlm']} within a segment of the masked model, {hits['causal']} of a causal")
    print(f"one, {hits['writing']} while a file was written; {len(expected)} artifacts, {len(differing)} differ")
    print("\n".join(differing))
    return 1 if differing or hits["kills"] < arguments.kills else 0


if __name__ == "__main__":
    sys.exit(main())
