"""What a user hears of a target that no rule makes."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

from tpulm.core.job_record import name_here

MISSING = re.compile(r"No rule to produce (.+?) \(if you use input functions")  # of Snakemake's MissingRuleException


def known(rules: Iterable[Any]) -> list[str]:
    """Return the targets that rules of Snakemake have: their names, and files without wildcards."""
    found: dict[str, None] = {}
    for rule in rules:
        if not rule.has_wildcards():
            found[rule.name] = None
        files = (file for file in [*rule.products(), *rule.input] if isinstance(file, str))
        found |= dict.fromkeys(name_here(str(file)) for file in files if str(file) and "{" not in file)
    return list(found)


def unknown(message: str, rules: Iterable[Any]) -> str | None:
    """Return a sentence for what Snakemake says of a target that no rule makes; None for another message."""
    missing = MISSING.search(message)
    if not missing:
        return None
    target = missing[1]
    near = difflib.get_close_matches(target, known(rules), n=3, cutoff=0.7)
    more = f"did you mean {' or '.join(near)}?" if near else "`snakemake --list-rules` lists the targets by name."
    return f"error: no rule of this config makes {target}; {more}"
