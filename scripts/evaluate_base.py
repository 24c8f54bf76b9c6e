"""Measure a base model that was trained here on the splits that it was not trained on.

input.base                preset folder
input.validation, .test   tokens of the corpus, as tokenize_causal writes them
input.state               JSON of the chain's last checkpoint, which names the best
output                    JSON: best_step, parameters; per split loss (nats per token), accuracy, perplexity,
                          predictions
params.recipe             sequence_length, batch_size, accumulate, precision, mesh, cpu_threads, cpu_devices
"""

from lib import keras_jax
from lib.causal_data import Packed, held_out_batches
from lib.causal_tokens import load_tokenizer
from lib.files import read_json, write_json
from lib.job import job

recipe, name = snakemake.params.recipe, snakemake.wildcards.name

with job(snakemake.log[0], f"base {name}") as say:
    keras_jax.start(recipe["cpu_threads"], recipe["cpu_devices"], recipe["precision"])
    from lib import sharding
    from lib.causal_model import backbone_class, count, load_preset
    from lib.jax_training import Evaluator, causal

    base = snakemake.input.base
    special = load_tokenizer(base, lambda: None).special
    mesh = sharding.on_one_host(recipe, snakemake.resources)["mesh"]
    distribution = sharding.set_up(backbone_class(base), mesh, f"base.{name}.mesh")
    model = load_preset(base)
    evaluator = Evaluator(model, distribution, causal)
    metrics = {"best_step": read_json(snakemake.input.state)["best"]["step"], "parameters": count(model.variables)}
    for split in ("validation", "test"):
        records = Packed(snakemake.input[split], recipe["sequence_length"], special)
        metrics[split] = figures = evaluator(held_out_batches(records, recipe))
        say(f"{split} loss {figures['loss']:.4f}, accuracy {figures['accuracy']:.3f}")
    write_json(snakemake.output[0], metrics)
