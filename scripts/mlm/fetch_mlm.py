"""Fetch a masked language model from a local folder or from the Hugging Face Hub.

input.files                the files of the local folder; none for the hub
output                     config.json, model.safetensors (float32), the tokenizer's files
params.recipe.pretrained   local folder, or a name on the hub
params.recipe.revision     commit on the hub; None for a local folder
params.recipe.key          of the run in the config; backend, by which the model is to be opened
"""

from tpulm.core import hub
from tpulm.core.errors import UserError
from tpulm.core.job import job

with job(snakemake.log[0], snakemake.wildcards.fetched) as say:
    from tpulm.models.masked_folders import locate, save_folder
    from tpulm.tokenization.folder import write_tokenizer

    recipe = snakemake.params.recipe
    name, key = recipe["pretrained"], recipe["key"]
    given = hub.named_source(key, name, recipe["revision"])
    config_json, weights, *tokenizer = snakemake.output
    folder = locate(name, recipe["revision"], given)
    size = write_tokenizer(folder, tokenizer, given)
    config = save_folder(folder, key, recipe["backend"], config_json, weights)
    if size > config.vocab_size:
        raise UserError(
            f"{given}, whose tokenizer has {size:,} pieces, but whose model has {config.vocab_size:,}; allowed: a "
            "model with its own tokenizer."
        )
    say(f"{name}: {config.model_type}, vocabulary of {config.vocab_size:,}")
