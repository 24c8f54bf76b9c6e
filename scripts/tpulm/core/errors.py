"""The exception for user errors, as opposed to bugs, and functions that format values for its message."""

import difflib
import glob
import json
import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator

LONGEST = 2000  # characters of a sentence; data can have names of any length
CONTROL = {"Cc", "Cs", "Zl", "Zp"}  # categories of Unicode: what a terminal, or a reader of lines, takes for a command
DIRECTIONS = {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}  # controls that reorder text


class UserError(Exception):
    """An error that the user can fix: one sentence with the key or file, its value and what is allowed."""

    def __str__(self) -> str:
        """Return the sentence, in one line."""
        return printable(super().__str__())


def printable(text: str) -> str:
    """Return a text for a terminal: control characters are escaped, and a very long text lacks its middle."""
    safe = "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in CONTROL or char in DIRECTIONS else char
        for char in text
    )
    return safe if len(safe) <= LONGEST else f"{safe[: LONGEST // 2]} ... {safe[-LONGEST // 2 :]}"


def one_line(error: BaseException | str) -> str:
    """Return an error's text in a line of at most 300 characters, without queries of URLs; its type without text."""
    text = " ".join(str(error).split())
    return re.sub(r"(https?://[^\s?]+)\?\S+", r"\1", text)[:300].rstrip(". :") or type(error).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text as `one_line` does, for libraries whose other lines are details."""
    lines = str(error).strip().splitlines()
    return one_line(lines[0] if lines else error)


def suggestion(name: str, known: Collection[str], others: str) -> str:
    """Return the end of a sentence on an unknown name: the known one that it resembles, else `others` and all known."""
    return did_you_mean(name, known) or f"; {others}: {', '.join(known)}."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence on an unknown name that resembles a known one, "" if it resembles none."""
    near = difflib.get_close_matches(name, known, 1)
    return f'; did you mean "{near[0]}"?' if near else ""


def did_you_mean_path(path: str) -> str:
    """Return the end of a sentence on a file or folder that is not there, if another in its folder resembles it."""
    return did_you_mean(path, glob.glob(os.path.join(glob.escape(os.path.dirname(path)), "*")))


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its chain of causes."""
    while error:
        yield error
        error = error.__cause__ or error.__context__


def describe(value: object) -> str:
    """Return a value as messages show it: text in quotes, shortened; "empty" for None; "a mapping" or "a list"."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and abs(value) >= 2**63:
        return f"a number of {value.bit_length()} bits"  # Python refuses to write out the longest
    if not isinstance(value, str):
        return str(value)
    # JSON's quotes and escapes show line ends and other invisible characters.
    text = json.dumps(value, ensure_ascii=not value.isprintable())
    return text if len(text) <= 80 else text[:77] + '..."'
