"""Several processes that train as one: started, watched, ended together.

The script of a job starts itself once per process, each with a share of the devices, and waits. What the first
process says is the job's; when any of them fails, the others are ended, and its message is the only one.
"""

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

COUNT, NUMBER, COORDINATOR = "TRAINING_PROCESSES", "TRAINING_PROCESS", "TRAINING_COORDINATOR"


def count() -> int:
    """Return how many processes train together, this one among them."""
    return int(os.environ.get(COUNT, "1"))


def number() -> int:
    """Return which of them this one is, from 0."""
    return int(os.environ.get(NUMBER, "0"))


def several(processes: int, say: Callable[[str], None]) -> bool:
    """Run this script as so many processes; return False where this process is to do the work itself.

    say  forwards what the first process prints, line by line

    Ends the program with exit code 1 when one of them failed, after saying what that one said last.
    """
    if processes == 1 or COUNT in os.environ:
        return False
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    started = [start(processes, index, coordinator) for index in range(processes)]
    try:
        failed = watch(started, say)
    finally:
        for process in started:
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()
    if failed is not None:
        index, words = failed
        say(f"error: process {index} of {processes}: {words}")
        sys.exit(1)
    return True


def start(processes: int, index: int, coordinator: str) -> subprocess.Popen:
    """Start this script once more, as process `index`."""
    place = {COUNT: str(processes), NUMBER: str(index), COORDINATOR: coordinator}
    return subprocess.Popen(
        [sys.executable, sys.argv[0]],
        env=os.environ | place,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def watch(started: list[subprocess.Popen], say: Callable[[str], None]) -> tuple[int, str] | None:
    """Forward what the first process says until all have ended; return number and last words of one that failed."""
    events: queue.Queue = queue.Queue()

    def read(index: int, process: subprocess.Popen) -> None:
        last = None
        for line in process.stderr:
            words = line.split("] ", 1)[-1].strip()
            last = words.removeprefix("error: ") if words.startswith("error: ") else last
            events.put((index, words, None))
        code = process.wait()
        ended = f"it was killed by signal {-code}." if code < 0 else f"it ended with exit code {code}; see its log."
        events.put((index, last or ended, code))

    for index, process in enumerate(started):
        threading.Thread(target=read, args=(index, process), daemon=True).start()
    running = len(started)
    while running:
        index, words, code = events.get()
        if code is None:
            if index == 0 and not words.startswith("error: "):
                say(words)
        elif code:
            return index, words
        else:
            running -= 1
    return None
