"""Live metrics of a run: a log of JSON objects, one a line, that grows while it trains.

The file is logs/.../RUN/metrics.jsonl. It is no output, which Snakemake would delete when a job fails. The terminal
shows the same records as progress; trackers and pages can read the file as it grows.

Every few seconds    step, last_step (of the segment), loss (nats per predicted token), accuracy, learning_rate,
                     gradient_norm (of all variables, before any clipping; null where it is not finite), tokens (read
                     since the first step of the run), tokens_per_second, mfu (null where it is not known), seconds_left
                     (until the segment's last step; null of the first record, whose step includes the compilation)
At an evaluation     step, held_out (loss, accuracy, perplexity, predictions)
At a segment's end   step, seconds (of its parts, see tpulm.training.history)
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from tpulm.core import job_record
from tpulm.core.files import write_text

FILE = "metrics.jsonl"
# Parts of a segment's time without training.
GAP = ("start", "load", "compile", "write")


class LiveMetrics:
    """The log of a run. Errors of writing are ignored: they must not end a training."""

    def __init__(self, log: str, step: int):
        """Continue after `step`, without the records of later steps; log  of the job, in whose folder the file is."""
        self.path = Path(log).with_name(FILE)
        records = list(read_metrics(self.path))
        earlier = [record for record in records if record["step"] <= step]
        if len(earlier) < len(records) and job_record.attempts() > 1:  # otherwise a changed config trains them again
            job_record.note(repeated_steps=max(record["step"] for record in records) - step)
        with contextlib.suppress(OSError):
            write_text(self.path, "".join(f"{json.dumps(record)}\n" for record in earlier))

    def write(self, record: dict) -> None:
        """Append a record in one write. A record with NaN, which JSON lacks, is left out."""
        with contextlib.suppress(OSError, ValueError):
            text = f"{json.dumps(record, allow_nan=False)}\n".encode()
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                os.write(descriptor, text)
            finally:
                os.close(descriptor)


def read_metrics(path: Path) -> Iterator[dict]:
    """Yield the records of a log; none if it cannot be read."""
    try:
        yield from parse_metrics(path.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return


def parse_metrics(lines: Iterable[str]) -> Iterator[dict]:
    """Yield the records of lines; a line that a crash cut short is left out."""
    for text in lines:
        with contextlib.suppress(ValueError):
            record = json.loads(text)
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                yield record


def line(record: dict) -> str:
    """Return a record as a line of progress for the terminal."""
    if "seconds" in record:
        return seconds_line(record)
    if "held_out" in record:
        held_out = record["held_out"]
        accuracy = f", accuracy {held_out['accuracy']:.3f}" if "accuracy" in held_out else ""
        return f"step {record['step']}  held-out loss {held_out['loss']:.4f}{accuracy}"
    left = record["seconds_left"]
    time_left = "with the compilation" if left is None else f"{left / 60:.1f} min left"
    mfu = f"  MFU {record['mfu']:.1%}" if record["mfu"] is not None else ""
    return (
        f"step {record['step']}/{record['last_step']}  {time_left}  loss {record['loss']:.4f}  "
        f"accuracy {record['accuracy']:.3f}  learning rate {record['learning_rate']:.3g}  "
        f"{record['tokens_per_second']:,.0f} tokens/s{mfu}"
    )


def seconds_line(record: dict) -> str:
    """Return the record at a segment's end as a line for the terminal."""
    seconds = record["seconds"]
    gap, total = sum(seconds.get(name, 0.0) for name in GAP), sum(seconds.values())
    parts = ", ".join(f"{name} {seconds[name]:.1f} s" for name in GAP if name in seconds)
    return f"step {record['step']}  {gap / max(total, 1e-9):.1%} of {total:.1f} s was not spent on training: {parts}"


def latest(path: Path) -> dict | None:
    """Return the last record of a training step in a log that may grow; None without one."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    return next((record for record in parse_metrics(reversed(lines)) if "last_step" in record), None)
