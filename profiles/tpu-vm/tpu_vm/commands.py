"""The commands of tpu.py: those that Snakemake calls, those that the user calls, and those of the program itself."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from pathlib import Path

from tpulm.core.errors import UserError

from tpu_vm import gcloud
from tpu_vm.jobs import request
from tpu_vm.settings import check_python, check_settings, setting
from tpu_vm.state import JOBS, LOCK, STATE, name_prefix, try_lock
from tpu_vm.supervisor import ensure_supervisor, supervise
from tpu_vm.worker import launch, work


def main(arguments: list[str]) -> None:
    """Run one of the commands; a mistake of the user's ends in one sentence and exit code 1."""
    commands = {
        "preflight": preflight,
        "submit": submit,
        "status": status,
        "cancel": cancel,
        "supervise": supervise,
        "work": work,
        "launch": launch,
        "list": list_resources,
        "clean": clean,
    }
    parser = argparse.ArgumentParser(description="Run jobs on Cloud TPU VMs; see README.md of the profile.")
    parser.add_argument("command", choices=commands)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parsed = parser.parse_args(arguments)
    try:
        commands[parsed.command](*parsed.arguments)
    except UserError as error:
        sys.exit(f"error: {error}")


def preflight() -> None:
    """Check settings, and what the jobs ask for that standard input lists: see scripts/tpulm/workflow/checks.py."""
    check_python()
    check_settings()
    for properties in json.load(sys.stdin)["jobs"]:
        request(properties)


def submit(jobscript: str) -> None:
    """Hand a job to the supervisor, started here if there is none; print the job's id."""
    script = Path(jobscript).read_text()
    properties = json.loads(re.search(r"^# properties = (.*)$", script, re.MULTILINE)[1])
    asked = request(properties)
    check_python()
    check_settings()
    ensure_supervisor(os.getppid())
    name = f"{asked['rule']}-{properties['jobid']}-{os.urandom(3).hex()}"
    folder = JOBS / f".{name}"  # hidden from the supervisor until it is complete
    folder.mkdir()
    (folder / "script").write_text(script)
    (folder / "job.json").write_text(json.dumps(asked))
    (folder / "status").write_text("running")
    folder.rename(JOBS / name)
    print(name)


def status(name: str) -> None:
    """Print whether a job is running, or ended with success or failed; as failed, too, without a supervisor."""
    path = JOBS / name / "status"
    found = path.read_text() if path.exists() else "lost"
    with open(LOCK, "a") as lock:
        if found == "running" and try_lock(lock.fileno()):
            found = path.read_text()  # the supervisor may have ended between the two looks
            found = "lost" if found == "running" else found
    if found == "lost":
        print("error: the TPU supervisor is not running; run snakemake again to resume.", file=sys.stderr)
        found = "failed"
    print(found)


def cancel(*names: str) -> None:
    """Ask the supervisor to end these jobs; Snakemake gives this command two seconds."""
    for name in names:
        with contextlib.suppress(OSError):
            (JOBS / name / "cancelled").touch()


def list_resources() -> None:
    """Print name and state of each queued resource of this folder."""
    check_settings(mount=False)
    found = gcloud.own_resources()
    for name, state in found.items():
        print(name, state)
    if not found:
        where = f"{setting('TPU_ZONE')} of {setting('TPU_PROJECT')}"
        print(f"no queued resources whose names begin with {name_prefix()} in {where}", file=sys.stderr)


def clean() -> None:
    """Delete all queued resources of this folder, unless a supervisor is at work here."""
    check_settings(mount=False)
    STATE.mkdir(parents=True, exist_ok=True)
    with open(LOCK, "a") as lock:
        if not try_lock(lock.fileno()):
            raise UserError("a snakemake is using the TPUs of this folder; stop it, and it deletes them.")
        gcloud.delete_all(gcloud.own_resources())
