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
from lib import keras_jax, roberta
keras_jax.start(1, 1)
from keras.utils import set_random_seed
from lib import sharding
from lib.causal_model import make_optimizer
from lib.config import read_config
from lib.jax_training import Trainer, masked
from lib.roberta_sizes import sizes_of
recipe = read_config([sys.argv[2]], {"mlm": {"runs": {"tiny": {"backend": "jax"}}}})["mlm"]["runs"]["tiny"]
sizes = sizes_of(recipe["model"], "mlm.runs.tiny.model")
distribution = sharding.set_up(roberta.backbone_class(), recipe["mesh"], "mlm.runs.tiny.mesh")
set_random_seed(0)
model = roberta.build(sizes, 2048, 3)
roberta.draw_weights(model, sizes["initializer_range"], 0)
sharding.check(model.variables, distribution)
Trainer(model, make_optimizer(recipe["optimizer"]), distribution, masked, recipe)
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
