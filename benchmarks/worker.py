"""A process that a benchmark starts, and that does what it is told to, line by line: both sides of it.

Needs nothing but Python itself: the other side may be in an environment of its own.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


class Ended(RuntimeError):
    """The process has ended; the end of what it said."""


class Worker:
    """A process that answers each line of its standard input by a line of JSON; what else it says goes to a file.

    All ways of a comparison are there from the beginning and work by turns, so that a busy machine slows all of them.
    """

    def __init__(self, command: list, log: Path, environment: dict[str, str] | None = None):
        """Start it, in the folder of its log; environment  what is added to that of this process."""
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a") as file:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, cwd=log.parent,
                env=os.environ | {"HF_HUB_OFFLINE": "1"} | (environment or {}),
            )  # fmt: skip

    def ask(self, command: str) -> dict:
        """Return the answer to a command. Raises Ended where the process has ended."""
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(f"{command}\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise Ended(self.log.read_text()[-3000:])
        return json.loads(answer)

    def end(self) -> None:
        """End the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def serve(make: Callable[[], object]) -> None:
    """Answer each line of the standard input by a line of JSON: what a method of the object that is made returns.

    A line is the name of the method, and its arguments.
    """
    with contextlib.redirect_stdout(sys.stderr):
        made = make()
    for line in sys.stdin:
        command, *arguments = line.split()
        with contextlib.redirect_stdout(sys.stderr):
            answer = getattr(made, command)(*arguments)
        print(json.dumps(answer), flush=True)
