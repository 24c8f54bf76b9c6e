"""What runs where a job runs: on a TPU VM, and for jobs without a TPU on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tpulm.core.devices import tpu_here

from tpu_vm.gcloud import ssh_arguments
from tpu_vm.state import try_lock

ENDED = "tpu-vm: the job ended with "  # opens the last line of `work`: tells the end of a job from a lost VM
SNAPSHOT_SECONDS = 30  # between SIGTERM and SIGKILL: as long as a spot VM has


def work(folder: str, *variables: str) -> None:
    """Run a job's script here, with these environment variables; end it when standard input ends.

    The last line printed tells the exit code. A second one for the same job first ends the one before, whose
    connection was lost: gcloud itself repeats a command whose connection breaks.
    """
    lock = take_over(Path(folder).name)
    environment = os.environ | dict(pair.split("=", 1) for pair in variables)
    environment["PATH"] = f"{os.path.dirname(sys.executable)}:{environment.get('PATH', os.defpath)}"
    if tpu_here():
        environment["TPU_NAME"] = "local"  # what TensorFlow finds a TPU by
    process = subprocess.Popen(
        ["sh", os.path.join(folder, "script")], env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip

    def end(*_) -> None:
        for sent, wait in ((signal.SIGTERM, SNAPSHOT_SECONDS), (signal.SIGKILL, 10)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sent)
            time.sleep(wait)

    def end_with_input() -> None:
        while os.read(0, 1024):
            pass
        end()

    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=end, daemon=True).start())
    threading.Thread(target=end_with_input, daemon=True).start()
    code = process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what it may have left behind
    with contextlib.suppress(OSError):
        print(f"{ENDED}{code}", flush=True)
        os.unlink(lock)
    os._exit(min(abs(code), 1))


def take_over(name: str) -> Path:
    """End the process that runs the job of this name on this machine, if there is one; return this one's lock file."""
    path = Path(tempfile.gettempdir()) / f"tpu-vm-{name}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # open, and so locked, for the life of the process
    while not try_lock(descriptor):
        with contextlib.suppress(ValueError, ProcessLookupError):
            os.kill(int(os.pread(descriptor, 20, 0)), signal.SIGTERM)
        time.sleep(0.2)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return path


def launch(worker: str, command: str) -> None:
    """Run a line of sh on a host of the slice that this job has, from worker 0: `launcher` of tpulm.core.processes."""
    node = os.environ.get("TPU_VM")
    line = ["sh", "-c", command] if worker == "0" or not node else ["gcloud", *ssh_arguments(node, worker, command)]
    os.execlp(line[0], *line)
