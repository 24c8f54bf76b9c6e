"""Let the base model and the tuned one continue the same prompts, with the same random numbers.

input.base      preset folder
input.best      safetensors, the tuned variables of the best checkpoint
output          JSON: sampling, and for each prompt the continuations before and after
params.recipe   prompts, sampling (sampler, k, p, temperature, max_length in tokens, samples, seed);
                method, rank, seed, precision, mesh, cpu_threads, cpu_devices
"""

from lib import keras_jax
from lib.arrays import load_arrays
from lib.files import write_json
from lib.job import job

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"lora {run}") as say:
    keras_jax.start(recipe["cpu_threads"], recipe["cpu_devices"], recipe["precision"])
    from lib.causal_model import assign
    from lib.generation import Generator
    from lib.sharding import on_one_host
    from lib.tuning import open_run

    prompts, best = recipe["prompts"], snakemake.input.best
    model, distribution = open_run(snakemake.input.base, on_one_host(recipe, snakemake.resources), run)
    generate = Generator(model, recipe["sampling"], distribution.num_model_replicas)
    before = generate(prompts) if prompts else []
    assign(model.trainable_variables, load_arrays(best), best)
    after = generate(prompts) if prompts else []
    rows = [{"prompt": p, "before": b, "after": a} for p, b, a in zip(prompts, before, after, strict=True)]
    write_json(snakemake.output[0], {"sampling": recipe["sampling"], "prompts": rows})
    say(f"{len(prompts)} prompts, {recipe['sampling']['samples']} samples each, before and after")
