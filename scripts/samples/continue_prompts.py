"""Continue prompts with a base model of the workflow.

input.base         preset folder
input.fingerprint  SHA-256 of each of its files
output             JSON: sampling; for each of prompts: prompt, continuations, and cut, how many of them the limit of
                   tokens ended
params.recipe      prompts, sampling (sampler, k, p, temperature, samples, seed; max_new_tokens, or max_length with the
                   prompt); layout, seed, precision, mesh, cpu_threads, host_device_count; determinism, if it is steps
"""

from tpulm.core.files import write_json
from tpulm.core.job import job
from tpulm.training.opening import open_causal

recipe, run, base = snakemake.params.recipe, snakemake.wildcards.run, snakemake.input.base

with job(snakemake.log[0], f"base {run}") as say:
    model, distribution = open_causal(f"base.{run}", recipe, base, snakemake.resources)
    from tpulm.models.sampling import Generator

    prompts, sampling = recipe["prompts"], recipe["sampling"]
    generated = Generator(model, sampling, distribution.num_model_replicas)(prompts)
    rows = [
        {"prompt": prompt, "continuations": [each.text for each in samples], "cut": sum(each.cut for each in samples)}
        for prompt, samples in zip(prompts, generated, strict=True)
    ]
    write_json(snakemake.output[0], {"sampling": sampling, "prompts": rows})
    say(f"{len(prompts)} prompts, {sampling['samples']} samples each")
