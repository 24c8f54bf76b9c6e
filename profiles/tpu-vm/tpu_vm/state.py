"""The folder .snakemake/tpu-vm: jobs, log, lock of the supervisor, and what names the folder's resources."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sys
import time
from pathlib import Path

from tpu_vm.settings import setting

STATE = Path(".snakemake") / "tpu-vm"
JOBS = STATE / "jobs"
LOG = STATE / "log"
IDENTITY = STATE / "folder"  # eight digits that tell this folder's resources from others'
LOCK = STATE / "supervisor.lock"  # held by the supervisor; holds the process id of its Snakemake
PROFILE = Path(os.path.abspath(__file__)).parents[1]
PROGRAM = PROFILE / "tpu.py"


def say(text: str) -> None:
    """Tell the user, on the terminal if it is still there, and in the log."""
    with contextlib.suppress(OSError):
        print(f"[tpu-vm] {text}", file=sys.stderr, flush=True)
    with contextlib.suppress(OSError), open(LOG, "a") as log:
        print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=log)


def try_lock(descriptor: int) -> bool:
    """Lock an open file for this process; return whether nobody else has it locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def name_prefix() -> str:
    """Return how the names of this folder's resources begin, whatever machine works in it, and of no other folder's."""
    if not IDENTITY.exists():
        STATE.mkdir(parents=True, exist_ok=True)
        new = STATE / f".folder-{os.getpid()}"
        new.write_text(os.urandom(4).hex())
        with contextlib.suppress(FileExistsError):  # of two processes at once, the first gives the name
            os.link(new, IDENTITY)
        new.unlink()
    return f"{setting('TPU_PREFIX')}-{IDENTITY.read_text()}-"


def new_resource_name(run: str, accelerator: str) -> str:
    """Return a new name for a resource of a run, at most 63 characters; a name is never used twice."""
    words = re.sub("[^a-z0-9]+", "-", run.lower().replace(".runs.", "."))[:19].strip("-")
    return f"{name_prefix()}{words}-{accelerator[:6]}-{os.urandom(3).hex()}"
