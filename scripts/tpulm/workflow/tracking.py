"""Start and end the process that passes the metrics of runs on to trackers."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tpulm.config.outline import Outline, Run
from tpulm.specs.artifacts import resolved
from tpulm.workflow.paths import Paths

SCRIPTS = Path(__file__).parents[2]
PATIENCE = 60  # seconds for the process to send the rest at the end
SAMPLES = {"mlm": "fill_mask.json", "base": "generations.json", "finetune": "generations.json"}


def specification(outline: Outline, place: Paths, replay: bool) -> dict:
    """Return the specification for `tpulm.workflow.trackers.follow`."""

    def samples(run: Run) -> str:
        has_samples = run.stage != "base" or run.name in outline.sampled_bases
        return place.located(f"{run.folder}/{SAMPLES[run.stage]}") if has_samples else ""

    return {
        "trackers": outline.config["trackers"],
        "replay": replay,
        "runs": [
            {
                "name": run.path,
                "folder": place.prefixed(f"<logs>/{run.path}"),
                "samples": samples(run),
                "config": {key: value for key, value in run.recipe.items() if key != "resources"},
            }
            for run in outline.runs.values()
        ],
    }


def start_trackers(spec: dict, place: Paths) -> subprocess.Popen | None:
    """Start the process with a `specification`, and return it; None if that names no tracker.

    It ends when this process does, however that ends.
    """
    if not spec["trackers"]:
        return None
    path = Path(resolved("<logs>/trackers.log"))
    path.parent.mkdir(parents=True, exist_ok=True)
    folders = [str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    with open(path, "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tpulm.workflow.trackers"], stdin=subprocess.PIPE, stdout=log, stderr=log,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)}, start_new_session=True,
        )  # fmt: skip
    assert process.stdin
    process.stdin.write(f"{json.dumps(spec)}\n".encode())
    process.stdin.flush()
    return process


def end_trackers(process: subprocess.Popen) -> None:
    """Let the process send the rest, and wait for its end, or kill it after PATIENCE."""
    try:
        process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
