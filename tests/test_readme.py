"""The table of README that says what opens what comes out: each of its lines is run, as it is pasted."""

import io
import re
import subprocess
import sys
from contextlib import redirect_stdout

import pytest
from conftest import ROOT, copied
from openers import LOCKS

# What is in the environment of the workflow, as the table names it; the others are in those of tests/openers.py.
HERE = ("tokenizers", "pandas", "TensorFlow", "safetensors", "keras-hub", "TensorBoard")
QUICK = ("tokenizers", "pandas", "safetensors")


def rows() -> list[tuple[str, str, str]]:
    """Return the rows of the table: what comes out, what opens it, and the program."""
    table = (ROOT / "README.md").read_text().split("| what opens it |")[1].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table]
    return [(what, by, "\n".join(re.findall(r"`([^`]+)`", lines))) for what, by, lines in cells]


def short(program: str) -> str:
    """Return a program for the fixture `trained`, whose masked model has fewer steps."""
    return program.replace("00001500", "00000020")


def test_what_needs_no_framework_opens(trained, monkeypatch):
    monkeypatch.chdir(trained.folder)
    for what, by, program in rows():
        if by in QUICK:
            with redirect_stdout(io.StringIO()) as printed:
                exec(short(program), {})
            assert len(printed.getvalue()) > 10, what


@pytest.mark.long
def test_every_line_of_the_table_opens_what_it_says(trained, openers, tmp_path):
    workflow = copied(trained, tmp_path)
    workflow("cards", "--cores", "2")
    for what, by, program in rows():
        if by in HERE:
            command = [sys.executable, "-c", short(program)]
            done = subprocess.run(command, cwd=workflow.folder, capture_output=True, text=True)
            assert done.returncode == 0, f"{what}:\n{done.stderr[-3000:]}"
            printed = [done.stdout]
        else:
            environments = [which for which in LOCKS if which[-1] in by] or ["transformers 5"]
            printed = [openers(which, short(program), folder=workflow.folder) for which in environments]
        assert all(text.strip() not in ("", "0", "[]", "{}") for text in printed), what
