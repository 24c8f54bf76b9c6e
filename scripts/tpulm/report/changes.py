"""What has changed between two texts, word by word."""

import difflib
import re

from markupsafe import Markup, escape

WORDS = re.compile(r"\s+|\w+|[^\w\s]")
LINE = re.compile(r"\S(?:[^\n]*\S)?")  # what is between the white space of a line


def marked(before: str, after: str) -> tuple[Markup, Markup]:
    """Return both texts as HTML: in the first, what is gone is <del>, in the second, what is new is <ins>."""
    one, other = WORDS.findall(before), WORDS.findall(after)
    left = right = ""
    for kind, start, stop, begin, end in difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        old, new = (str(escape("".join(words))) for words in (one[start:stop], other[begin:end]))
        left += old if kind == "equal" else wrapped(old, "del")
        right += new if kind == "equal" else wrapped(new, "ins")
    return joined(left, "del"), joined(right, "ins")


def wrapped(html: str, tag: str) -> str:
    """Return escaped text with a tag around what each of its lines has beside white space at its ends."""
    return LINE.sub(rf"<{tag}>\g<0></{tag}>", html)


def joined(html: str, tag: str) -> Markup:
    """Return HTML in which elements of a tag are one where only white space of a line is between them."""
    return Markup(re.sub(rf"</{tag}>([^\S\n]*)<{tag}>", r"\1", html))
