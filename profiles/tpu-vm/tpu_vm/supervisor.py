"""The process beside Snakemake that runs its jobs, and deletes all TPU slices when it ends."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path

from tpulm.core.errors import UserError

from tpu_vm import gcloud
from tpu_vm.jobs import Job
from tpu_vm.local import LocalJobs
from tpu_vm.slices import Slice
from tpu_vm.state import JOBS, LOCK, PROGRAM, STATE, say, try_lock


def ensure_supervisor(controller: int) -> None:
    """See that this Snakemake has a supervisor; wait for that of an earlier one to end.

    controller  Snakemake's process id
    """
    STATE.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o664)
    told = False
    while not try_lock(descriptor):
        if os.pread(descriptor, 20, 0).decode() == str(controller):
            return
        if not told:
            say("waiting until the TPUs of the previous snakemake are deleted")
        told = True
        time.sleep(0.5)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(controller).encode(), 0)
    shutil.rmtree(JOBS, ignore_errors=True)
    JOBS.mkdir()
    # The lock goes with the descriptor. Not stdout: Snakemake waits until that of `submit` is closed.
    subprocess.Popen(
        [sys.executable, str(PROGRAM), "supervise", str(controller)], stdin=subprocess.DEVNULL, stdout=2,
        pass_fds=[descriptor], start_new_session=True,
    )  # fmt: skip


def supervise(controller: str) -> None:
    """Run the jobs of the Snakemake with this process id until it ends; then delete all."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=wait_for_end, args=(int(controller), stop), daemon=True).start()
    python, refusal = interpreter(int(controller)), None
    try:
        gcloud.delete_all(gcloud.own_resources(stop))
    except UserError as refused:
        refusal = str(refused)
    except gcloud.Stopped:
        return
    local, slices, seen = LocalJobs(python), {}, set()
    try:
        while not stop.wait(0.2):
            for job in new_jobs(seen):
                key = (job.run, job.accelerator)
                if not job.accelerator:
                    local.add(job)
                elif refusal:
                    job.fail(refusal)
                else:
                    if key not in slices:
                        slices[key] = Slice(*key, stop)
                    slices[key].jobs.put(job)
            local.update()
    finally:
        stop.set()
        for place in (local, *slices.values()):
            place.close()
        say_what_is_left(slices.values())


def new_jobs(seen: set[str]) -> list[Job]:
    """Return the jobs that were submitted since the last look, as they came; add their names to `seen`."""
    folders = [folder for folder in JOBS.glob("[!.]*") if folder.name not in seen]
    seen |= {folder.name for folder in folders}
    return [Job(folder) for folder in sorted(folders, key=lambda folder: (folder / "script").stat().st_mtime_ns)]


def say_what_is_left(slices: Collection[Slice]) -> None:
    """Name the resources that could not be deleted, as the last line; or say that there are none."""
    left = [name for used in slices for name in (*used.undeleted, used.name) if name]
    if left:
        names = " and ".join(left)
        say(f"error: {names} may still cost money; to delete them: `python3 profiles/tpu-vm/tpu.py clean`.")
    elif slices:
        say("all TPUs are deleted")


def wait_for_end(process: int, stop: threading.Event) -> None:
    """Set `stop` when a process has ended."""
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(process)], [], [])
    stop.set()


def interpreter(process: int) -> str:
    """Return the Python that Snakemake runs in: local jobs run in the same."""
    with contextlib.suppress(OSError):
        named = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0].decode()
        found = os.path.join(os.readlink(f"/proc/{process}/cwd"), named) if "/" in named else shutil.which(named)
        if found and os.access(found, os.X_OK):
            return found
    return sys.executable
