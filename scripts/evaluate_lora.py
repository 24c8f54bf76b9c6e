"""Measure a tuned model against its base, and write how its variables lie on the devices.

input.base                           preset folder
input.best                           the best checkpoint's tuned variables
input.validation, .test, .corpus     tokens of the tuning text's held-out splits and of the corpus' validation split
output.evaluation                    JSON: before and after, on each text, loss (nats per token), accuracy, perplexity,
                                     predictions; parameters
output.partitioning                  JSON: mesh, and for each variable shape, layout, bytes on a device
params.recipe                        sequence_length, batch_size, accumulate, method, rank, seed, precision, mesh,
                                     cpu_threads, cpu_devices
"""

from lib import keras_jax
from lib.arrays import load_arrays
from lib.causal_data import OnePerRecord, Packed, held_out_batches
from lib.causal_tokens import load_tokenizer
from lib.files import write_json
from lib.job import job

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"lora {run}") as say:
    keras_jax.start(recipe["cpu_threads"], recipe["cpu_devices"], recipe["precision"])
    from lib import sharding
    from lib.causal_model import assign, count
    from lib.jax_training import Evaluator, causal
    from lib.tuning import open_run

    special = load_tokenizer(snakemake.input.base, lambda: None).special
    length = recipe["sequence_length"]
    texts = {
        "tuning_validation": OnePerRecord(snakemake.input.validation, length, special),
        "tuning_test": OnePerRecord(snakemake.input.test, length, special),
        "corpus_validation": Packed(snakemake.input.corpus, length, special),
    }
    model, distribution = open_run(snakemake.input.base, sharding.on_one_host(recipe, snakemake.resources), run)
    evaluator = Evaluator(model, distribution, causal)
    before = {name: evaluator(held_out_batches(records, recipe)) for name, records in texts.items()}
    best = snakemake.input.best
    assign(model.trainable_variables, load_arrays(best), best)
    after = {name: evaluator(held_out_batches(records, recipe)) for name, records in texts.items()}
    for name in texts:
        say(f"{name} loss {before[name]['loss']:.4f} before, {after[name]['loss']:.4f} after")

    trainable, total = count(model.trainable_variables), count(model.variables)
    write_json(
        snakemake.output.evaluation,
        {
            "trainable_parameters": trainable,
            "total_parameters": total,
            "trainable_share": trainable / total,
            "loss": {name: {"before": before[name], "after": after[name]} for name in texts},
        },
    )
    mesh = {axis: size for axis, size in distribution.sizes.items()}
    write_json(snakemake.output.partitioning, {"mesh": mesh, "variables": sharding.partitioning(model, distribution)})
