"""Allow one workflow at a time in a working folder, by a lock that the kernel releases when a process is killed.

The workflow and each of its jobs share a lock on one file; a workflow starts only if no process holds it. So jobs that
outlive a killed workflow keep the next one out, and no file has two writers. A job that a scheduler starts late, after
another workflow has started, ends before it touches anything.

On a cluster, the lock needs a file system with flock: NFS 4, or Lustre mounted with flock.
"""

import contextlib
import fcntl
import os
import secrets
import socket
import time
from pathlib import Path

from tpulm.core.errors import UserError

IDENTITY = Path(".snakemake") / "folder"
START = "WORKFLOW_START"  # in the environment of jobs: the start of their workflow
AWAITED = "WORKFLOW_START_AWAITED"  # in the environment of jobs whose workflow must have called `enter`
LOCK = Path(".snakemake") / "workflow.flock"
held: list[int] = []  # descriptor of the lock, open as long as the process lives


def last_start() -> int:
    """Return when a workflow last started in this folder (ns since 1970); 0 for never, -1 if one runs now."""
    try:
        with open(LOCK, "rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns if take_lock(file.fileno(), fcntl.LOCK_EX) else -1
    except OSError:
        return 0


def enter(seen: int) -> None:
    """Lock this folder for a workflow that planned its jobs when `last_start` returned `seen`.

    Raises UserError if another workflow is running, or has run since: the plan may repeat its jobs.
    """
    if held:
        return  # another module of the same workflow holds it
    start = secrets.token_hex(8)
    LOCK.parent.mkdir(exist_ok=True)
    descriptor = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o664)
    held.append(descriptor)
    if not take_lock(descriptor, fcntl.LOCK_EX):
        raise UserError(refusal(descriptor))
    if os.fstat(descriptor).st_size and os.fstat(descriptor).st_mtime_ns != seen:
        raise UserError("another snakemake has run here since this one started; run the command again.")
    os.ftruncate(descriptor, 0)
    os.environ[START] = start
    words = (os.getpid(), time.strftime("%H:%M:%S"), start, socket.gethostname())
    os.pwrite(descriptor, f"{' '.join(map(str, words))}\n".encode(), 0)
    if not take_lock(descriptor, fcntl.LOCK_SH):  # its jobs share it
        raise UserError(refusal(descriptor))


def identity() -> str:
    """Return the identity of this working folder: "TOKEN HOST:PATH", whose token stays when the folder is moved."""
    if not IDENTITY.is_file():
        IDENTITY.parent.mkdir(exist_ok=True)
        IDENTITY.write_text(secrets.token_hex(8))
    return f"{IDENTITY.read_text()} {socket.gethostname()}:{Path.cwd()}"


def check_entered() -> None:
    """Raise UserError in a job whose workflow has not called `enter`, such as a module without onstart."""
    if AWAITED in os.environ and START not in os.environ:
        raise UserError(
            "the checks before the first job did not run: remove --no-hooks; if this workflow is a module, add "
            "`onstart: NAME.onstart()` to the Snakefile, where NAME is the name of the module."
        )


def join() -> None:
    """Share the lock of the workflow in a job; go on without one if that is not possible."""
    if START in os.environ and not held:
        with contextlib.suppress(OSError):
            held.append(os.open(LOCK, os.O_RDONLY))
            take_lock(held[0], fcntl.LOCK_SH)


def check_start() -> None:
    """Raise UserError in a job whose workflow has ended, if another one has started in this folder."""
    try:
        if os.environ.get(START, "") in LOCK.read_text():
            return
    except OSError:  # the job does not share a folder with the workflow
        return
    raise UserError("the snakemake that queued this job has ended, and another one has run in this folder since.")


def check_writable(results: str) -> None:
    """Raise UserError if `results` cannot be written: a job would delete its old outputs first."""
    probe = Path(results) / f".writable-{os.getpid()}"
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{results}/ cannot be written: {error.strerror}.") from None


def unwritable(results: str) -> list[str]:
    """Return the message of `check_writable`, if any, as a list; an absent folder is not created."""
    try:
        if os.path.isdir(results):
            check_writable(results)
    except UserError as error:
        return [str(error)]
    return []


def take_lock(descriptor: int, kind: int) -> bool:
    """Take a lock within a second, and return whether that worked: `last_start` of others holds it for a moment."""
    for _ in range(10):
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.1)
    return False


def holder(descriptor: int) -> list[str]:
    """Return process, time, start and host of the workflow that entered last."""
    words = os.pread(descriptor, 300, 0).decode(errors="replace").partition("\n")[0].split()
    return words if len(words) == 4 else ["?", "?", "?", "?"]


def at_work() -> bool | None:
    """Return whether the workflow that entered this folder last still runs, see `alive`; False without one."""
    try:
        with open(LOCK, "rb") as file:
            return alive(file.fileno())
    except OSError:
        return False


def alive(descriptor: int) -> bool | None:
    """Return whether the workflow that entered last still runs; None if it is on another host."""
    process, _, _, host = holder(descriptor)
    if host != socket.gethostname():
        return None
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # a killed process stays a zombie until its parent waits for it


def refusal(descriptor: int) -> str:
    """Return the message for a folder that another workflow has locked."""
    process, since, _, host = holder(descriptor)
    if alive(descriptor):
        return (
            f"another snakemake is running in this folder (process {process}, since {since}); wait for it, or stop it."
        )
    if alive(descriptor) is None:
        return (
            f"another snakemake, or its jobs, are running in this folder (process {process} on {host}, since {since}); "
            "wait for them, or stop them."
        )
    return (
        "jobs of a snakemake that was killed are still running in this folder; run the command again when they have "
        "ended, or stop them: pgrep -af .snakemake/scripts lists those on this machine, squeue those of Slurm."
    )
