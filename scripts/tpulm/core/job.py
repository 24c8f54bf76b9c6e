"""The frame of every script: a log, progress on the terminal, errors in one sentence."""

import contextlib
import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator

from tpulm.core import folder_lock
from tpulm.core.errors import UserError, causes, first_line, one_line
from tpulm.core.job_record import recorded
from tpulm.core.processes import LOST, STOPPED, Stopped, count, number
from tpulm.core.secrets import redact_file, redacted

# Faults of the machine, and not of the program.
FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOMEM, errno.EIO, errno.EMFILE}
# Messages of libraries in Rust and C++, such as safetensors, without an errno. Services say "Permission denied", too.
FAULT_TEXTS = [os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EIO)]

# Messages of JAX and TensorFlow when the memory of a device or of this machine is too small; and a remedy.
EXHAUSTED = re.compile(r"RESOURCE_EXHAUSTED|ResourceExhausted|OOM when allocating|OUT_OF_MEMORY|STATUS_ALLOC_FAILED")
QUOTA = re.compile(r"\bquota\b|\b429\b", re.IGNORECASE)  # messages of services, which use the same words
MEMORY = "training needs less with a smaller batch_size, with more microbatches and, on JAX, with remat"

heard: list[str] = []  # names of the signals to stop that this process got
# Environment variable of scripts that tools/debug.py runs: output stays on the terminal, and errors are raised.
TERMINAL = "TPULM_TERMINAL"
# Environment variable that is set if tpulm.workflow.terminal shows running jobs in place; ERASE clears that line.
IN_PLACE, ERASE = "TPULM_IN_PLACE", "\r\x1b[J"


def shown_in_place() -> bool:
    """Return whether the workflow's terminal shows the progress of this job's training."""
    return IN_PLACE in os.environ


@contextlib.contextmanager
def job(log: str, label: str) -> Iterator[Callable[[str], None]]:
    """Run a script's work; yield `say(message)`, which reports progress.

    log    file for all output of libraries and the progress; further training processes have their own next to it
    label  name of the job for the user, such as "mlm tiny", at the beginning of each line on the terminal; may be ""

    A `UserError`, a fault of the machine such as a full disk, SIGTERM and Ctrl-C end the process with exit code 1 and
    one sentence; any other error leaves its traceback in the log and on the terminal.
    """
    if number():
        log = f"{log.removesuffix('.log')}.process{number()}.log"
    debugged = TERMINAL in os.environ
    if not debugged:
        folder_lock.join()
    signal.signal(signal.SIGTERM, stop)
    if not debugged and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGALRM, stop)
    sys.unraisablehook = stop_again
    sys.stdout.flush()
    sys.stderr.flush()
    terminal = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="replace")
    if not terminal.isatty():  # for example on another machine that got the environment
        os.environ.pop(IN_PLACE, None)
    erase = ERASE if shown_in_place() else ""
    # XLA and TensorFlow write to the file descriptors, not to sys.stderr.
    with contextlib.suppress(OSError):  # a log that cannot be written must not hide other errors
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        if not debugged:
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
        os.close(descriptor)

    def say(message: str) -> None:
        message = "\\n".join(redacted(message).splitlines())  # a message is a line, whatever text it quotes
        if not debugged:
            with contextlib.suppress(OSError):
                print(message, file=sys.stderr, flush=True)
        print(f"{erase}{label and f'[{label}] '}{message}", file=terminal)

    left = False
    try:
        if not debugged:
            folder_lock.check_entered()
        with contextlib.nullcontext() if debugged else recorded(log, say):
            yield say
    except UserError as error:
        say(f"error: {error}")
        if debugged:
            raise
        sys.exit(1)
    except Stopped as stopped:
        say(str(stopped) or f"{STOPPED}{heard[0]}; {LOST}")
        left = True
        sys.exit(1)
    except Exception as error:
        if debugged:
            raise
        with contextlib.suppress(OSError):
            traceback.print_exc()
        fault = fault_of_machine(error)
        if fault:
            say(f"error: {fault}; the work of this job is lost: fix this and run again.")
        elif memory := memory_error(error):
            say(f"error: memory ran out: {memory}; {MEMORY}.")
        else:
            terminal.write(f"{erase}{redacted(traceback.format_exc())}")
            if count() > 1:  # this process would wait for the others before it ends, and they for it
                say(f"error: {type(error).__name__}: {one_line(error)}; see its log.")
        sys.exit(1)
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
            redact_file(log)
        if left and not debugged:
            os._exit(1)  # threads of XLA that still compile would crash while Python ends


def stop(signum: int, frame: object) -> None:
    """Handle SIGTERM and Ctrl-C: raise Stopped, so that every `with` and `finally` removes half-written files."""
    if signum != signal.SIGALRM:
        heard.append(signal.Signals(signum).name)
    raise Stopped


def stop_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Raise Stopped again a moment later if a finalizer or callback raised it: Python drops their exceptions."""
    if isinstance(unraisable.exc_value, Stopped):
        signal.setitimer(signal.ITIMER_REAL, 0.01)  # seconds
    else:
        sys.__unraisablehook__(unraisable)


def fault_of_machine(error: BaseException | None) -> str | None:
    """Return a fault of the machine in words, such as "No space left on device: results/x"; None for another error.

    The causes of the error are searched, too.
    """
    for cause in causes(error):
        if isinstance(cause, OSError) and cause.errno in FAULTS:
            name = cause.filename if isinstance(cause.filename, str) else None
            return f"{os.strerror(cause.errno)}{f': {os.path.relpath(name)}' if name else ''}"
        if text := next((words for words in FAULT_TEXTS if words in str(cause)), None):
            return f"{text}: {first_line(cause)}"
    return None


def memory_error(error: BaseException | None) -> str | None:
    """Return the line of a message that says that memory ran out; None for another error.

    The causes of the error are searched, too.
    """
    while error:
        name, lines = type(error).__name__, str(error).strip().splitlines()
        exhausted = isinstance(error, MemoryError) or EXHAUSTED.search(f"{name} {error}")
        if exhausted and not QUOTA.search(str(error)):
            line = next((line for line in lines if EXHAUSTED.search(line)), lines[0] if lines else name)
            return one_line(line)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None
