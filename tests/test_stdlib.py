"""The text that is on every machine: Python's own documentation and source. Reading all of it takes seconds."""

import ast

from test_corpus import build
from tpulm.corpus.stdlib import python_docs, python_source


def test_prose_of_python(tmp_path):
    docs = python_docs()
    assert 9_000 < len(docs) < 15_000 and len(set(docs)) == len(docs)
    assert 1_200_000 < sum(map(len, docs)) < 2_500_000
    assert all(len(text) > 40 and "\n" not in text and "``" not in text for text in docs)
    texts, _ = build(tmp_path, {"train": docs})
    assert sum(len(found) for found in texts.values()) == len(docs)
    assert len({" ".join(text.split()) for found in texts.values() for text in found}) == len(docs)


def test_source_of_python():
    code = python_source()
    assert 7_000 < len(code) < 13_000 and len(set(code)) == len(code)
    assert all(100 <= len(text) <= 1500 for text in code)
    for text in code[::20]:
        (node,) = ast.parse(text).body
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is None
