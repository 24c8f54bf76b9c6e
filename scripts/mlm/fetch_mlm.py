"""Fetch a masked language model from a local folder or from the Hugging Face Hub.

input.files                files of the local folder; none for the hub
output                     config.json, model.safetensors (float32), files of the tokenizer
params.recipe.pretrained   local folder, or a name on the hub
params.recipe.revision     commit on the hub; None for a local folder
params.recipe.key          key of the run in the config
params.recipe.backend      backend that opens the model
"""

from tpulm.core import hub
from tpulm.core.errors import UserError
from tpulm.core.job import job

with job(snakemake.log[0], snakemake.wildcards.fetched) as say:
    from tpulm.models.masked_folders import locate, save_folder
    from tpulm.tokenization.folder import write_tokenizer

    recipe = snakemake.params.recipe
    name, key = recipe["pretrained"], recipe["key"]
    source = hub.named_source(key, name, recipe["revision"])
    config_json, weights, *tokenizer = snakemake.output
    folder = locate(name, recipe["revision"], source)
    size = write_tokenizer(folder, tokenizer, source)
    config = save_folder(folder, key, recipe["backend"], config_json, weights)
    if size > config.vocab_size:
        raise UserError(
            f"{source}, whose tokenizer has {size:,} pieces, but whose model has {config.vocab_size:,}; allowed: a "
            "model with its own tokenizer."
        )
    say(f"{name}: {config.model_type}, vocabulary of {config.vocab_size:,}")
