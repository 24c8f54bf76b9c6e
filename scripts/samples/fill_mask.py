"""Predict the masked token of each prompt with a masked language model, with the library that has trained it.

input.model      Hugging Face model folder
output           JSON: for each prompt the five likeliest tokens, in the format of the fill-mask pipeline
params.recipe    path of the model; prompts (each with one [MASK]), backend, cpu_threads
"""

from pathlib import Path

from tpulm.core.devices import keep_to_cpu
from tpulm.core.files import write_json
from tpulm.core.job import job

recipe = snakemake.params.recipe
folder = Path(snakemake.input.model[0]).parent

with job(snakemake.log[0], recipe["path"]) as say:
    if recipe["backend"] == "tensorflow":
        keep_to_cpu()
        from tpulm.training import tensorflow_runtime
        from tpulm.training.tensorflow_model import load_model
        from transformers import AutoTokenizer, pipeline

        tensorflow_runtime.start(recipe["cpu_threads"], 1, tpu=False)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        predict = pipeline("fill-mask", model=load_model(folder), tokenizer=tokenizer, framework="tf", dtype=None)

        def fill(prompt):
            """Return the answers to a prompt."""
            return predict(prompt.replace("[MASK]", tokenizer.mask_token))

    if recipe["backend"] == "jax":
        from tpulm.training import runtime

        runtime.start(recipe["cpu_threads"], on_cpu=True)
        from tpulm.models.loading import FillMask

        fill = FillMask(folder)
    answers = []
    for prompt in recipe["prompts"]:
        likeliest = fill(prompt)
        say(f"{prompt}  ->  {', '.join(answer['token_str'] or '(nothing)' for answer in likeliest)}")
        rounded = [answer | {"score": round(answer["score"], 6)} for answer in likeliest]
        answers.append({"prompt": prompt, "answers": rounded})
    write_json(snakemake.output[0], answers)
