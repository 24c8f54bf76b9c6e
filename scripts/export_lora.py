"""Save the LoRA weights of the best checkpoint, as Keras and as PEFT read them.

input.base          preset folder
input.best          safetensors, the LoRA variables
output.keras        adapter.lora.h5, for Backbone.load_lora_weights
output.peft         adapter_model.safetensors, for peft.PeftModel on the same model in transformers
output.peft_config  adapter_config.json
params.recipe       method, rank, seed, precision, mesh, cpu_threads, cpu_devices;
                    hub_name and hub_revision of the base model, or null
"""

from lib import keras_jax
from lib.adapter import peft
from lib.arrays import load_arrays
from lib.files import whole, write_json
from lib.job import job
from safetensors.numpy import save_file

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"lora {run}") as say:
    keras_jax.start(recipe["cpu_threads"], recipe["cpu_devices"], recipe["precision"])
    from lib.tuning import open_run

    tensors, config = peft(load_arrays(snakemake.input.best), recipe["hub_name"], recipe["hub_revision"])
    with whole(snakemake.output.peft) as partial:
        save_file(tensors, partial, metadata={"format": "pt"})
    write_json(snakemake.output.peft_config, config)
    model, _ = open_run(snakemake.input.base, recipe, run, snakemake.input.best)
    with whole(snakemake.output.keras) as partial:
        named = partial.with_name(f"{partial.name}.lora.h5")  # the ending that Keras insists on
        model.backbone.save_lora_weights(str(named))
        named.rename(partial)
    say(f"saved as {snakemake.output.keras} and, for PEFT with rank {config['r']}, beside it")
