"""Find the chat template of a text: Gemma's, that of a file, or that of a tokenizer.

input.files              local files of the template; none for Gemma's, and for one on the hub
output                   JSON: where, template, bos_token, eos_token, special (the tokenizer's special tokens, or null),
                         and the keys of ChatTemplate.described
params.recipe.key        key of the template in the config
params.recipe.chat_template, .chat_template_revision    its value, and a commit on the hub
"""

from tpulm.core.files import write_json
from tpulm.core.job import job

recipe = snakemake.params.recipe

with job(snakemake.log[0], snakemake.wildcards.collection) as say:
    from tpulm.corpus.chat_templates import find_chat_template
    from tpulm.corpus.rows import ChatTemplate

    source, revision = recipe["chat_template"], recipe.get("chat_template_revision")
    template = find_chat_template(recipe["key"], source, revision, list(snakemake.input.files))
    write_json(snakemake.output[0], template | ChatTemplate(template).described())
    say(f"chat template of {source}")
