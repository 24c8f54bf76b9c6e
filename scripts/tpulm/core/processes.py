"""Start, watch and stop the processes of a job that train together.

The script of a job starts itself once per process, each with a share of the devices, and waits. The output of the first
process is the job's output. If any process fails, the others are ended, and only its message is shown.

They run on this machine, unless a profile sets the resource `launcher`: a shell command that runs a command on another
host of the job, in which {number} stands for the host (0 is this one) and {command} for the command as one word. All
hosts must see the working folder.

A request to stop (SIGTERM, from a scheduler or a spot machine, or Ctrl-C) takes effect between two turns of a loop, so
that the loop can save its state.
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

GRACE = 5  # seconds between asking a process to end and killing it
WORD = 1.0  # seconds by which the end of a killed process may come after the message of one that missed it
STOP_LIMIT = 600  # seconds after a request to stop in which processes must report what is kept
COUNT, NUMBER, COORDINATOR = "TRAINING_PROCESSES", "TRAINING_PROCESS", "TRAINING_COORDINATOR"


class Stopped(BaseException):
    """A request to stop; not an Exception, so that no library handles it. Its argument, if any, says what is kept."""


SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """The first of SIGNALS since `defer`; `restore` restores their effect.

    name   of the signal, such as SIGTERM; None before. Later signals are ignored: a scheduler signals a job and its
           parents, which pass the signal on.
    """

    def __init__(self) -> None:
        """Start without handling signals."""
        self.name: str | None = None
        self.before: dict[int, Callable | int | None] = {}

    def defer(self) -> None:
        """Only record signals from here on; signals that this process ignores stay ignored."""
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if number not in self.before and handler is not signal.SIG_IGN:
                self.before[number] = handler
                signal.signal(number, self.hear)

    def hear(self, number: int, frame: Any) -> None:
        """Record a signal."""
        self.name = self.name or signal.Signals(number).name

    def restore(self) -> None:
        """Restore the handlers of before `defer`."""
        while self.before:
            number, handler = self.before.popitem()
            signal.signal(number, handler)


def count() -> int:
    """Return how many processes train together, this one among them."""
    return int(os.environ.get(COUNT, "1"))


def number() -> int:
    """Return the index of this process among those that train together, from 0."""
    return int(os.environ.get(NUMBER, "0"))


def is_worker() -> bool:
    """Return whether `launch_workers` started this process; its parent has then checked the inputs."""
    return COUNT in os.environ


def launch_workers(resources: Mapping, say: Callable[[str], None]) -> bool:
    """Run this script as several processes, and return True; return False if this process is to do the work itself.

    resources  of the job: `hosts`, the number of processes, by default 1, and `launcher`, which starts them
    say        reports the lines that the first process prints

    If a process fails, its last message is reported, and the program ends with exit code 1.
    """
    processes, launcher = resources.get("hosts", 1), resources.get("launcher")
    if is_worker():
        threading.Thread(target=end_with_parent, daemon=True).start()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, too, and stops all of them
        return False
    if processes == 1:
        return False
    host = address() if launcher else "127.0.0.1"
    request = StopRequest()
    with reserved_port() as port:
        children = [start_process(processes, index, f"{host}:{port}", launcher) for index in range(processes)]
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
    """Yield a port that is reserved on this machine, but that JAX's coordinator can use, as gRPC shares ports."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("", 0))
        yield reserved.getsockname()[1]


def start_process(processes: int, index: int, coordinator: str, launcher: str | None) -> subprocess.Popen:
    """Start this script as process `index`, and return the process."""
    environment = {COUNT: str(processes), NUMBER: str(index), COORDINATOR: coordinator}
    environment |= {ANY_DEVICES: os.environ[ANY_DEVICES]} if ANY_DEVICES in os.environ else {}
    command = [sys.executable, sys.argv[0]]
    if launcher:
        settings = [f"{name}={value}" for name, value in environment.items()]
        remote_command = shlex.join(["env", "-C", os.getcwd(), *settings, *command])
        command = [
            "sh",
            "-c",
            launcher.replace("{number}", str(index)).replace("{command}", shlex.quote(remote_command)),
        ]
    return subprocess.Popen(
        command,
        env=os.environ | environment,
        stdin=subprocess.PIPE,  # see end_with_parent
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def end_processes(children: list[subprocess.Popen]) -> None:
    """End processes, also those that a launcher started on other hosts, whose input ends."""
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
    """Stop this process when its input requests it; end it when the input ends, as its parent has."""
    while os.read(0, 1024):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)  # so that no half-written file stays
    time.sleep(GRACE)
    os._exit(1)  # while it waits for the others, it does not handle signals


def address() -> str:
    """Return the address of this machine in its network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # sends nothing
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"


def ask_to_stop(children: list[subprocess.Popen]) -> None:
    """Request processes, on any host, to stop after a common step and to save their state."""
    for process in children:
        with contextlib.suppress(OSError):
            if process.stdin:
                process.stdin.write("stop\n")
                process.stdin.flush()


def watch(children: list[subprocess.Popen], say: Callable[[str], None], request: StopRequest) -> tuple[int, str] | None:
    """Report the lines of the first process; return index and last message at the first failure, None if all end well.

    After a `request` to stop, it is passed on, and the processes have STOP_LIMIT seconds to report what is kept: a
    message that begins with STOPPED is returned like a failure.
    """
    events: queue.Queue = queue.Queue()

    def read(index: int, process: subprocess.Popen) -> None:
        for line in process.stderr or ():
            words = line.split("] ", 1)[-1].strip()
            if words.startswith(("error: ", STOPPED)):
                # Its end would come too late: before, it waits for the others, and they for it.
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
    """Return index and last message of the process that made others fail: one that was killed, else `index`."""
    limit = time.monotonic() + WORD
    with contextlib.suppress(queue.Empty):
        while (left := limit - time.monotonic()) > 0:
            killed, ended, code = events.get(timeout=left)
            if code is not None and code < 0:
                return killed, ended
    return index, words


STOPPED = "stopped by "  # the beginning of a message about a stop
LOST = "the next snakemake resumes this job from its last snapshot, or else begins it again."
