"""Save the base model with the LoRA weights of the best checkpoint merged into its own, as a Keras preset folder.

input.base      preset folder that the run started from
input.best      safetensors, the LoRA variables
output          preset folder, float32: it computes what the trainer did, an int8 base rounded as it was there
params.recipe   method, rank, alpha, targets, base_precision, seed, precision, mesh, layout, cpu_threads,
                host_device_count
"""

from tpulm.config.training_step import ModelSpec
from tpulm.core.job import job
from tpulm.training import runtime

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"finetune {run}") as say:
    runtime.start(recipe["cpu_threads"], recipe["host_device_count"], recipe["precision"], repeats=False)
    from tpulm.models.adapters import merged
    from tpulm.models.causal import save_preset
    from tpulm.models.sharding import on_one_host

    opened = on_one_host(recipe, snakemake.resources) | {"base": {"preset": snakemake.input.base}}
    spec = ModelSpec.of("finetune", f"finetune.runs.{run}", opened)
    save_preset(merged(spec, snakemake.input.best), snakemake.output[0])
    say(f"saved as {snakemake.output[0]}")
