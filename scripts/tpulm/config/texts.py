"""Texts: the sources that a section such as `corpus` names, one or several."""

from collections.abc import Mapping


def sources_of(where: str, text: Mapping) -> dict[str, tuple[str, Mapping]]:
    """Return the sources of a text by name, each with its key in the config and what the config says of it.

    where  key of the text. The one source of a text without `sources` has the empty name.
    """
    if "sources" not in text:
        return {"": (where, text)}
    return {name: (f"{where}.sources.{name}", source) for name, source in text["sources"].items()}
