"""Texts: the sources that a section such as `corpus` names, one or several, and the templates of their documents."""

from collections.abc import Mapping
from string import Formatter

from tpulm.core.errors import UserError


def sources_of(where: str, text: Mapping) -> dict[str, tuple[str, Mapping]]:
    """Return the sources of a text by name, each with its key in the config and what the config says of it.

    where  key of the text. The one source of a text without `sources` has the empty name.
    """
    if "sources" not in text:
        return {"": (where, text)}
    return {name: (f"{where}.sources.{name}", source) for name, source in text["sources"].items()}


def template_fields(where: str, template: str) -> list[tuple[str, str | None]]:
    """Return the parts of a template: text, and the field that follows it or None. Raises UserError."""
    allowed = "allowed: text with fields as {name}; {{ and }} stand for braces"
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise UserError(f"{where} cannot be read ({error}); {allowed}.") from None
    if any(field == "" or spec or conversion for _, field, spec, conversion in parts):
        raise UserError(f"{where} has a field that is no name; {allowed}.")
    if not any(field for _, field, _, _ in parts):
        raise UserError(f"{where} names no field; {allowed}.")
    return [(text, field) for text, field, _, _ in parts]
