"""Trackers of experiments, each a class that takes the figures of one run; none is imported before it is asked for.

TensorBoard's event files are beside the live metrics. Weights & Biases, MLflow and Trackio have settings of their own
in the environment (WANDB_MODE, MLFLOW_TRACKING_URI, TRACKIO_SPACE_ID), where they send what they are given included.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from tpulm.core.errors import UserError

PROJECT = "tpulm"  # where the environment names none
EVENTS = "events.out.tfevents.*"


class Tracker(Protocol):
    """Takes what a run reports."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take figures of a step, by names such as train/loss."""

    def text(self, step: int, name: str, text: str) -> None:
        """Take a text in Markdown."""

    def flush(self) -> None:
        """Pass on what was taken."""

    def close(self) -> None:
        """Pass it on and end."""


class TensorBoard:
    """Event files in the folder of a run's logs; those of earlier are replaced."""

    def __init__(self, name: str, folder: Path, config: Mapping):
        """Begin a file. The package's writer of whole files would import TensorFlow, 0.7 GB, so this one is plain."""
        from tensorboard.summary.writer.record_writer import RecordWriter

        for file in folder.glob(EVENTS):
            file.unlink()
        path = folder / f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}"
        self.writer = RecordWriter(open(path, "wb"))
        self.add(file_version="brain.Event:2")
        self.text(0, "config", as_code(config))

    def add(self, **fields: Any) -> None:
        """Append an event, at the time of now."""
        from tensorboard.compat.proto.event_pb2 import Event

        self.writer.write(Event(wall_time=time.time(), **fields).SerializeToString())

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take figures of a step."""
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        for name, value in values.items():
            self.add(step=step, summary=scalar_pb(name, value))

    def text(self, step: int, name: str, text: str) -> None:
        """Take a text."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        self.add(step=step, summary=text_pb(name, text))

    def flush(self) -> None:
        """Write."""
        self.writer.flush()

    def close(self) -> None:
        """Write and end."""
        self.writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, which goes on where the same config is tracked again."""

    def __init__(self, name: str, folder: Path, config: Mapping):
        """Begin or go on."""
        import wandb

        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self.run = wandb.init(
            project=project, id=identity(name, config), name=name, config=dict(config), dir=str(folder), resume="allow",
            settings=wandb.Settings(silent=True, console="off"),
        )  # fmt: skip
        self.html = wandb.Html

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take figures of a step."""
        self.run.log(dict(values), step=step)

    def text(self, step: int, name: str, text: str) -> None:
        """Take a text."""
        import html

        self.run.log({name: self.html(f"<pre>{html.escape(text)}</pre>")}, step=step)

    def flush(self) -> None:
        """Nothing to do: it sends by itself."""

    def close(self) -> None:
        """Send and end."""
        self.run.finish()


class MLflow:
    """A run of MLflow, in the experiment that MLFLOW_EXPERIMENT_NAME names."""

    def __init__(self, name: str, folder: Path, config: Mapping):
        """Begin a run; one of the same config and name that was tracked before is deleted."""
        from mlflow import MlflowClient

        self.client = MlflowClient()
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self.client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self.client.create_experiment(experiment)
        mark = identity(name, config)
        for run in self.client.search_runs([number], f"tags.tpulm = '{mark}'"):
            self.client.delete_run(run.info.run_id)
        self.run = self.client.create_run(number, run_name=name, tags={"tpulm": mark}).info.run_id
        for key, value in config.items():
            self.client.log_param(self.run, key, json.dumps(value)[:500])

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take figures of a step."""
        for name, value in values.items():
            self.client.log_metric(self.run, name, value, step=step)

    def text(self, step: int, name: str, text: str) -> None:
        """Take a text, as a file."""
        self.client.log_text(self.run, text, f"{name}.md")

    def flush(self) -> None:
        """Nothing to do: it sends by itself."""

    def close(self) -> None:
        """End the run."""
        self.client.set_terminated(self.run)


class Trackio:
    """A run of Trackio."""

    def __init__(self, name: str, folder: Path, config: Mapping):
        """Begin a run; one of this name that was tracked before is deleted."""
        import trackio

        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        self.library, self.name = trackio, name.replace("/", "-")
        with contextlib.suppress(ValueError):  # there is no such project yet
            for run in trackio.Api().runs(project):
                if run.name == self.name:
                    run.delete()
        self.run = trackio.init(project=project, name=self.name, config=dict(config), embed=False)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take figures of a step."""
        self.run.log(dict(values), step=step)

    def text(self, step: int, name: str, text: str) -> None:
        """Take a text."""
        self.run.log({name: self.library.Markdown(text)}, step=step)

    def flush(self) -> None:
        """Nothing to do: it sends by itself."""

    def close(self) -> None:
        """Send and end."""
        self.run.finish()


# By the name of its package, which the config has, too; called with name, folder of the logs and config of a run.
TRACKERS: dict[str, Callable[[str, Path, Mapping], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
    "trackio": Trackio,
}


def absent(names: list[str]) -> list[str]:
    """Return which trackers are not installed here."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def check_installed(names: list[str]) -> None:
    """Raise UserError where a tracker is not installed."""
    for name in absent(names):
        raise UserError(f"trackers names {name}, which is not installed here; to install it: pip install {name}")


def identity(name: str, config: Mapping) -> str:
    """Return what tells a run from others of its name: the same for the same config."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
    return f"{name.replace('/', '-')}-{digest}"


def as_code(config: Mapping) -> str:
    """Return a config as a text in Markdown."""
    return f"```json\n{json.dumps(config, indent=2, sort_keys=True)}\n```"
