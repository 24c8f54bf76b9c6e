"""What does it cost to cut a training into ten segments? Each is a process of its own: it starts, builds and compiles.

    python benchmarks/segments.py [--runs 3]

Trains the embedded masked model and the embedded base model, the same steps as one segment and as ten, several times
in turn, from the same records. Prints the medians, what a segment more costs, and what share of ten minutes that
is: the length of a segment on a machine that is worth booking. The caches of compiled programs are as they are
after a first segment, which is what all but the first segment of a run meet.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from conftest import ROOT, Workflow
from ruamel.yaml import YAML
from tpulm.config.reading import read_yaml

STEPS = 200
TRAINERS = {
    "masked model, TensorFlow": ("results/mlm/tiny", ["mlm", "runs", "tiny"], "results/tfrecords/manifest.json"),
    "base model, JAX": (
        "results/base-training/small",
        ["base", "small"],
        "results/tokens/small/corpus/concat-64/manifest.json",
    ),
}


def configure(workflow: Workflow, keys: list[str], segments: int) -> None:
    """Write config.yaml with a run of STEPS steps in so many segments."""
    config = read_yaml(ROOT / "config.yaml")
    run = config
    for key in keys:
        run = run[key]
    run |= {"steps": STEPS, "checkpoint_every": STEPS // segments, "schedule": {"shape": "constant"}}
    with open(workflow / "config.yaml", "w") as file:
        YAML(typ="safe", pure=True).dump(config, file)


def measure(workflow: Workflow, folder: str, keys: list[str], segments: int) -> float:
    """Return the seconds that `snakemake` takes to train a run from scratch in so many segments."""
    configure(workflow, keys, segments)
    shutil.rmtree(workflow / folder / "checkpoints", ignore_errors=True)
    start = time.perf_counter()
    workflow(f"{folder}/checkpoints/{STEPS:08d}/state.json", "--cores", "1")
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as temporary:
        workflow = Workflow(Path(temporary) / "workflow")
        for name, (folder, keys, data) in TRAINERS.items():
            workflow(data, "--cores", "2")
            measure(workflow, folder, keys, 1)
            times: dict[int, list[float]] = {1: [], 10: []}
            for _ in range(runs):
                for segments, taken in times.items():
                    taken.append(measure(workflow, folder, keys, segments))
            one, ten = (statistics.median(taken) for taken in times.values())
            extra = (ten - one) / 9
            print(
                f"{name}: {STEPS} steps as one segment {one:.1f} s, as ten {ten:.1f} s; a segment more costs "
                f"{extra:.1f} s, {extra / 600:.1%} of ten minutes (medians of {runs})",
                flush=True,
            )


if __name__ == "__main__":
    main()
