"""Fetch an existing tokenizer from a local folder or from the Hugging Face Hub.

input.files                the files of the local folder; none for the hub
output.tokenizer           tokenizer.json, as the `tokenizers` library saves it
output.config              tokenizer_config.json, and
output.special_tokens_map  special_tokens_map.json: with them AutoTokenizer loads the folder
params.recipe.pretrained   local folder, or a name on the hub
params.recipe.revision     commit on the hub; None for a local folder
params.where               the config key that names it
params.trains              whether models are trained with it, which takes special tokens
"""

import tempfile

from tpulm.core.files import read_json, write_json
from tpulm.core.job import job

with job(snakemake.log[0], snakemake.wildcards.tokenizer) as say:
    from tpulm.tokenization.folder import REQUIRED, save_pretrained

    recipe, output = snakemake.params.recipe, snakemake.output
    with tempfile.TemporaryDirectory() as folder:
        required = REQUIRED if snakemake.params.trains else ()
        size = save_pretrained(recipe["pretrained"], recipe["revision"], folder, snakemake.params.where, required)
        for name, target in (
            ("tokenizer.json", output.tokenizer),
            ("tokenizer_config.json", output.config),
            ("special_tokens_map.json", output.special_tokens_map),
        ):
            write_json(target, read_json(f"{folder}/{name}"))
    say(f"{recipe['pretrained']}: {size:,} pieces")
