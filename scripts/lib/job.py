"""What every script does around its work: a log, progress on the terminal, errors in one sentence."""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator

from lib import folder
from lib.errors import UserError


@contextlib.contextmanager
def job(log: str, label: str) -> Iterator[Callable[[str], None]]:
    """Run a script's work; yield `say(message)`, which reports progress.

    log    file that takes everything the libraries print, and the progress
    label  what the user calls this job, such as "mlm tiny"; opens each line on the terminal

    A `UserError` ends the process with exit code 1 and its sentence; any other error
    leaves its traceback in the log as well as on the terminal.
    """
    folder.join()
    sys.stdout.flush()
    sys.stderr.flush()
    terminal = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="replace")
    # At the level of file descriptors, since XLA and TensorFlow write there and not to sys.stderr.
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)

    def say(message: str) -> None:
        print(message, file=sys.stderr, flush=True)
        print(f"[{label}] {message}", file=terminal)

    try:
        yield say
    except UserError as error:
        say(f"error: {error}")
        sys.exit(1)
    except Exception:
        traceback.print_exc()
        terminal.write(traceback.format_exc())
        sys.exit(1)
