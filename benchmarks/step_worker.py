"""Train a small RoBERTa in one of three ways, as many steps at a time as it is told to; see steps.py.

    python benchmarks/step_worker.py WAY FOLDER JOB

WAY is published, tensorflow or jax; FOLDER has the results of a workflow, records and tokenizer; JOB is a JSON object:
seed, steps, batch_size, model, rate, warmup, weight_decay, threads. Commands come a line each, and each is answered by
a line of JSON: `train N`, the seconds of the next N steps; `loss`, the held-out loss, nats per masked token.

`published` is what the published procedure does: `fit` of transformers' model with TensorFlow, the records read by
tf.data and masked by transformers' collator, the optimizer of transformers' `create_optimizer`.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import numpy as np
from tpulm.records.masked_batches import evaluation_batches, training_batch
from tpulm.records.reader import Records
from tpulm.specs.schedule import learning_rates
from tpulm.training.history import History
from worker import serve

MASKING = {"mlm_probability": 0.15, "mask_replace_prob": 0.8, "random_replace_prob": 0.1}
Ways = tuple[Callable[[int, int], Any], Callable[[], float]]  # train the steps from one to another; held-out loss


def recipe_of(job: dict) -> dict:
    """Return the recipe of a run of this workflow that trains as the published procedure does."""
    optimizer = {"weight_decay": job["weight_decay"], "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8}
    return {
        "seed": job["seed"], "batch_size": job["batch_size"], "precision": "float32", "masking": MASKING,
        "model": job["model"], "optimizer": optimizer | {"global_clipnorm": None}, "mesh": [1, 1],
        "microbatches": 1, "steps_per_execution": 1, "remat": False,
        "schedule": {"knots": [[0, 0.0], [job["warmup"], job["rate"]], [job["steps"], 0.0]]},
    }  # fmt: skip


def published(job: dict, folder: Path, train: Records, held_out: Records) -> Ways:
    """Return the published procedure, in one process on the CPUs."""
    from tpulm.models.transformers_config import model_config
    from tpulm.training import tensorflow_runtime as runtime

    tf = runtime.tf
    runtime.start(job["threads"], 1, tpu=False)
    import transformers
    from tpulm.training.tensorflow_trainer import evaluate

    runtime.tf_keras.utils.set_random_seed(job["seed"])
    model = transformers.TFAutoModelForMaskedLM.from_config(model_config(job["model"], train.manifest, "model"))
    arguments = {"num_warmup_steps": job["warmup"], "init_lr": job["rate"], "weight_decay_rate": job["weight_decay"]}
    model.compile(transformers.create_optimizer(num_train_steps=job["steps"], **arguments)[0])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "tokenizer")
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, return_tensors="tf")
    length = train.sequence_length
    features = {name: tf.io.FixedLenFeature([length], tf.int64) for name in ("input_ids", "attention_mask")}

    def masked(batch: dict) -> dict:
        special = tf.reduce_any(batch["input_ids"][..., None] == tf.constant(tokenizer.all_special_ids, tf.int64), -1)
        special |= batch["attention_mask"] == 0
        ids, labels = collator.tf_mask_tokens(batch["input_ids"], len(tokenizer), tokenizer.mask_token_id, special)
        return batch | {"input_ids": ids, "labels": labels}

    files = sorted(str(path) for path in (folder / "tfrecords/train").glob("*.tfrecord"))
    data = tf.data.TFRecordDataset(files).map(lambda one: tf.io.parse_single_example(one, features))
    data = data.shuffle(2**18, seed=job["seed"]).repeat().batch(job["batch_size"], drop_remainder=True).map(masked)
    batches = iter(data.prefetch(tf.data.AUTOTUNE))

    def fit(first: int, last: int) -> None:
        model.fit(batches, steps_per_epoch=last - first, verbose=0)

    return fit, lambda: evaluate(model, held_out)["loss"]


def with_tensorflow(job: dict, folder: Path, train: Records, held_out: Records) -> Ways:
    """Return what `backend: tensorflow` does."""
    from tpulm.models.transformers_config import model_config
    from tpulm.training import tensorflow_runtime as runtime

    strategy = runtime.start(job["threads"], 1, tpu=False)
    from tpulm.training.tensorflow_trainer import Trainer, evaluate

    recipe = recipe_of(job)
    trainer = Trainer(strategy, model_config(recipe["model"], train.manifest, "model"), recipe)

    def run(first: int, last: int) -> None:
        rates, load = learning_rates(recipe["schedule"], first, last), partial(training_batch, train, recipe)
        trainer.train(load, recipe["batch_size"], first, rates, History(first, last, 1, lambda line: None))

    return run, lambda: evaluate(trainer.model, held_out)["loss"]


def with_jax(job: dict, folder: Path, train: Records, held_out: Records) -> Ways:
    """Return what `backend: jax` does."""
    from tpulm.specs.training_step import TrainingStep
    from tpulm.training import runtime

    recipe, manifest = recipe_of(job), train.manifest
    vocabulary = {"size": manifest["vocab_size"], "pad": manifest["special_ids"]["pad"]}
    known = {"sequence_length": train.sequence_length, "packing": manifest["packing"], "vocabulary": vocabulary}
    runtime.start(job["threads"], 1, recipe["precision"])
    from tpulm.models import masked_models
    from tpulm.training.jax_run import build_run
    from tpulm.training.jax_trainer import Trainer

    trainer = Trainer(build_run(TrainingStep.of("mlm", "mlm.runs.x", recipe, **known), masked_models))

    def run(first: int, last: int) -> None:
        rates, load = learning_rates(recipe["schedule"], first, last), partial(training_batch, train, recipe)
        trainer.train(load, first, rates, History(first, last, 1, lambda line: None))

    return run, lambda: trainer.evaluate(evaluation_batches(held_out))["loss"]


WAYS = {"published": published, "tensorflow": with_tensorflow, "jax": with_jax}


class Training:
    """A model that one of the ways trains, and what the commands do with it."""

    def __init__(self, way: str, folder: Path, job: dict):
        """Build it; see the top of this file."""
        manifest = folder / "tfrecords/manifest.json"
        self.run, self.evaluate = WAYS[way](job, folder, Records(manifest, "train"), Records(manifest, "validation"))
        self.step = 0

    def train(self, steps: str) -> dict:
        """Train so many steps."""
        first, self.step = self.step, self.step + int(steps)
        began = time.perf_counter()
        self.run(first, self.step)
        return {"seconds": time.perf_counter() - began}

    def loss(self) -> dict:
        """Return the held-out loss."""
        return {"loss": float(np.asarray(self.evaluate()))}


if __name__ == "__main__":
    serve(lambda: Training(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])))
