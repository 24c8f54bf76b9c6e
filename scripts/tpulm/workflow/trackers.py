"""Pass the metrics of runs on to trackers of experiments, while the runs train or afterwards.

TensorBoard's event files are next to the live metrics. Weights & Biases has settings of its own in the environment,
such as WANDB_MODE, which also say where it sends the metrics.

    python -m tpulm.workflow.trackers < SPECIFICATION

Snakemake starts this process in addition to the jobs (tpulm.workflow.tracking), so that a tracker that waits for a
network does not delay a trainer. It ends with its standard input. Its messages go to standard error.
"""

import contextlib
import hashlib
import html
import importlib.util
import json
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

from tpulm.core.errors import UserError
from tpulm.core.live_metrics import FILE, parse_metrics

EVENTS = "events.out.tfevents.*"


class TensorBoard:
    """Event files in the folder of a run's logs, which replace earlier ones."""

    def __init__(self, name: str, folder: Path, config: Mapping):
        """Begin a file."""
        # The package's writer of whole files would import TensorFlow, 0.7 GB.
        from tensorboard.summary.writer.record_writer import RecordWriter

        for file in folder.glob(EVENTS):
            file.unlink()
        path = folder / f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}"
        self.writer = RecordWriter(open(path, "wb"))
        self.add(file_version="brain.Event:2")
        self.text(0, "config", f"```json\n{json.dumps(config, indent=2, sort_keys=True)}\n```")

    def add(self, **fields: Any) -> None:
        """Append an event with the current time."""
        from tensorboard.compat.proto.event_pb2 import Event

        self.writer.write(Event(wall_time=time.time(), **fields).SerializeToString())

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write the figures of a step, by names such as train/loss, so that TensorBoard can read them at once."""
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        for name, value in values.items():
            self.add(step=step, summary=scalar_pb(name, value))
        self.writer.flush()

    def text(self, step: int, name: str, text: str) -> None:
        """Write a text in Markdown."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        self.add(step=step, summary=text_pb(name, text))

    def close(self) -> None:
        """Close the file."""
        self.writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, which is continued if the same config is tracked again."""

    def __init__(self, name: str, folder: Path, config: Mapping):
        """Begin or continue the run."""
        import wandb

        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "tpulm"), id=identity(name, config), name=name, config=dict(config),
            dir=str(folder), resume="allow", settings=wandb.Settings(silent=True, console="off"),
        )  # fmt: skip
        self.html = wandb.Html

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log the figures of a step, by names such as train/loss."""
        self.run.log(dict(values), step=step)

    def text(self, step: int, name: str, text: str) -> None:
        """Write a text in Markdown."""
        self.run.log({name: self.html(f"<pre>{html.escape(text)}</pre>")}, step=step)

    def close(self) -> None:
        """Send the rest and end the run."""
        self.run.finish()


# Trackers by the name of their package, as in the config; called with name, folder of the logs and config of a run.
TRACKERS = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def absent(names: list[str]) -> list[str]:
    """Return the names of trackers that are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def check_installed(names: list[str]) -> None:
    """Raise UserError for a tracker that is not installed."""
    for name in absent(names):
        raise UserError(f"trackers names {name}, which is not installed here; to install it: pip install {name}")


def identity(name: str, config: Mapping) -> str:
    """Return the id of a run, by its name and the hash of its config."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
    return f"{name.replace('/', '-')}-{digest}"


SECONDS = 2.0  # between two looks at the logs


class Followed:
    """The log of a run, and the trackers that get its metrics.

    The trackers are opened when the log grows, and anew for a new log, as of a run that was trained again.
    """

    def __init__(self, run: dict, trackers: list[str], say: Callable[[str], None], replay: bool = False):
        """Follow a run of a specification; with `replay`, also what its log has already."""
        self.run, self.names, self.say = run, trackers, say
        self.path = Path(run["folder"]) / FILE
        self.trackers: dict[str, object] = {}
        self.inode, self.size = (0, 0) if replay else self.version()
        self.step = self.offset = 0  # step and byte that the trackers have reached in the log

    def version(self) -> tuple[int, int]:
        """Return inode and size of the log, zeros without one."""
        with contextlib.suppress(OSError):
            status = os.stat(self.path)
            return status.st_ino, status.st_size
        return 0, 0

    def advance(self) -> None:
        """Pass new metrics on."""
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
        for record in parse_metrics(added.decode("utf-8", "replace").splitlines()):
            self.step = record["step"]
            values = figures(record)
            if values:
                self.each("scalars", self.step, values)

    def open(self) -> None:
        """Open every tracker anew."""
        for name in self.names:
            with self.reported(name):
                self.trackers[name] = TRACKERS[name](self.run["name"], self.path.parent, self.run["config"])

    def each(self, method: str, *arguments: object) -> None:
        """Call a method of each tracker; drop one that fails."""
        for name, tracker in list(self.trackers.items()):
            with self.reported(name):
                getattr(tracker, method)(*arguments)

    @contextlib.contextmanager
    def reported(self, name: str) -> Iterator[None]:
        """Drop the tracker `name`, and say so, if it raises within the context."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.trackers.pop(name, None)
            self.say(f"{name} stopped tracking {self.run['name']}: {type(error).__name__}: {error}")

    def finish(self) -> None:
        """Pass on the rest of the metrics, and the samples of a finished run."""
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
    """Return the figures of a record of live metrics, by names with a group such as train/."""
    if "held_out" in record:
        found = record["held_out"]
        return {f"held_out/{name}": found[name] for name in ("loss", "accuracy", "perplexity") if name in found}
    if "seconds" in record:
        return {f"seconds/{name}": seconds for name, seconds in record["seconds"].items()}
    groups = {"train": ("loss", "accuracy", "learning_rate", "gradient_norm"), "speed": ("tokens_per_second", "mfu")}
    values = {f"{group}/{name}": record.get(name) for group, names in groups.items() for name in names}
    return {name: value for name, value in values.items() if value is not None}


def samples(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text, in Markdown, of the samples of a finished run: generations.json or fill_mask.json."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if isinstance(content, dict):
        for number, row in enumerate(content["prompts"]):
            kinds = [kind for kind in ("before", "after", "continuations") if kind in row]
            texts = [f"{kind}:\n\n{indent(text, '    ')}" for kind in kinds for text in row[kind]]
            yield f"samples/{number}", "\n\n".join([f"prompt: {row['prompt']}", *texts])
    else:
        for number, row in enumerate(content):
            answers = ", ".join(f"{answer['token_str']} ({answer['score']:.3f})" for answer in row["answers"])
            yield f"samples/{number}", f"{row['prompt']}\n\n{answers}"


def follow(specification: dict, ended: Callable[[], bool], say: Callable[[str], None]) -> int:
    """Pass on the logs of all runs until `ended` returns True, then the rest; return the number of tracked runs.

    specification  trackers (names of TRACKERS), replay (whether to pass on whole logs), runs (each with name, folder of
                   the live metrics, path of samples, config)
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
    """Return whether standard input has ended, after waiting for SECONDS at most."""
    readable, _, _ = select.select([0], [], [], SECONDS)
    return bool(readable) and not os.read(0, 1)


if __name__ == "__main__":
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(0, 1 << 16) or b"{}\n"
    follow(json.loads(line), input_ended, lambda text: print(text, file=sys.stderr, flush=True))
