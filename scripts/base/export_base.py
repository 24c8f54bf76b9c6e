"""Save the best checkpoint of a base model as a Keras preset folder.

input.best         safetensors: the model's variables
input.vocabulary   vocabulary of the model, see tpulm.specs.causal_vocabularies.vocabulary_of
input.tokenizer    tokenizer.json
output.folder      preset folder: keras_hub.models.CausalLM.from_preset(folder) loads it
output.fingerprint JSON: the SHA-256 of each of its files
params.recipe      model, sequence_length (default length of its preprocessor), precision, cpu_threads
"""

from pathlib import Path

from tpulm.core.files import fingerprints, write_json
from tpulm.core.job import job
from tpulm.tokenization.tokenizer import TextTokenizer
from tpulm.training import runtime

recipe, run = snakemake.params.recipe, snakemake.wildcards.run

with job(snakemake.log[0], f"base {run}") as say:
    size = TextTokenizer.load(snakemake.input.tokenizer).size
    runtime.start(recipe["cpu_threads"], precision=recipe["precision"], repeats=False, on_cpu=True)
    from tpulm.models.causal import open_trained
    from tpulm.models.preset_folders import save_preset

    model = open_trained(recipe, snakemake.input.best, Path(snakemake.input.vocabulary), size)
    save_preset(model, snakemake.output.folder)
    write_json(snakemake.output.fingerprint, fingerprints(snakemake.output.folder))
    say(f"saved as {snakemake.output.folder}")
