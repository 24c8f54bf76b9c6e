"""Several processes that train as one: started, watched, and stopped together.

The script of a job starts itself once per process, each with a share of the devices, and waits. The output of the first
process is the job's output. If any process fails, the others are ended, and only its message is shown.

They are processes of this machine, unless a profile sets the resource `launcher`: a shell command that runs a command
on another host of the job, in which {number} stands for the host (0 is this one) and {command} for the command as one
word. All hosts must see the working folder.

A request to stop (SIGTERM, of a scheduler or a spot machine that goes, or Ctrl-C) is heard between two turns of a loop:
nothing is broken off amid a turn, and what the loop has can be kept.
"""

import contextlib
import math
import os
import queue
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tpulm.core.accelerators import ANY_DEVICES

GRACE = 5  # seconds
WORD = 1.0  # seconds by which the word of a process that was killed may come after that of one that missed it
STOP_LIMIT = 600  # seconds in which processes that are asked to stop must have said what is kept
COUNT, NUMBER, COORDINATOR = "TRAINING_PROCESSES", "TRAINING_PROCESS", "TRAINING_COORDINATOR"


class Stopped(BaseException):
    """A request to stop was heard. Not an Exception, so that no library takes it for an error of its own.

    Its argument, if it has one, says what is kept.
    """


SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Whether one of SIGNALS came since `defer`; `restore` gives them back their effect.

    name   of the first that came, such as SIGTERM; None before. Later ones are ignored: a scheduler signals a job
           and its parents, which pass the signal on.
    """

    def __init__(self) -> None:
        """Wait for nothing yet."""
        self.name: str | None = None
        self.before: dict[int, Callable | int | None] = {}

    def defer(self) -> None:
        """Only take note of signals from here on; those that this process ignores are still ignored."""
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if number not in self.before and handler is not signal.SIG_IGN:
                self.before[number] = handler
                signal.signal(number, self.hear)

    def hear(self, number: int, frame: Any) -> None:
        """Take note of a signal."""
        self.name = self.name or signal.Signals(number).name

    def restore(self) -> None:
        """Let signals do what they did before `defer`."""
        while self.before:
            number, handler = self.before.popitem()
            signal.signal(number, handler)


def count() -> int:
    """Return how many processes train together, this one among them."""
    return int(os.environ.get(COUNT, "1"))


def number() -> int:
    """Return which of them this one is, from 0."""
    return int(os.environ.get(NUMBER, "0"))


def is_worker() -> bool:
    """Return whether `launch_workers` started this process: then its parent has read and checked the inputs already."""
    return COUNT in os.environ


def launch_workers(resources: Mapping, say: Callable[[str], None]) -> bool:
    """Run this script as many processes, or as one of them; return False where this process is to do the work itself.

    resources  the job's: `hosts`, how many, and `launcher`, how to reach them; without them, one process
    say        forwards what the first process prints, line by line

    Ends the program with exit code 1 when one of them failed, after saying what that one said last.
    """
    processes, launcher = resources.get("hosts", 1), resources.get("launcher")
    if is_worker():
        threading.Thread(target=end_with_parent, daemon=True).start()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent has it, too, and asks all of them to stop
        return False
    if processes == 1:
        return False
    own = address() if launcher else "127.0.0.1"
    request = StopRequest()
    with reserved_port() as port:
        children = [start_process(processes, index, f"{own}:{port}", launcher) for index in range(processes)]
        request.defer()
        try:
            failed = watch(children, say, request)
        finally:
            end_processes(children)
            request.restore()
    if failed is not None:
        index, words = failed
        if request.name and words.startswith(STOPPED):
            raise Stopped(words)
        say(f"error: process {index} of {processes}: {words}")
        sys.exit(1)
    return True


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port of this machine that no other program gets meanwhile; JAX's coordinator shares it, as gRPC does."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("", 0))
        yield reserved.getsockname()[1]


def start_process(processes: int, index: int, coordinator: str, launcher: str | None) -> subprocess.Popen:
    """Start this script once more, as process `index`."""
    place = {COUNT: str(processes), NUMBER: str(index), COORDINATOR: coordinator}
    place |= {ANY_DEVICES: os.environ[ANY_DEVICES]} if ANY_DEVICES in os.environ else {}
    command = [sys.executable, sys.argv[0]]
    if launcher:
        settings = [f"{name}={value}" for name, value in place.items()]
        there = shlex.join(["env", "-C", os.getcwd(), *settings, *command])
        command = ["sh", "-c", launcher.replace("{number}", str(index)).replace("{command}", shlex.quote(there))]
    return subprocess.Popen(
        command,
        env=os.environ | place,
        stdin=subprocess.PIPE,  # see end_with_parent
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def end_processes(children: list[subprocess.Popen]) -> None:
    """End processes, also those that a launcher started on other hosts: what it started loses its input."""
    for process in children:
        with contextlib.suppress(OSError):
            process.terminate()
    limit = time.monotonic() + GRACE
    for process in children:
        try:
            process.wait(timeout=max(0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with contextlib.suppress(OSError):
            if process.stdin:
                process.stdin.close()


def end_with_parent() -> None:
    """Stop this process when its input says so; end it when the input ends: nobody waits for it any more."""
    while os.read(0, 1024):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)  # it leaves nothing half-written where it hears that,
    time.sleep(GRACE)
    os._exit(1)  # and does not hear it while it waits for the others


def address() -> str:
    """Return this machine's address as others of its network see it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # sends nothing
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"


def ask_to_stop(children: list[subprocess.Popen]) -> None:
    """Ask processes, wherever they are, to stop after a step that all of them make, and to keep what they have."""
    for process in children:
        with contextlib.suppress(OSError):
            if process.stdin:
                process.stdin.write("stop\n")
                process.stdin.flush()


def watch(children: list[subprocess.Popen], say: Callable[[str], None], request: StopRequest) -> tuple[int, str] | None:
    """Forward what the first process says until all have ended; return number and last words of one that failed.

    After a `request` to stop they are asked to, and have STOP_LIMIT seconds to say what is kept.
    """
    events: queue.Queue = queue.Queue()

    def read(index: int, process: subprocess.Popen) -> None:
        for line in process.stderr or ():
            words = line.split("] ", 1)[-1].strip()
            if words.startswith(("error: ", STOPPED)):
                # Not when it has ended: first it would wait for the others, and they for it.
                events.put((index, words.removeprefix("error: "), 1))
                return
            events.put((index, words, None))
        code = process.wait()
        ended = f"it was killed by signal {-code}." if code < 0 else f"it ended with exit code {code}; see its log."
        events.put((index, ended, code))

    for index, process in enumerate(children):
        threading.Thread(target=read, args=(index, process), daemon=True).start()
    running, limit = len(children), math.inf
    while running:
        if request.name and limit == math.inf:
            ask_to_stop(children)
            limit = time.monotonic() + STOP_LIMIT
        try:
            index, words, code = events.get(timeout=0.2)
        except queue.Empty:
            if time.monotonic() > limit:
                return 0, f"{STOPPED}{request.name} before the processes answered; {LOST}"
            continue
        if code is None:
            if index == 0:
                say(words)
        elif code:
            return cause(events, index, words) if code > 0 else (index, words)
        else:
            running -= 1
    return None


def cause(events: queue.Queue, index: int, words: str) -> tuple[int, str]:
    """Return number and last words of the process that others failed because of.

    It is the one that has said so, unless word comes of one that was killed, of which the others only miss an answer.
    """
    limit = time.monotonic() + WORD
    with contextlib.suppress(queue.Empty):
        while (left := limit - time.monotonic()) > 0:
            other, ended, code = events.get(timeout=left)
            if code is not None and code < 0:
                return other, ended
    return index, words


STOPPED = "stopped by "  # what a sentence about a stop begins with
LOST = "the next snakemake resumes this job from its last snapshot, or else begins it again."
