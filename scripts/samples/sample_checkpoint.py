"""Generate from prompts with a causal model as it was at a checkpoint, with random numbers as in finetune/generate.py.

input.base      preset folder: of a base model's run, the checkpoint itself
input.best      safetensors, the tuned variables of the checkpoint; none for a base model
output          JSON: sampling, and for each prompt the continuations, `after`
params.recipe   prompts, sampling: see finetune/generate.py; key and path of the model, step of the checkpoint; seed,
                precision, mesh, layout, cpu_threads, host_device_count, for a finetuned model method and keys of LoRA;
                determinism, where it is steps
"""

from tpulm.core.files import write_json
from tpulm.core.job import job
from tpulm.specs.training_step import ModelSpec
from tpulm.training import runtime

recipe, base, best = snakemake.params.recipe, snakemake.input.base, snakemake.input.get("best")

with job(snakemake.log[0], f"{recipe['path']}, step {recipe['step']}") as say:
    determinism = recipe.get("determinism", "bytes")
    runtime.start(recipe["cpu_threads"], recipe["host_device_count"], recipe["precision"], determinism)
    from tpulm.models.building import open_model
    from tpulm.models.sampling import Generator
    from tpulm.models.sharding import on_one_host

    prompts = recipe["prompts"]
    stage, preset = ("finetune", {"base": {"preset": base}}) if best else ("base", {"preset": base})
    opened = on_one_host(recipe, snakemake.resources) | preset
    model, distribution = open_model(ModelSpec.of(stage, recipe["key"], opened), best or None)
    made = Generator(model, recipe["sampling"], distribution.num_model_replicas)(prompts)
    rows = [{"prompt": prompt, "after": texts} for prompt, texts in zip(prompts, made, strict=True)]
    write_json(snakemake.output[0], {"sampling": recipe["sampling"], "prompts": rows})
    say(f"{len(prompts)} prompts, {recipe['sampling']['samples']} samples each")
