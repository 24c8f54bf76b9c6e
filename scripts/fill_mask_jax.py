"""Predict the masked token of each prompt with a masked language model that was trained on JAX, without TensorFlow.

input.model      a Hugging Face model folder
output           JSON, as of fill_mask_tensorflow: for each prompt the five most likely tokens, as the fill-mask
                 pipeline of transformers returns them
params.recipe    prompts (each with one [MASK]), cpu_threads
"""

from pathlib import Path

from tpulm.core.files import write_json
from tpulm.core.job import job
from tpulm.training import runtime

recipe = snakemake.params.recipe

with job(snakemake.log[0], f"mlm {snakemake.wildcards.run}") as say:
    runtime.start(recipe["cpu_threads"])
    from tpulm.models.opened_roberta import FillMask

    fill = FillMask(Path(snakemake.input.model[0]).parent)
    answers = []
    for prompt in recipe["prompts"]:
        found = fill(prompt)
        say(f"{prompt}  ->  {', '.join(answer['token_str'] or '(nothing)' for answer in found)}")
        rounded = [answer | {"score": round(answer["score"], 6)} for answer in found]
        answers.append({"prompt": prompt, "answers": rounded})
    write_json(snakemake.output[0], answers)
