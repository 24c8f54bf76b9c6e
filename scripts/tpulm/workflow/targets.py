"""What a user hears of a target that no rule makes."""

import difflib
from collections.abc import Iterable


def unknown(target: str, known: Iterable[str]) -> str:
    """Return a sentence about a target that no rule makes, with those of the known ones that are like it."""
    near = difflib.get_close_matches(target, list(known), n=3, cutoff=0.7)
    more = f"did you mean {' or '.join(near)}?" if near else "`snakemake --list-rules` lists the targets by name."
    return f"error: no rule of this config makes {target}; {more}"
