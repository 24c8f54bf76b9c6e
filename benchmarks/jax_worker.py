"""Train a run of this workflow on random records, as many steps at a time as it is told to; see tpu.py and gpu.py.

    python benchmarks/jax_worker.py JOB

JOB is a JSON object: stage and recipe of the run, as a plan takes them; threads, devices (virtual ones, where there is
no accelerator). A preset is not loaded: its weights are drawn. Commands come a line each, and each is answered by a
line of JSON:

    about         device (what JAX calls it), devices, process (which of several), tokens of a step, predictions (what
                  its loss is over, at the most), model_flops of a step, attention (its implementation), versions
    train N       seconds of the next N steps; loss of the last; peak_bytes, the most memory that the first device had
                  in use, null where it does not say
    fill SECONDS  steps, how many of them take so long, by the last that were trained; all processes agree
"""

import json
import math
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import numpy as np
from tpulm.specs.recipes import determinism_of
from tpulm.specs.record_arrays import Arrays
from tpulm.specs.training_step import TrainingStep
from tpulm.training import runtime
from tpulm.training.history import History
from worker import serve

RATE = 1e-4


def random_records(arrays: Arrays, vocabulary: int, size: int, step: int, rows: slice) -> dict[str, np.ndarray]:
    """Return rows of a batch of a step: ids drawn from the vocabulary; every position counts.

    Of a masked model the predicted positions are spread evenly.
    """
    generator = np.random.default_rng(step)
    found: dict[str, np.ndarray] = {}
    for name, (shape, dtype) in arrays.items():
        if name in ("tokens", "input_ids", "labels"):
            found[name] = generator.integers(5, vocabulary, (size, *shape), dtype)
        elif name == "positions":
            length = arrays["input_ids"][0][0]
            found[name] = np.broadcast_to(np.linspace(1, length - 2, *shape).astype(dtype), (size, *shape))
        else:
            found[name] = np.ones((size, *shape), dtype)
    return {name: array[rows] for name, array in found.items()}


def draw_on_devices(backbone, seed: int) -> None:
    """Draw weights where they are: billions of them would take minutes on the host."""
    import jax

    for index, variable in enumerate(backbone.trainable_variables):
        if variable.path.rsplit("/", 1)[-1] in ("kernel", "embeddings", "reverse_embeddings"):
            normal = partial(jax.random.normal, shape=variable.shape, dtype=variable.dtype)
            scaled = lambda key, normal=normal: normal(key) * backbone.hidden_dim**-0.5  # noqa: E731
            drawn = jax.jit(scaled, out_shardings=variable.value.sharding)
            variable.assign(drawn(jax.random.fold_in(jax.random.key(seed), index)))


class Training:
    """A run, its values on the devices, and what the commands do with it."""

    def __init__(self, job: dict):
        """Build it; see the top of this file."""
        recipe = job["recipe"]
        runtime.start(job["threads"], job["devices"], recipe["precision"], determinism_of(recipe))
        from tpulm.models import causal
        from tpulm.planning.abstract_run import module_of, without_preset
        from tpulm.training.jax_run import build_run
        from tpulm.training.jax_trainer import MultiProcess, Trainer

        causal.draw_causal_weights = draw_on_devices
        step = TrainingStep.of(job["stage"], "benchmark", recipe)
        step = replace(step, model=without_preset(step.model))
        self.run, self.processes = build_run(step, module_of(step.model)), MultiProcess()
        self.trainer, self.step, self.seconds = Trainer(self.run), 0, math.nan
        vocabulary = step.model.source.vocabulary_size
        self.load = lambda at, rows: random_records(step.record_arrays, vocabulary, step.batch_size, at, rows)

    def about(self) -> dict:
        """Return what is trained, and on what."""
        import jax
        import keras
        from tpulm.models.flops import model_flops_of

        step = self.run.step
        return {
            "device": jax.devices()[0].device_kind,
            "devices": jax.device_count(),
            "process": jax.process_index(),
            "tokens": step.tokens_per_step,
            "predictions": step.predictions_per_record * step.batch_size,
            "model_flops": model_flops_of(self.run),
            "attention": str(self.run.attention),
            "versions": f"jax {jax.__version__}, keras {keras.__version__}",
        }

    def train(self, steps: str) -> dict:
        """Train so many steps."""
        import jax

        first, last = self.step, self.step + int(steps)
        history = History(first, last, 1, lambda line: None)
        began = time.perf_counter()
        self.trainer.train(self.load, first, np.full(last - first, RATE, np.float32), history)
        taken = time.perf_counter() - began
        self.step, self.seconds = last, taken / (last - first)
        memory = jax.local_devices()[0].memory_stats() or {}
        loss = float(history.rows[-1].split(",")[1])
        return {"seconds": taken, "loss": loss, "peak_bytes": memory.get("peak_bytes_in_use")}

    def fill(self, seconds: str) -> dict:
        """Return how many steps take so long."""
        return {"steps": self.processes.first([max(1, round(float(seconds) / self.seconds))])[0]}


if __name__ == "__main__":
    serve(lambda: Training(json.loads(sys.argv[1])))
