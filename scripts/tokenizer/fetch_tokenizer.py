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

from tpulm.core import hub
from tpulm.core.job import job

with job(snakemake.log[0], snakemake.wildcards.tokenizer) as say:
    from tpulm.tokenization.folder import REQUIRED, write_tokenizer

    name, revision = snakemake.params.recipe["pretrained"], snakemake.params.recipe["revision"]
    given = hub.named_source(snakemake.params.where, name, revision)
    folder = hub.fetch(name, revision, given, hub.TOKENIZER)
    size = write_tokenizer(folder, snakemake.output, given, REQUIRED if snakemake.params.trains else ())
    say(f"{name}: {size:,} pieces")
