"""How long a masked model's trainer on JAX takes until it can compile its first step, beside `import jax` alone.

    python benchmarks/setup.py --runs 5

Imports, devices, mesh, model, fresh weights and optimizer of RoBERTa as the embedded job has it: what
scripts/train_mlm_jax.py does before it trains, but for reading the shards.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETUP = """
import sys
sys.path.insert(0, sys.argv[1])
from tpulm.training import runtime
runtime.start(1, 1)
from tpulm.config.reading import read_config
from tpulm.config.training_step import TrainingStep
from tpulm.training.jax_run import build_run
from tpulm.training.jax_trainer import Trainer
recipe = read_config([sys.argv[2]], {"mlm": {"runs": {"tiny": {"backend": "jax"}}}})["mlm"]["runs"]["tiny"]
known = {"sequence_length": 128, "vocabulary": {"size": 2048, "pad": 3}}
Trainer(build_run(TrainingStep.of("mlm", "mlm.runs.tiny", recipe, **known)))
"""


def seconds(code: str) -> float:
    """Return how long a new Python takes for `code`."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, str(ROOT / "scripts"), str(ROOT / "config.yaml")], check=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure both by turns, and print medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    pairs = [
        (seconds(SETUP), seconds("import os; os.environ['JAX_PLATFORMS'] = 'cpu'; import jax; jax.devices()"))
        for _ in range(parser.parse_args().runs)
    ]
    setup, alone = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"setup {setup:.2f} s, jax alone {alone:.2f} s, ratio {setup / alone:.1f}; medians of {len(pairs)} runs")


if __name__ == "__main__":
    main()
