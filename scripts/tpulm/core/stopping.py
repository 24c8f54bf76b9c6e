"""A request to stop, heard between two turns of a loop: SIGTERM, of a scheduler or a spot machine that goes, or Ctrl-C.

Where a loop waits for it, nothing is broken off amid a turn, and what the loop has can be kept.
"""

import signal
from collections.abc import Callable
from typing import Any

AGAIN = "run again to go on."  # what a sentence about a stop ends with


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
