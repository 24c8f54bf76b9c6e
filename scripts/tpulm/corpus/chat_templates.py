"""Where chat templates come from: Gemma's, a file, or the files of a tokenizer, local or on the Hugging Face hub."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from tpulm.core import hub
from tpulm.core.errors import UserError
from tpulm.specs.texts import CHAT_TEMPLATE_FILES, GEMMA

# The turns of the Gemma models that follow instructions (https://ai.google.dev/gemma/docs/core/prompt-structure). What
# the system says stands before what the user says first, as in the templates of Gemma 3.
GEMMA_TEMPLATE = """\
{{ bos_token }}
{%- set first = namespace(text='') %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}{{ raise_exception('a system message is not the first one') }}{% endif %}
        {%- set first.text = message.content | trim + '\\n\\n' %}
    {%- elif message.role == 'user' %}
        {{- '<start_of_turn>user\\n' + first.text + message.content | trim + '<end_of_turn>\\n' }}
        {%- set first.text = '' %}
    {%- else %}
        {{- '<start_of_turn>model\\n' }}
        {%- generation %}{{ message.content | trim + '<end_of_turn>\\n' }}{% endgeneration %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
"""


def find_chat_template(where: str, given: str, revision: str | None, files: Sequence[str]) -> dict:
    """Return a chat template: where it is from, template, bos_token and eos_token, and the special tokens, or None.

    where     config key of the template; given, its value; revision, a commit, where that is a name on the hub
    files     the local files that the template is read from

    Raises UserError where there is none.
    """
    if given == GEMMA:
        return template_record(f"{where} {GEMMA}", GEMMA_TEMPLATE, {"bos_token": "<bos>", "eos_token": "<eos>"}, None)
    if given.endswith(".jinja") and not os.path.isdir(given):
        return template_record(given, text_of(given), {}, None)
    if not files:
        folder = hub.fetch(given, revision, hub.named_source(where, given, revision), list(CHAT_TEMPLATE_FILES))
        files = [str(folder / name) for name in CHAT_TEMPLATE_FILES if (folder / name).is_file()]
    found, place = {os.path.basename(file): text_of(file) for file in files}, f"{where}: {given}"
    try:
        config = json.loads(found.get("tokenizer_config.json", "{}"))
    except ValueError as error:
        raise UserError(f"{place}/tokenizer_config.json is not valid JSON: {error}.") from None
    template = found.get("chat_template.jinja", config.get("chat_template"))
    if isinstance(template, list):  # of several, each with a name
        template = {one["name"]: one["template"] for one in template}.get("default")
    if not isinstance(template, str):
        raise UserError(f"{place} has no chat template in {' or '.join(CHAT_TEMPLATE_FILES)}.")
    added = config.get("added_tokens_decoder", {}).values()
    special = [token["content"] for token in added if token.get("special")]
    return template_record(place, template, config, special if config else None)


def template_record(where: str, template: str, config: dict, special: list[str] | None) -> dict:
    """Return a template and its tokens as `ChatTemplate` takes them; config is the tokenizer's."""
    tokens = {name: config.get(name) for name in ("bos_token", "eos_token")}
    plain = {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}
    return {"where": where, "template": template, "special": special, **plain}


def text_of(file: str) -> str:
    """Return the text of a file. Raises UserError."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}.") from None
