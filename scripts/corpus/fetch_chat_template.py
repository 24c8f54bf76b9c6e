"""Find the chat template of a text: Gemma's, that of a file, or that of a tokenizer.

input.files              the local files that it is read from; none for Gemma's, and for one that is on the hub
output                   JSON: where, template, bos_token, eos_token, special (the tokenizer's special tokens, or null),
                         and what ChatTemplate.described returns
params.recipe.key        key of the template in the config
params.recipe.chat_template, .chat_template_revision    its value, and the commit of what is on the hub
"""

from tpulm.core.files import write_json
from tpulm.core.job import job

recipe = snakemake.params.recipe

with job(snakemake.log[0], snakemake.wildcards.collection) as say:
    from tpulm.corpus.chat_templates import find_chat_template
    from tpulm.corpus.rows import ChatTemplate

    given, revision = recipe["chat_template"], recipe.get("chat_template_revision")
    found = find_chat_template(recipe["key"], given, revision, list(snakemake.input.files))
    write_json(snakemake.output[0], found | ChatTemplate(found).described())
    say(f"chat template of {given}")
