"""Fetch an existing tokenizer from a local folder or from the Hugging Face Hub.

input.files                files of the local folder; none for the hub
output.tokenizer           tokenizer.json of the library `tokenizers`
output.config              tokenizer_config.json, and
output.special_tokens_map  special_tokens_map.json: with them AutoTokenizer loads the folder
params.recipe.pretrained   local folder, or a name on the hub
params.recipe.revision     commit on the hub; None for a local folder
params.where               config key of the tokenizer
params.trains              whether models are trained with it, which requires special tokens
"""

from tpulm.core import hub
from tpulm.core.job import job

with job(snakemake.log[0], snakemake.wildcards.tokenizer) as say:
    from tpulm.tokenization.folder import REQUIRED, write_tokenizer

    name, revision = snakemake.params.recipe["pretrained"], snakemake.params.recipe["revision"]
    source = hub.named_source(snakemake.params.where, name, revision)
    folder = hub.fetch(name, revision, source, hub.TOKENIZER)
    size = write_tokenizer(folder, snakemake.output, source, REQUIRED if snakemake.params.trains else ())
    say(f"{name}: {size:,} pieces")
