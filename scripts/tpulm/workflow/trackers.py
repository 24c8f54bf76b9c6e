"""The process beside Snakemake that passes the metrics of runs on to trackers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tpulm.config.runs import Run
from tpulm.tracking.trackers import absent
from tpulm.workflow.place import Place

LOG = Path("logs") / "trackers.log"
PATIENCE = 60  # seconds that it may take at the end, for what is still to be sent
SAMPLES = {"mlm": "fill_mask.json", "finetune": "generations.json"}


def specification(config: Mapping, runs: Iterable[Run], place: Place, replay: bool) -> dict:
    """Return what tpulm.tracking.follow takes: of the trackers, those that are installed."""
    missing = absent(config["trackers"])
    return {
        "trackers": [name for name in config["trackers"] if name not in missing],
        "replay": replay,
        "runs": [
            {
                "name": f"{run.stage}/{run.name}",
                "folder": place.prefixed(f"logs/{run.stage}/{run.name}"),
                "samples": place.located(f"{run.folder}/{SAMPLES[run.stage]}") if run.stage in SAMPLES else "",
                "config": {key: value for key, value in run.recipe.items() if key != "resources"},
            }
            for run in runs
        ],
    }


class Beside:
    """The process; none where no tracker is asked for, or none is installed."""

    def __init__(self) -> None:
        """Not started yet."""
        self.process: subprocess.Popen | None = None

    def start(self, given: dict) -> None:
        """Start it with a specification. It ends when this process does, however that ends."""
        if not given["trackers"]:
            return
        LOG.parent.mkdir(parents=True, exist_ok=True)
        program = Path(__file__).parents[1] / "tracking" / "follow.py"
        with open(LOG, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | {"PYTHONWARNINGS": "ignore"},
            )  # fmt: skip
        assert self.process.stdin
        self.process.stdin.write(f"{json.dumps(given)}\n".encode())
        self.process.stdin.flush()

    def end(self) -> None:
        """Let it pass on the rest, and wait for that."""
        if self.process and self.process.stdin:
            self.process.stdin.close()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
