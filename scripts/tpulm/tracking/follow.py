"""Pass live metrics on to trackers, while runs train or afterwards; what trackers get is a function of these logs.

    python -m tpulm.tracking.follow < SPECIFICATION

Snakemake starts it beside the jobs (tpulm.workflow.trackers), so that nothing that a tracker does, such as waiting for
a network, reaches a trainer. It ends with its standard input. Its messages go to standard error.
"""

import contextlib
import json
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent

from tpulm.tracking.live_metrics import FILE, records
from tpulm.tracking.trackers import TRACKERS, Tracker

SECONDS = 2.0  # between two looks at the logs


class Followed:
    """The log of a run, and the trackers that it goes to.

    The trackers are opened when the log grows. A log that has become another one, as of a run that was trained again,
    begins anew.
    """

    def __init__(self, run: dict, trackers: list[str], say: Callable[[str], None], replay: bool = False):
        """Follow a run, of a specification; with `replay`, as if its whole log were new."""
        self.run, self.names, self.say = run, trackers, say
        self.path = Path(run["folder"]) / FILE
        self.trackers: dict[str, Tracker] = {}
        self.inode, self.size = (0, 0) if replay else self.version()
        self.step = self.offset = 0  # up to which the trackers have the log

    def version(self) -> tuple[int, int]:
        """Return what tells whether the log is another one and whether it has grown: zeros where there is none."""
        with contextlib.suppress(OSError):
            found = os.stat(self.path)
            return found.st_ino, found.st_size
        return 0, 0

    def advance(self) -> None:
        """Pass on what is new."""
        inode, size = self.version()
        if not inode or (inode, size) == (self.inode, self.size):
            return
        if inode != self.inode or size < self.offset:
            self.close()
        self.inode, self.size = inode, size
        if not self.trackers:
            self.open()
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            added = file.read()
        added = added[: added.rfind(b"\n") + 1]
        self.offset += len(added)
        for record in records(added.decode("utf-8", "replace").splitlines()):
            self.step = record["step"]
            values = figures(record)
            if values:
                self.each("scalars", self.step, values)
        self.each("flush")

    def open(self) -> None:
        """Open every tracker anew."""
        for name in self.names:
            with self.reported(name):
                self.trackers[name] = TRACKERS[name](self.run["name"], self.path.parent, self.run["config"])

    def each(self, method: str, *arguments: object) -> None:
        """Call a method of each tracker; one that fails gets no more."""
        for name, tracker in list(self.trackers.items()):
            with self.reported(name):
                getattr(tracker, method)(*arguments)

    @contextlib.contextmanager
    def reported(self, name: str) -> Iterator[None]:
        """Let what a tracker raises end no more than this tracker."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.trackers.pop(name, None)
            self.say(f"{name} takes no more of {self.run['name']}: {type(error).__name__}: {error}")

    def finish(self) -> None:
        """Pass on the rest, and the samples of a model that was trained to its end."""
        self.advance()
        if self.trackers:
            for name, text in samples(Path(self.run["samples"])):
                self.each("text", self.step, name, text)
        self.close()

    def close(self) -> None:
        """Close every tracker."""
        self.each("close")
        self.trackers, self.offset = {}, 0


def figures(record: dict) -> dict[str, float]:
    """Return the figures of a record of live metrics, by the names that trackers group by."""
    if "held_out" in record:
        figures = record["held_out"]
        return {f"held_out/{name}": figures[name] for name in ("loss", "accuracy", "perplexity") if name in figures}
    if "seconds" in record:
        return {f"seconds/{name}": seconds for name, seconds in record["seconds"].items()}
    groups = {"train": ("loss", "accuracy", "learning_rate", "gradient_norm"), "speed": ("tokens_per_second", "mfu")}
    found = {f"{group}/{name}": record.get(name) for group, names in groups.items() for name in names}
    return {name: value for name, value in found.items() if value is not None}


def samples(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text, in Markdown, of the samples of a finished run: generations.json or fill_mask.json."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if isinstance(found, dict):
        for number, row in enumerate(found["prompts"]):
            texts = [f"{kind}:\n\n{indent(text, '    ')}" for kind in ("before", "after") for text in row[kind]]
            yield f"samples/{number}", "\n\n".join([f"prompt: {row['prompt']}", *texts])
    else:
        for number, row in enumerate(found):
            answers = ", ".join(f"{answer['token_str']} ({answer['score']:.3f})" for answer in row["answers"])
            yield f"samples/{number}", f"{row['prompt']}\n\n{answers}"


def follow(specification: dict, ended: Callable[[], bool], say: Callable[[str], None]) -> int:
    """Pass the logs of all runs on until `ended` says so, then what is left; return how many runs were tracked.

    specification  trackers, names of TRACKERS; replay, whether to pass on whole logs; runs, of each name, folder of its
                   live metrics, samples (a file), config
    """
    runs = [Followed(run, specification["trackers"], say, specification["replay"]) for run in specification["runs"]]
    tracked = set()
    while True:
        last = ended()
        for followed in runs:
            followed.advance()
            if followed.trackers:
                tracked.add(followed.run["name"])
        if last:
            break
    for followed in runs:
        followed.finish()
    return len(tracked)


def input_ended() -> bool:
    """Return whether standard input has ended, after waiting for it a while."""
    readable, _, _ = select.select([0], [], [], SECONDS)
    return bool(readable) and not os.read(0, 1)


if __name__ == "__main__":
    given = b""
    while not given.endswith(b"\n"):
        given += os.read(0, 1 << 16) or b"{}\n"
    follow(json.loads(given), input_ended, lambda text: print(text, file=sys.stderr, flush=True))
