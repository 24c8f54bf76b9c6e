"""Sections of texts, such as `corpus`: their sources, one or several, and the templates of documents."""

import os
from collections.abc import Mapping
from pathlib import Path
from string import Formatter

from tpulm.core.errors import UserError
from tpulm.core.files import read_json

# The chat templates that need no file, and the files of a tokenizer that may have one, in order of preference.
GEMMA, PLAIN = "gemma", "plain"
CHAT_TEMPLATE_FILES = ("chat_template.jinja", "tokenizer_config.json")


def sources_of(where: str, text: Mapping) -> dict[str, tuple[str, Mapping]]:
    """Return key and recipe of each source of a text by name; where  key of the text.

    The only source of a text without `sources` has the empty name.
    """
    if "sources" not in text:
        return {"": (where, text)}
    return {name: (f"{where}.sources.{name}", source) for name, source in text["sources"].items()}


def has_responses(text: Mapping) -> bool:
    """Return whether only the responses count in the documents of any source of a text."""
    return any("response" in recipe or "messages" in recipe for _, recipe in sources_of("", text).values())


def has_messages(key: str, text: Mapping, source: str) -> bool:
    """Return whether a source of a text has conversations, which a chat template converts to documents."""
    return "messages" in sources_of(key, text)[source][1]


def chat_template_files(template: str) -> list[str]:
    """Return the local files of a chat template: none for Gemma's and the plain one, and for one on the hub."""
    if template in (GEMMA, PLAIN):
        return []
    if os.path.isdir(template):
        paths = (os.path.join(template, name) for name in CHAT_TEMPLATE_FILES)
        return [path for path in paths if os.path.isfile(path)]
    return [template] if template.endswith(".jinja") else []


def chat_template_of(base: Mapping) -> dict[str, str]:
    """Return the chat template of a base model as keys of a text; base  its section.

    chat_template           the folder or the repository of the preset, `gemma` for Gemma 1 to 3, otherwise `plain`
    chat_template_revision  of a repository; chat_template_otherwise  what takes its place if it has no template
    """
    preset = base.get("preset", "")
    if not os.path.isdir(preset):
        built_in = {"chat_template": GEMMA if has_turns_of_gemma(preset) else PLAIN}
        if not preset.startswith("hf://"):
            return built_in
        of_hub = {"chat_template": preset.removeprefix("hf://"), "chat_template_revision": base["revision"]}
        return of_hub | {"chat_template_otherwise": built_in["chat_template"]}
    jinja, settings = (Path(preset, name) for name in CHAT_TEMPLATE_FILES)
    if jinja.is_file() or "chat_template" in keys_in(settings):
        return {"chat_template": preset}
    config = keys_in(Path(preset, "config.json"))
    family = str(config.get("registered_name") or config.get("model_type"))
    return {"chat_template": GEMMA if has_turns_of_gemma(family) else PLAIN}


def keys_in(path: Path) -> Mapping:
    """Return the content of a JSON file that may be absent, or hold no mapping: then nothing. Raises UserError."""
    content = read_json(path) if path.is_file() else {}
    return content if isinstance(content, dict) else {}


def has_turns_of_gemma(name: str) -> bool:
    """Return whether a preset or an architecture of this name is one of Gemma 1 to 3, whose markup of turns is one."""
    name = name.lower().replace("-", "")
    return "gemma" in name and "gemma4" not in name


def template_fields(where: str, template: str) -> list[tuple[str, str | None]]:
    """Return the parts of a template: text, and the field after it, or None. Raises UserError."""
    allowed = "allowed: text with fields such as {name}; {{ and }} are literal braces"
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise UserError(f"{where} cannot be read ({error}); {allowed}.") from None
    if any(field == "" or spec or conversion for _, field, spec, conversion in parts):
        raise UserError(f"{where} has a field that is not a name; {allowed}.")
    if not any(field for _, field, _, _ in parts):
        raise UserError(f"{where} has no field; {allowed}.")
    return [(text, field) for text, field, _, _ in parts]
