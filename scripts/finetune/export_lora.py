"""Save the LoRA weights of the best checkpoint in the formats of Keras and PEFT.

input.base          preset folder
input.fingerprint   SHA-256 of each of its files
input.best          safetensors: the LoRA variables
output.keras        adapter.lora.h5, for Backbone.load_lora_weights
output.keras_config adapter.lora.json, arguments of Backbone.enable_lora, to call first: rank, target_layer_names
output.peft         adapter_model.safetensors, for peft.PeftModel on the same model in transformers
output.peft_config  adapter_config.json
params.recipe       method, rank, alpha, targets, base_precision, seed, precision, mesh, layout, cpu_threads,
                    host_device_count; hub_name and hub_revision of the base model, or null

B includes the factor alpha / rank, because Keras's file has no alpha. The adapter is for the published base model, even
if it was trained on weights of another type.
"""

from tpulm.core.arrays import load_arrays
from tpulm.core.files import write_json
from tpulm.core.job import job
from tpulm.models.peft import peft, scaled
from tpulm.models.tensor_files import save_tensors
from tpulm.specs.training_step import ModelSpec
from tpulm.training import runtime

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"finetune {run}") as say:
    devices = recipe["cpu_threads"], recipe["host_device_count"]
    runtime.start(*devices, recipe["precision"], repeats=False, on_cpu=True)
    from tpulm.models.adapters import save_adapters

    opened = recipe | {"base": {"preset": snakemake.input.base}}
    spec = ModelSpec.of("finetune", f"finetune.runs.{run}", opened)
    arrays = scaled(load_arrays(snakemake.input.best), spec.alpha / spec.rank)
    tensors, config = peft(arrays, recipe["hub_name"], recipe["hub_revision"])
    save_tensors(snakemake.output.peft, tensors)
    write_json(snakemake.output.peft_config, config)
    save_adapters(spec, arrays, snakemake.output.keras, snakemake.output.keras_config)
    say(f"saved as {snakemake.output.keras} and, for PEFT (rank {config['r']}), in the same folder")
