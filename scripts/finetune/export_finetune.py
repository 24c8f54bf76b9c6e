"""Save the best checkpoint of a finetuning run as a Keras preset folder, with LoRA weights merged into the base's.

input.base      preset folder that the run started from
input.fingerprint  SHA-256 of each of its files
input.best      safetensors: all variables, or the LoRA variables
output.folder   preset folder; with LoRA in float32, and an int8 base is rounded as in training
output.fingerprint  JSON: the SHA-256 of each of its files
params.recipe   method, rank, alpha, targets, base_precision, seed, precision, mesh, layout, cpu_threads,
                host_device_count
"""

from tpulm.core.files import fingerprints, write_json
from tpulm.core.job import job
from tpulm.training.opening import start_for

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"finetune {run}") as say:
    spec = start_for(f"finetune.runs.{run}", recipe, snakemake.input.base, snakemake.resources, repeats=False)
    from tpulm.models import causal
    from tpulm.models.adapters import merged_model
    from tpulm.models.building import open_model
    from tpulm.models.preset_folders import save_preset

    best = snakemake.input.best
    model = merged_model(spec, best) if recipe["method"] == "lora" else open_model(spec, causal, best)[0]
    save_preset(model, snakemake.output.folder)
    write_json(snakemake.output.fingerprint, fingerprints(snakemake.output.folder))
    say(f"saved as {snakemake.output.folder}")
