"""How much a text looks like Python, for telling code from prose about code. Pure Python.

`token_rate` counts marks of Python against the words of a text. A mark is a keyword that English does
not use as such (`def`, `elif`, `None`, but not `for`, `in`, `is`, `not`, `return`, `import`), or an
operator that prose does not use (assignment, comparison, arrows, attribute and call syntax, brackets
of subscripts). Full stops, commas, colons, and parentheses set off by spaces are punctuation to both.
"""

import ast
import re

KEYWORDS = "def|elif|lambda|None|True|False|self|cls|isinstance|__\\w+__"
# Longest first. `name(` and `name.name(` are calls; ` (` opens a remark in prose.
MARKS = re.compile(
    rf"\b(?:{KEYWORDS})\b"
    r"|\w\(|\)\s*:\s*\n|:\s*\n[ \t]+\S"
    r"|->|\*\*|//|[-+*/%|&^@<>!=]=|(?<![<>!=])=(?!=)"
    r"|\w\[|\]\s*=|\b\w+\.\w+\("
)
WORDS = re.compile(r"\w+")
MINIMUM_STATEMENTS = (
    ast.Assign, ast.AugAssign, ast.AnnAssign, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Return,
    ast.Delete, ast.For, ast.While, ast.If, ast.With, ast.Raise, ast.Try, ast.Assert, ast.Import, ast.ImportFrom,
)  # fmt: skip


def token_rate(texts: list[str]) -> float:
    """Return the number of marks of Python per word, over all texts; 0 without any word."""
    words = sum(len(WORDS.findall(text)) for text in texts)
    marks = sum(len(MARKS.findall(text)) for text in texts)
    return marks / words if words else 0.0


def parse_share(texts: list[str]) -> float:
    """Return the share of texts that `parses` accepts; 0 without any text."""
    return sum(map(parses, texts)) / len(texts) if texts else 0.0


def parses(text: str) -> bool:
    """Return whether a text, without the incomplete lines at its end, is Python with a statement in it.

    A sample ends where its tokens do: lines are dropped from the end, half of them at most, until
    the rest parses. A name, a number, a string or a tuple of names is no statement, nor is a bare
    comparison such as prose gives by chance; a call is.
    """
    lines = text.rstrip().splitlines()
    for kept in range(len(lines), (len(lines) - 1) // 2, -1):
        try:
            tree = ast.parse("\n".join(lines[:kept]) + "\n")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return any(
            isinstance(node, MINIMUM_STATEMENTS) or isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
            for node in tree.body
        )
    return False
