"""Save the best checkpoint of a full finetuning run as a Keras preset folder.

input.base      preset folder that the run started from
input.best      safetensors, all variables
output          preset folder
params.recipe   method, seed, precision, mesh, cpu_threads, host_device_count
"""

from tpulm.config.training_step import ModelSpec
from tpulm.core.job import job
from tpulm.training import runtime

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"finetune {run}") as say:
    runtime.start(recipe["cpu_threads"], recipe["host_device_count"], recipe["precision"], repeats=False)
    from tpulm.models.building import open_model
    from tpulm.models.causal import save_preset
    from tpulm.models.sharding import on_one_host

    opened = on_one_host(recipe, snakemake.resources) | {"base": {"preset": snakemake.input.base}}
    model, _ = open_model(ModelSpec.of("finetune", f"finetune.runs.{run}", opened), snakemake.input.best)
    save_preset(model, snakemake.output[0])
    say(f"saved as {snakemake.output[0]}")
