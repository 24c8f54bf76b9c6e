"""The history of a segment's steps: a CSV of figures that repeat exactly, and a CSV of timings.

history.csv   step, loss (nats per predicted token), accuracy (share of its predictions that are correct, ties
              included), learning_rate, gradient_norm (of all variables, before any clipping); held_out_loss at some
              steps, with evaluate_every
timings.csv   step, seconds_per_step, tokens_per_second, devices (JSON: how many, by kind), software (names and versions
              of what the process has imported), profile (where a profile ended: JSON, see `History.profiled`)

`Stopwatch` measures what of a segment's time is training, and what the gap between two segments.
"""

import csv
import io
import json
import math
import os
import time
from collections.abc import Callable, Mapping

import numpy as np

from tpulm.core.errors import UserError
from tpulm.core.files import write_text
from tpulm.core.job import shown_in_place
from tpulm.core.job_record import note, software
from tpulm.core.live_metrics import LiveMetrics, line

# Columns with a number in every row of history.csv and of timings.csv.
FIGURES = ("step", "loss", "accuracy", "learning_rate", "gradient_norm")
TIMINGS = ("step", "seconds_per_step", "tokens_per_second")


class History:
    """Collects the figures of each step, prints progress, and stops a run that diverges.

    Steps are counted from 1 here: row `s` is the s-th update.
    """

    def __init__(
        self,
        first: int,
        last: int,
        tokens_per_step: int,
        say: Callable[[str], None],
        seconds_at_peak: float | None = None,
        devices: Mapping[str, int] | None = None,
        tokens_before: int | None = None,
    ):
        """Record steps `first` + 1 to `last`, a segment; `say` takes the progress lines.

        seconds_at_peak  minimum seconds of a step at the peak FLOPs of the devices, for the MFU
        devices          that train, on all hosts: number by kind
        tokens_before    tokens of the steps before the segment, if phases have others
        """
        self.first, self.step, self.last = first, first, last
        self.tokens_before = first * tokens_per_step if tokens_before is None else tokens_before
        self.tokens_per_step, self.say = tokens_per_step, say
        self.seconds_at_peak = seconds_at_peak
        self.devices = json.dumps(dict(devices or {}))
        if devices:
            note(devices=dict(devices))
        self.live: LiveMetrics | None = None  # takes the records that the lines are made of
        self.compiling = True
        self.rows: list[str] = []
        self.timings: list[list] = []
        self.held_out: dict[int, float] = {}
        self.profiles: dict[int, dict] = {}  # summaries of traces by the step of their row in the timings
        self.mark = time.perf_counter()

    def state(self) -> dict:
        """Return the state for `restore`, in JSON types."""
        held_out = list(self.held_out.items())
        profiles = list(self.profiles.items())
        return {
            "step": self.step, "rows": self.rows, "timings": self.timings, "held_out": held_out, "profiles": profiles
        }  # fmt: skip

    def restore(self, state: dict) -> None:
        """Continue the history with this `state`, in the middle of the same segment."""
        self.step, self.rows, self.timings = state["step"], list(state["rows"]), list(state["timings"])
        self.held_out = {step: loss for step, loss in state["held_out"]}
        self.profiles = {step: profile for step, profile in state["profiles"]}

    def restart_clock(self) -> None:
        """Leave out the time since the last call, such as a compilation or an evaluation."""
        self.mark = time.perf_counter()

    def add(
        self, losses: list[float], accuracies: list[float], norms: list[float], learning_rates: list[float]
    ) -> None:
        """Add the figures of the steps since the last call; losses  nats per predicted token, norms  of the gradients.

        Raises UserError for a loss that is not finite.
        """
        seconds = time.perf_counter() - self.mark
        for loss, accuracy, norm, rate in zip(losses, accuracies, norms, learning_rates, strict=True):
            self.step += 1
            if not math.isfinite(loss):
                raise UserError(
                    f"the loss is {loss} at step {self.step}, with learning rate {rate:.6g}: the run diverged; "
                    "the last checkpoint is kept. Lower learning_rate, or set global_clipnorm."
                )
            self.rows.append(f"{self.step},{loss:.9g},{accuracy:.9g},{rate:.9g},{norm:.9g}\n")
        seconds /= len(losses)
        speed = self.tokens_per_step / max(seconds, 1e-9)
        versions = "; ".join(f"{name} {version}" for name, version in software().items())
        self.timings.append([self.step, f"{seconds:.6f}", f"{speed:.1f}", self.devices, versions])
        self.report(
            {
                "step": self.step,
                "last_step": self.last,
                "loss": losses[-1],
                "accuracy": accuracies[-1],
                "learning_rate": learning_rates[-1],
                "gradient_norm": norms[-1] if math.isfinite(norms[-1]) else None,
                "tokens": self.tokens_before + (self.step - self.first) * self.tokens_per_step,
                "tokens_per_second": round(speed, 1),
                "mfu": self.seconds_at_peak and round(self.seconds_at_peak / max(seconds, 1e-9), 4),
                # The first step that this process trains includes the compilation.
                "seconds_left": None if self.compiling else round((self.last - self.step) * seconds, 1),
            }
        )
        self.compiling = False
        self.restart_clock()

    def evaluated(self, figures: dict[str, float], keep: bool) -> None:
        """Report the held-out figures at the current step; with `keep`, also for history.csv."""
        if keep:
            self.held_out[self.step] = figures["loss"]
        self.report({"step": self.step, "held_out": figures})
        self.restart_clock()

    def profiled(self, summary: dict | None) -> None:
        """Keep the summary of a profile that has ended at the current step; None if none has ended.

        steps       the first and the last traced step
        operations  names of the costliest, and their shares of the time of all
        """
        if summary and summary not in self.profiles.values():
            self.profiles[self.step] = summary

    def report(self, record: dict) -> None:
        """Pass on a record of live metrics, and say its line; only to the log if the terminal reads the records."""
        if self.live:
            self.live.write(record)
        if shown_in_place():
            print(line(record), flush=True)
        else:
            self.say(line(record))

    def write(self, history: str, timings: str, held_out: bool = False) -> None:
        """Write both files; with `held_out`, the history has the column held_out_loss."""
        header, rows = f"{','.join(FIGURES)}\n", self.rows
        if held_out:
            header = header.replace("\n", ",held_out_loss\n")
            losses = {str(step): f"{loss:.9g}" for step, loss in self.held_out.items()}
            rows = [f"{row.rstrip()},{losses.get(row.partition(',')[0], '')}\n" for row in rows]
        write_text(history, header + "".join(rows))
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow([*TIMINGS, "devices", "software", "profile"])
        for row in self.timings:
            profile = self.profiles.get(row[0])
            writer.writerow([*row, json.dumps(profile) if profile else ""])
        write_text(timings, table.getvalue())


def held_out_metrics(loss: float, correct: float, count: float) -> dict[str, float]:
    """Return loss and accuracy of a held-out split, from sums over its predictions.

    loss (nats per prediction), accuracy, perplexity (e to the loss), predictions (how many)
    """
    loss, accuracy = float(loss / max(count, 1.0)), float(correct / max(count, 1.0))
    perplexity = math.exp(min(loss, 700.0)) if math.isfinite(loss) else loss
    return {"loss": loss, "accuracy": accuracy, "perplexity": perplexity, "predictions": int(count)}


class FigureReader:
    """Takes the figures of steps as they are dispatched, and reads them from the devices every few seconds.

    Reading waits for the devices, which at every step would leave them idle while Python runs.
    """

    SECONDS = 5.0  # between two lines of progress, about

    def __init__(self, history: History):
        """Read for `history`: the first step alone (it includes the compilation), then by the clock."""
        self.history, self.due = history, 1
        self.figures: list = []
        self.rates: list[float] = []

    def add(self, figures: object, rates: np.ndarray) -> None:
        """Take the figures of one step [3] or several [steps, 3], still on the devices; learning rates [steps].

        figures  loss in nats per predicted token, accuracy, norm of the gradients
        """
        self.figures.append(figures)
        self.rates.extend(rates.tolist())
        if len(self.rates) >= self.due:
            self.finish()

    def finish(self) -> None:
        """Read the figures that wait, and add them to the history."""
        if not self.figures:
            return
        rows = np.concatenate([np.atleast_2d(figures) for figures in self.figures])
        losses, accuracies, norms = rows.astype(float).T.tolist()
        seconds = (time.perf_counter() - self.history.mark) / len(self.rates)
        self.history.add(losses, accuracies, norms, self.rates)
        self.due = 10 if self.due == 1 else max(1, min(1000, round(self.SECONDS / max(seconds, 1e-6))))
        self.figures, self.rates = [], []


def process_age(process: int | str = "self") -> float:
    """Return the seconds since a process, an id or self, was started (Linux); 0.0 if they are unknown."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


class Stopwatch:
    """The seconds that the parts of a job take, such as those of a segment, from the start of its process.

    start       of Python, imports, inputs read, model built
    load        the checkpoint or snapshot
    compile     until the first step is dispatched
    train       the steps, and what is between them
    evaluate    at the end; write  the checkpoint
    """

    def __init__(self) -> None:
        """The first part began with the process."""
        self.seconds: dict[str, float] = {}
        self.mark = time.monotonic() - process_age()

    def end(self, name: str) -> None:
        """End a part of this name; the next one begins."""
        now = time.monotonic()
        self.seconds[name], self.mark = self.seconds.get(name, 0.0) + now - self.mark, now

    def record(self, step: int) -> dict:
        """Return the record of live metrics at the end of the segment."""
        return {"step": step, "seconds": {name: round(seconds, 3) for name, seconds in self.seconds.items()}}
