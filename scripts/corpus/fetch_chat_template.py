"""Find the chat template of a text: Gemma's, a plain one, that of a file, or that of a tokenizer.

input.files              local files of the template; none for a built-in one, and for one on the hub
output                   JSON: where, template, bos_token, eos_token, special (the tokenizer's special tokens, or null),
                         and the keys of ChatTemplate.described
params.recipe.key        key of the template in the config
params.recipe.chat_template, .chat_template_revision    its value, and a commit on the hub
params.recipe.chat_template_otherwise    the value that takes its place if the hub has none; may be absent
"""

from tpulm.core.files import write_json
from tpulm.core.job import job

recipe = snakemake.params.recipe

with job(snakemake.log[0], snakemake.wildcards.collection) as say:
    from tpulm.corpus.chat_templates import PLAIN_TEMPLATE, find_chat_template
    from tpulm.corpus.rows import ChatTemplate

    source, *more = map(recipe.get, ("chat_template", "chat_template_revision", "chat_template_otherwise"))
    template = find_chat_template(recipe["key"], source, more[0], list(snakemake.input.files), more[1])
    write_json(snakemake.output[0], template | ChatTemplate(template).described())
    plain = template["template"] == PLAIN_TEMPLATE
    say(f"plain text without markup; {recipe['key']} names another format" if plain else f"chat template of {source}")
