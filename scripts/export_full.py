"""Save the best checkpoint of a run that tuned every parameter, as a Keras preset folder.

input.base      preset folder that the run started from
input.best      safetensors, all variables
output          preset folder
params.recipe   method, seed, precision, mesh, cpu_threads, cpu_devices
"""

from lib import keras_jax
from lib.job import job

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"lora {run}") as say:
    keras_jax.start(recipe["cpu_threads"], recipe["cpu_devices"], recipe["precision"])
    from lib.causal_model import save_preset
    from lib.sharding import on_one_host
    from lib.tuning import open_run

    model, _ = open_run(snakemake.input.base, on_one_host(recipe, snakemake.resources), run, snakemake.input.best)
    save_preset(model, snakemake.output[0])
    say(f"saved as {snakemake.output[0]}")
