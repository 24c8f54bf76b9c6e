"""Load a chat template: one of the two here, of a file, or of the files of a tokenizer, local or on the hub."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from tpulm.core import hub
from tpulm.core.errors import UserError
from tpulm.specs.texts import CHAT_TEMPLATE_FILES, GEMMA, PLAIN

# The turns of Gemma's instruction-tuned models (https://ai.google.dev/gemma/docs/core/prompt-structure). A system
# message stands before the first message of the user, as in the templates of Gemma 3.
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
# Messages without markup, for models whose turns are not known; an empty line follows each.
PLAIN_TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ message.content | trim }}{% endgeneration %}
    {%- else %}
        {{- message.content | trim }}
    {%- endif %}
    {{- '\\n\\n' }}
{%- endfor %}
"""


def find_chat_template(
    where: str, value: str, revision: str | None, files: Sequence[str], otherwise: str | None = None
) -> dict:
    """Return a chat template: where, template, bos_token, eos_token, and special, the special tokens or None.

    where      key of the config; value, its value; revision, the commit of a name on the hub
    files      local files from which the template is read
    otherwise  the value that takes its place if a name on the hub has no template

    Raises UserError without a template.
    """
    if value == PLAIN:
        return template_record(f"{where} {PLAIN}", PLAIN_TEMPLATE, {}, None)
    if value == GEMMA:
        return template_record(f"{where} {GEMMA}", GEMMA_TEMPLATE, {"bos_token": "<bos>", "eos_token": "<eos>"}, None)
    if value.endswith(".jinja") and not os.path.isdir(value):
        return template_record(value, text_of(value), {}, None)
    if not files:
        folder = hub.fetch(value, revision, hub.named_source(where, value, revision), list(CHAT_TEMPLATE_FILES))
        files = [str(folder / name) for name in CHAT_TEMPLATE_FILES if (folder / name).is_file()]
    texts, place = {os.path.basename(file): text_of(file) for file in files}, f"{where}: {value}"
    try:
        config = json.loads(texts.get("tokenizer_config.json", "{}"))
        template = texts.get("chat_template.jinja", config.get("chat_template"))
        if isinstance(template, list):  # several templates, each with a name
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        added = (config.get("added_tokens_decoder") or {}).values()
        special = [str(token["content"]) for token in added if token.get("special")]
        record = template_record(place, template, config, special if config else None)
    except ValueError as error:
        raise UserError(f"{place}/tokenizer_config.json is not valid JSON: {error}.") from None
    except (AttributeError, LookupError, TypeError, RecursionError):
        raise UserError(
            f"{place}/tokenizer_config.json does not describe a tokenizer; allowed: the file as transformers writes it."
        ) from None
    if otherwise and not isinstance(template, str):
        return find_chat_template(where, otherwise, None, [])
    if not isinstance(template, str):
        raise UserError(f"{place} has no chat template in {' or '.join(CHAT_TEMPLATE_FILES)}.")
    return record


def template_record(where: str, template: str, config: dict, special: list[str] | None) -> dict:
    """Return a template and its tokens as `ChatTemplate` takes them; config  of the tokenizer."""
    tokens = {name: config.get(name) for name in ("bos_token", "eos_token")}
    plain = {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}
    if not all(token is None or isinstance(token, str) for token in plain.values()):
        raise TypeError("a token is no text")
    return {"where": where, "template": template, "special": special, **plain}


def text_of(file: str) -> str:
    """Return the text of a file. Raises UserError."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}.") from None
