"""Train one segment of a masked language model with transformers and TensorFlow.

input.records   tfrecords/manifest.json, next to its shards; a URL, if they are in a bucket
input.init      config.json of the model that the run starts from, for the first segment also its other files; empty for
                a run from scratch
params.recipe   model, masking; microbatches, if there are several; for the rest, the other inputs, outputs and
                resources, see tpulm.training.segment
"""

from tpulm.core.job import job
from tpulm.records.order import epochs_of
from tpulm.records.reader import open_to_train
from tpulm.training.segment import Segment

recipe, run, init = snakemake.params.recipe, snakemake.wildcards.run, snakemake.input.init

with job(snakemake.log[0], f"mlm {run}") as say:
    segment = Segment.of(snakemake, say)
    from tpulm.models.transformers_config import init_config, model_config
    from tpulm.training import tensorflow_runtime as runtime
    from tpulm.training.tensorflow_trainer import Trainer, check_microbatches, train_segment

    train, validation = open_to_train(snakemake.input.records)
    say(epochs_of(recipe, len(train)))
    strategy = runtime.start(recipe["cpu_threads"], recipe["host_device_count"], resources=snakemake.resources)
    key = f"mlm.runs.{run}"
    check_microbatches(key, recipe, strategy.num_replicas_in_sync)
    if init:
        config = init_config(init[0], train.manifest, key)
    else:
        config = model_config(recipe["model"], train.manifest, f"{key}.model")
    trainer = Trainer(strategy, config, recipe, init[1] if init and not segment.previous else None)
    train_segment(trainer, (train, validation), segment)
