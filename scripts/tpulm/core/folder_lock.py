"""One workflow at a time in a working folder, by a lock that the kernel holds: a killed one leaves no lock behind.

The workflow and each of its jobs share a lock on one file; a workflow starts only when no process holds it. So jobs
that outlive a killed workflow keep the next one out, too, and no file has two writers. A job that a scheduler starts
late, when another workflow has taken over, ends before it touches anything.

On a cluster, the lock is as good as the file system's flock: it works across hosts on NFS 4 and on Lustre (mounted with
flock).
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
START = "WORKFLOW_START"  # in the environment of jobs: which workflow started them
AWAITED = "WORKFLOW_START_AWAITED"  # in the environment of jobs whose workflow has to have called `enter`
LOCK = Path(".snakemake") / "workflow.flock"
held: list[int] = []  # the lock, open for the life of the process; the kernel lets go when it ends


def last_start() -> int:
    """Return when a workflow last started in this folder (ns since 1970); 0 for never, -1 where one is at work now."""
    try:
        with open(LOCK, "rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns if taken(file.fileno(), fcntl.LOCK_EX) else -1
    except OSError:
        return 0


def enter(seen: int) -> None:
    """Take this folder, for a workflow that planned its jobs when `last_start` returned `seen`.

    Raises UserError where another one is at work, or was since then: the plan may repeat what that one did.
    """
    if held:
        return  # by another module of the same workflow
    start = secrets.token_hex(8)
    LOCK.parent.mkdir(exist_ok=True)
    descriptor = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o664)
    held.append(descriptor)
    if not taken(descriptor, fcntl.LOCK_EX):
        raise UserError(refusal(descriptor))
    if os.fstat(descriptor).st_size and os.fstat(descriptor).st_mtime_ns != seen:
        raise UserError("another snakemake has run here since this one started; run the command again.")
    os.ftruncate(descriptor, 0)
    os.environ[START] = start
    words = (os.getpid(), time.strftime("%H:%M:%S"), start, socket.gethostname())
    os.pwrite(descriptor, f"{' '.join(map(str, words))}\n".encode(), 0)
    if not taken(descriptor, fcntl.LOCK_SH):  # so that its jobs can share it
        raise UserError(refusal(descriptor))


def identity() -> str:
    """Return what tells this working folder from others, also when it is moved, and where it is: TOKEN HOST:PATH."""
    if not IDENTITY.is_file():
        IDENTITY.parent.mkdir(exist_ok=True)
        IDENTITY.write_text(secrets.token_hex(8))
    return f"{IDENTITY.read_text()} {socket.gethostname()}:{Path.cwd()}"


def check_entered() -> None:
    """Raise UserError in a job whose workflow took no folder: one that is a module, and was not asked to."""
    if AWAITED in os.environ and START not in os.environ:
        raise UserError(
            "the checks before the first job did not run: remove --no-hooks; if this workflow is a module, add "
            "`onstart: NAME.onstart()` to the Snakefile, where NAME is the name of the module."
        )


def join() -> None:
    """Share the lock of the workflow, as a job does; where there is no file or no lock to be had, go without."""
    if START in os.environ and not held:
        with contextlib.suppress(OSError):
            held.append(os.open(LOCK, os.O_RDONLY))
            taken(held[0], fcntl.LOCK_SH)


def check_start() -> None:
    """Raise UserError in a job whose workflow is gone, when another one has this folder."""
    try:
        if os.environ.get(START, "") in LOCK.read_text():
            return
    except OSError:  # no folder that is shared with the workflow
        return
    raise UserError("the snakemake that queued this job has ended, and another one has run in this folder since.")


def check_writable(results: str) -> None:
    """Raise UserError when no file can be made under `results`: a job would delete its old outputs first."""
    probe = Path(results) / f".writable-{os.getpid()}"
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{results}/ cannot be written: {error.strerror}.") from None


def unwritable(results: str) -> list[str]:
    """Return the sentence of `check_writable` where `results` is there and cannot be written, for a dry run too."""
    try:
        if os.path.isdir(results):
            check_writable(results)
    except UserError as error:
        return [str(error)]
    return []


def taken(descriptor: int, kind: int) -> bool:
    """Return whether a lock could be taken within a second: `last_start` of others holds it for a moment only."""
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
    """Return whether the workflow that entered this folder last still runs, see `alive`; False where none has."""
    try:
        with open(LOCK, "rb") as file:
            return alive(file.fileno())
    except OSError:
        return False


def alive(descriptor: int) -> bool | None:
    """Return whether the workflow that entered last still runs; None where another host would have to tell."""
    process, _, _, host = holder(descriptor)
    if host != socket.gethostname():
        return None
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # one that was killed stays so until its parent asks for it


def refusal(descriptor: int) -> str:
    """Return the sentence for a folder that is taken."""
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
