"""What has changed between two texts, word by word."""

import difflib
import re

from markupsafe import Markup, escape

WORDS = re.compile(r"\s+|\w+|[^\w\s]")


def marked(before: str, after: str) -> tuple[Markup, Markup]:
    """Return both texts as HTML: in the first, what is gone is <del>, in the second, what is new is <ins>."""
    one, other = WORDS.findall(before), WORDS.findall(after)
    left, right = Markup(), Markup()
    for kind, start, stop, begin, end in difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        old, new = escape("".join(one[start:stop])), escape("".join(other[begin:end]))
        left += old if kind == "equal" or not old else Markup("<del>{}</del>").format(old)
        right += new if kind == "equal" or not new else Markup("<ins>{}</ins>").format(new)
    return left, right
