"""What steps.py trains, in which ways, at which size, and the processes that train it."""

import json
import sys
from pathlib import Path
from typing import NamedTuple

from conftest import ROOT, Workflow
from ruamel.yaml import YAML
from worker import Worker

WORKER = ROOT / "benchmarks/step_worker.py"
PUBLISHED, OURS = "published", {"tensorflow": 1.8, "jax": 1.3}  # and their aims
RATE, THREADS = 1e-3, 2


class Size(NamedTuple):
    """What is trained: tokens of a record, records of a batch, and of the steps those of a round and all."""

    model: dict
    vocabulary: int
    length: int
    batch_size: int
    of_round: int
    steps: int


def of(hidden: int, layers: int, length: int) -> dict:
    """Return the model of a size."""
    return {
        "architecture": "roberta", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 4,
        "intermediate_size": 4 * hidden, "max_position_embeddings": length + 4, "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
    }  # fmt: skip


FULL = Size(of(256, 4, 128), 10_048, 128, 8, of_round=40, steps=400)
QUICK = Size(of(16, 1, 32), 400, 32, 4, of_round=2, steps=12)


class Training(Worker):
    """A process that trains in one way when it is told to."""

    def __init__(self, way: str, folder: Path, cache: Path, size: Size, seed: int = 0):
        """Start it; cache  the folder that it keeps compiled programs below."""
        job = {
            "seed": seed, "steps": size.steps, "batch_size": size.batch_size, "model": size.model, "rate": RATE,
            "warmup": size.steps // 10, "weight_decay": 0.01, "threads": THREADS,
        }  # fmt: skip
        self.step = 0
        super().__init__([sys.executable, WORKER, way, folder, json.dumps(job)], cache / f"{way}.log")

    def train(self, steps: int) -> dict:
        """Train so many steps; return the answer."""
        self.step += steps
        return self.ask(f"train {steps}")

    def finish(self, size: Size) -> float:
        """Train what is left of the run; return the held-out loss, and end the process."""
        if size.steps > self.step:
            self.train(size.steps - self.step)
        loss = self.ask("loss")["loss"]
        self.end()
        return loss


def configure(workflow: Workflow, size: Size) -> None:
    """Write config.yaml: records of the source of Python's library, and a run of each backend, of one segment."""
    run = {
        "model": size.model, "steps": size.steps, "checkpoint_every": size.steps, "batch_size": size.batch_size,
        "learning_rate": RATE, "schedule": {"shape": "linear", "warmup_steps": size.steps // 10},
    }  # fmt: skip
    config = {
        "title": "Steps",
        "cpu_threads": THREADS,
        "corpus": {"source": "python-source", "held_out": {"validation": 0.02, "test": 0.02}},
        "tokenizer": {"vocab_size": size.vocabulary},
        "tfrecords": {"sequence_length": size.length, "shards": {"train": 1, "validation": 1, "test": 1}},
        "mlm": {"runs": {backend: run | {"backend": backend} for backend in OURS}},
    }
    if size is QUICK:
        config["corpus"]["max_documents"] = 400
    with open(workflow / "config.yaml", "w") as file:
        YAML(typ="safe", pure=True).dump(config, file)


def prepared(folder: Path, size: Size) -> Path:
    """Return the results of a new workflow in a folder: the records, and their tokenizer."""
    workflow = Workflow(folder)
    configure(workflow, size)
    workflow.as_a_user("results/tfrecords/manifest.json", "--cores", "2")
    return workflow / "results"
