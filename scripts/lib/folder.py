"""One workflow at a time in a folder, held by the kernel: a killed workflow leaves no lock behind.

The workflow and each of its jobs share a lock on one file; a workflow starts only when nobody has it. So jobs that
outlive a killed workflow keep the next one out, too, and two writers of one file cannot be.
"""

import fcntl
import os
import time
from collections.abc import Iterable
from pathlib import Path

from lib.errors import UserError

RESULTS = Path("results")
SKEW = 60  # seconds by which the clocks of two machines may differ
LOCK = Path(".snakemake") / "workflow.flock"
held: list[int] = []  # open for the life of the process; the kernel lets go when it ends


def last_start() -> int:
    """Return when a workflow last started here (ns since 1970); 0 for never, -1 where one is at work now."""
    try:
        with open(LOCK, "rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns if taken(file.fileno(), fcntl.LOCK_EX) else -1
    except OSError:
        return 0


def enter(seen: int) -> None:
    """Take the folder for a workflow that planned its jobs when `last_start` returned `seen`.

    Raises UserError where another one is at work, or was since then: the plan may repeat what that one did.
    """
    LOCK.parent.mkdir(exist_ok=True)
    descriptor = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o664)
    held.append(descriptor)
    if not taken(descriptor, fcntl.LOCK_EX):
        raise UserError(refusal(descriptor))
    if os.fstat(descriptor).st_size and os.fstat(descriptor).st_mtime_ns != seen:
        raise UserError("another snakemake worked in this folder since this one looked; type the command again.")
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()} {time.strftime('%H:%M:%S')}".encode(), 0)
    if not taken(descriptor, fcntl.LOCK_SH):  # so that its jobs can share it
        raise UserError(refusal(descriptor))


def join() -> None:
    """Share the folder's lock, as a job does; where there is no file or no lock to be had, go without."""
    try:
        held.append(os.open(LOCK, os.O_RDONLY))
        taken(held[-1], fcntl.LOCK_SH)
    except OSError:
        pass


def check_writable() -> None:
    """Raise UserError when no file can be made under results/: a job would delete its old outputs first."""
    probe = RESULTS / f".writable-{os.getpid()}"
    try:
        RESULTS.mkdir(exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{RESULTS}/ cannot be written: {error.strerror}.") from None


def unwritable() -> list[str]:
    """Return the sentence of `check_writable` where results/ is there and cannot be written, for a dry run too."""
    try:
        if RESULTS.is_dir():
            check_writable()
    except UserError as error:
        return [str(error)]
    return []


def check_clock(sources: Iterable[Path]) -> None:
    """Raise UserError naming a file, of `sources` or under results/, that is dated in the future.

    Snakemake tells by dates what is newer. After a clock was set back it would take changed text for old.
    """
    now = time.time() + SKEW
    for path in (*sources, *RESULTS.rglob("*")):
        dated = os.lstat(path).st_mtime
        if dated > now:
            date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(dated))
            raise UserError(
                f"{path} is dated {date}, in the future: the clock was set back, and dates no longer tell what is "
                "newer. Set the clock right; or touch that file, where it is yours; or take all results as up to date: "
                "snakemake --touch."
            )


def taken(descriptor: int, kind: int) -> bool:
    """Return whether a lock could be taken within a second: `last_start` of others holds it for a moment only."""
    for _ in range(10):
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.1)
    return False


def refusal(descriptor: int) -> str:
    """Return the sentence for a folder that is taken."""
    holder, _, since = os.pread(descriptor, 100, 0).decode().partition(" ")
    if holder.isdigit() and Path(f"/proc/{holder}").exists():
        return (
            f"another snakemake is at work in this folder (process {holder}, since {since}); wait for it, or stop it."
        )
    return (
        "jobs of a snakemake that was killed still run in this folder; wait until they end, or stop them "
        "(they are in the list of: pgrep -af .snakemake/scripts)."
    )
