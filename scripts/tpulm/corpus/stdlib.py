"""Text that every machine has: CPython's documentation and the source of its standard library."""

import ast
import inspect
import re
import sysconfig
import textwrap
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

# Folders and files that are no part of the library proper, differ from one installation to the next, or hold
# syntax that does not parse on purpose.
SKIPPED = {"dist-packages", "distutils", "ensurepip", "idle_test", "idlelib", "lib-dynload", "lib2to3", "site-packages"}
SKIPPED |= {"test", "tests", "tkinter", "turtledemo"}
SKIPPED_FILES = re.compile(r"_distutils_system_mod|_sysconfigdata.*|sitecustomize|usercustomize|topics|turtle")
SHORTEST_PARAGRAPH = 41  # characters
FUNCTION_CHARACTERS = range(100, 1501)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (*DEFINITIONS, ast.ClassDef, ast.Module)


def python_docs() -> list[str]:
    """Return the distinct paragraphs of prose in pydoc's topics and in the standard library's docstrings."""
    from pydoc_data.topics import topics

    pages = [textwrap.dedent(topics[name]) for name in sorted(topics)]
    pages += [doc for _, tree in stdlib_sources() for doc in docstrings(tree)]
    return list(dict.fromkeys(paragraph for page in pages for paragraph in paragraphs(page)))


def python_source() -> list[str]:
    """Return the distinct functions and methods of the standard library, without their docstrings."""
    return list(dict.fromkeys(text for source, tree in stdlib_sources() for text in functions(source, tree)))


def stdlib_sources(root: str | None = None) -> Iterator[tuple[str, ast.Module]]:
    """Yield the text and the syntax tree of each module of the standard library, in the order of their names."""
    folder = Path(root or sysconfig.get_path("stdlib"))
    paths = [path.relative_to(folder) for path in folder.rglob("*.py")]
    for path in sorted(paths, key=lambda path: path.parts):
        if SKIPPED.intersection(path.parts) or SKIPPED_FILES.fullmatch(path.stem) or "-" in path.parts[0]:
            continue
        with tokenize.open(folder / path) as file:  # decodes as the file's coding line says
            source = file.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about escapes in strings that a later Python refuses
            yield source, ast.parse(source)


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and its functions, in the order of the source."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, DOCUMENTED) and (doc := ast.get_docstring(node)):
            yield doc
        nodes += [child for child in reversed(getattr(node, "body", ())) if isinstance(child, ast.stmt)]


def functions(source: str, tree: ast.Module) -> Iterator[str]:
    """Yield the outermost functions and methods of a module, dedented and without docstrings."""
    lines = source.split("\n")
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, DEFINITIONS):
            text = function_text(lines, node)
            if len(text) in FUNCTION_CHARACTERS and not text[0].isspace():
                yield text
        else:
            nodes += [child for child in reversed(getattr(node, "body", ())) if isinstance(child, ast.stmt)]


def function_text(lines: list[str], node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the source of a function with its decorators, dedented; "" for one that has only a docstring."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    stop = ends_at(node)
    source = lines[first:stop]
    doc = node.body[0]
    if ast.get_docstring(node, clean=False) is not None:
        if len(node.body) == 1 or doc.lineno == node.lineno or node.body[1].lineno <= ends_at(doc):
            return ""
        after = ends_at(doc)
        while not lines[after].strip():
            after += 1
        source = lines[first : doc.lineno - 1] + lines[after:stop]
    return textwrap.dedent("\n".join(source))


def ends_at(node: ast.stmt) -> int:
    """Return the number of the last line of a statement that was parsed from a text."""
    assert node.end_lineno is not None
    return node.end_lineno


def paragraphs(page: str) -> Iterator[str]:
    """Yield the paragraphs of prose of a page of documentation, each in one line, its reST markup taken away."""
    for block in re.split(r"\n[ \t]*\n", inspect.cleandoc(page)):
        for text in items(block):
            text = plain(text)
            if len(text) >= SHORTEST_PARAGRAPH and is_prose(text):
                yield text


def items(block: str) -> Iterable[str]:
    """Return the block, or the items of a list; nothing for an interactive example."""
    lines = block.split("\n")
    if any(re.match(r"\s*(>>>|\.\.\. )", line) for line in lines):
        return []
    return re.split(r"\n(?=\s*(?:[-*+o•]|\(?\d+[.)])\s+\S)", block)


ROLE = re.compile(r":[a-z][a-z:+-]*:`~?!?([^`<]+?)(?:\s*<[^`>]*>)?`")
MARKUP = [
    (re.compile(r"^\s*(?:[-*+o•]|\(?\d+[.)])\s+"), ""),  # the sign of a list item
    (ROLE, r"\1"),
    (re.compile(r"``([^`]*)``|`([^`']*)`_{0,2}"), r"\1\2"),
    (re.compile(r"(?<![\w*])\*{1,2}([A-Za-z_][^*]*?)\*{1,2}(?![\w*])"), r"\1"),
    (re.compile(r"::(?=\s|$)"), ":"),
    (re.compile(r"\s*\[\d+\]_?"), ""),  # a footnote
]


def plain(text: str) -> str:
    """Return text in one line, without the markup of reStructuredText."""
    text = " ".join(text.split())
    for pattern, replacement in MARKUP:
        text = pattern.sub(replacement, text)
    return text.strip()


CODE = re.compile(r"(def|class) \w+[(:]|@\w|import \w|from \S+ import |python\d? -|[$#] ")
WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*[.,;:!?)\"']*")


def is_prose(text: str) -> bool:
    """Return whether a paragraph is English sentences, and not code, a table, a signature or a heading."""
    words = text.split()
    letters = sum(character.isalpha() or character == " " for character in text)
    plain_words = sum(WORD.fullmatch(word) is not None for word in words)
    return (
        letters >= 0.8 * len(text)
        and plain_words >= 0.6 * len(words)
        and len(words) >= 5
        and not CODE.match(text)
        and not re.search(r"={3}|-{3}|_{3}|\*{3}|\.{4}|\+--|\|", text)
    )
