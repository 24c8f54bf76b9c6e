"""Predict the masked token of each prompt with a masked language model that was trained with TensorFlow.

input.model      a Hugging Face model folder
output           JSON: for each prompt the five most likely tokens, as the fill-mask pipeline returns them
params.recipe    prompts (each with one [MASK]), cpu_threads
"""

from pathlib import Path

from tpulm.core.files import write_json
from tpulm.core.job import job

with job(snakemake.log[0], f"mlm {snakemake.wildcards.run}") as say:
    from tpulm.training import tensorflow_runtime as runtime
    from tpulm.training.tensorflow_model import load_model
    from transformers import AutoTokenizer, pipeline

    runtime.start(snakemake.params.recipe["cpu_threads"], 1, tpu=False)
    folder = Path(snakemake.input.model[0]).parent
    tokenizer = AutoTokenizer.from_pretrained(folder)
    fill = pipeline("fill-mask", model=load_model(folder), tokenizer=tokenizer, framework="tf", dtype=None)
    answers = []
    for prompt in snakemake.params.recipe["prompts"]:
        found = fill(prompt.replace("[MASK]", fill.tokenizer.mask_token))
        say(f"{prompt}  ->  {', '.join(answer['token_str'] or '(nothing)' for answer in found)}")
        answers.append(
            {"prompt": prompt, "answers": [answer | {"score": round(answer["score"], 6)} for answer in found]}
        )
    write_json(snakemake.output[0], answers)
