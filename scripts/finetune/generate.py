"""Generate from the same prompts with the base model and the finetuned model, using the same random numbers.

input.base      preset folder
input.best      safetensors: tuned variables of the best checkpoint
output          JSON: sampling, and for each prompt the continuations before and after finetuning
params.recipe   prompts, sampling (sampler, k, p, temperature, max_length in tokens, samples, seed);
                method and keys of LoRA, seed, precision, mesh, layout, cpu_threads, host_device_count
"""

from tpulm.core.arrays import load_arrays
from tpulm.core.files import write_json
from tpulm.core.job import job
from tpulm.training.history import Phases
from tpulm.training.opening import open_causal

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"finetune {run}") as say:
    phases = Phases()
    model, distribution = open_causal(f"finetune.runs.{run}", recipe, snakemake.input.base, snakemake.resources)
    from tpulm.models.sampling import Generator
    from tpulm.models.variables import assign

    prompts, best = recipe["prompts"], snakemake.input.best
    generate = Generator(model, recipe["sampling"], distribution.num_model_replicas)
    phases.end("start")
    before = generate(prompts) if prompts else []
    phases.end("before")
    assign(model.trainable_variables, load_arrays(best), best)
    after = generate(prompts) if prompts else []
    phases.end("after")
    rows = [{"prompt": p, "before": b, "after": a} for p, b, a in zip(prompts, before, after, strict=True)]
    write_json(snakemake.output[0], {"sampling": recipe["sampling"], "prompts": rows})
    seconds = phases.seconds
    say(
        f"{len(prompts)} prompts, {recipe['sampling']['samples']} samples each, before and after: "
        f"{seconds['start']:.1f} s to start, {seconds['before']:.1f} s to compile and generate, "
        f"{seconds['after']:.1f} s to generate again"
    )
