"""README and the documentation: what they tell a user to paste works, and their links lead somewhere."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from textwrap import dedent

import pytest
from architecture import keys
from conftest import ROOT, Workflow, copied
from openers import LOCKS
from ruamel.yaml import YAML
from tpulm.config.reading import schema
from tpulm.config.schema import ConfigValidator
from tpulm.config.sweeps import expand
from tpulm.core.accelerators import ANY_DEVICES

DOCS = ROOT / "docs"
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if not {"_build", "reference"} & set(path.parts)]
READ = [*PAGES, *sorted(ROOT.glob("*.md")), *sorted((ROOT / "profiles").glob("*/README.md"))]
PASTED = [ROOT / "README.md", DOCS / "tutorial.md", *sorted((DOCS / "guides").glob("*.md"))]
# What is in the environment of the workflow, as the table names it; the others are in those of tests/openers.py.
HERE = ("tokenizers", "pandas", "TensorFlow", "safetensors", "keras-hub", "TensorBoard")
QUICK = ("tokenizers", "pandas", "safetensors")
# What is wrong in a piece of a config only because the rest of the config is missing.
MISSING = ("required", "dependentRequired")


def named(path: Path) -> str:
    """Return the path of a page in the repository."""
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str) -> list[str]:
    """Return the blocks of a page in a language."""
    text = path.read_text(encoding="utf-8")
    return [dedent(block) for _, block in re.findall(rf"^( *)```{language}\n(.*?)^\1```", text, re.S | re.M)]


def rows() -> list[tuple[str, str, str]]:
    """Return the rows of the table of what opens what: what comes out, what opens it, and the program."""
    text = (DOCS / "guides/use-models.md").read_text(encoding="utf-8")
    table = text.split("| opens in |")[1].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table]
    return [(what, by, "\n".join(re.findall(r"`([^`]+)`", lines))) for what, by, lines in cells]


def short(program: str) -> str:
    """Return a program for the fixture `trained`, whose masked model has fewer steps."""
    return program.replace("00002100", "00000020")


def test_what_needs_no_framework_opens(trained, monkeypatch):
    monkeypatch.chdir(trained.folder)
    assert set(QUICK) <= {by for _, by, _ in rows()}
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


def links(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the file and the heading of every link of a page that is not of the web."""
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"\w+:", link):
            file, _, heading = link.partition("#")
            yield file, heading


def headings(path: Path) -> set[str]:
    """Return what links may name after `#` in a page."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.unit
@pytest.mark.parametrize("path", READ, ids=named)
def test_pieces_of_configs_are_of_the_schema_and_links_lead_somewhere(path):
    for block in blocks(path, "yaml"):
        piece = expand(YAML(typ="safe", pure=True).load(block))
        for error in ConfigValidator(schema()).iter_errors(piece):
            inner = {one.validator for one in error.context}
            assert error.validator in MISSING or (inner and inner <= set(MISSING)), f"{block}\n{error.message}"
    for file, heading in links(path):
        target = (path.parent / file).resolve() if file else path
        assert DOCS / "reference" not in target.parents, "generated, so not there on a forge: name the schema"
        assert target.exists(), file
        assert not heading or target.suffix != ".md" or heading in headings(target), f"{file}#{heading}"


@pytest.mark.unit
def test_the_reference_names_every_key_artifact_and_target(tmp_path):
    subprocess.run([sys.executable, ROOT / "tools/reference.py", tmp_path], check=True, cwd=ROOT)
    config = (tmp_path / "config.md").read_text(encoding="utf-8")
    for key in keys(schema()):
        assert f"`{key.rpartition('.')[2]}`" in config, key
    for path in PAGES:
        for anchor in re.findall(r"config\.schema\.yaml#([\w-]+)", path.read_text(encoding="utf-8")):
            assert f"({anchor})=" in config, f"{path}: {anchor}"
    assert re.search(r"\| `mlm_probability` \|.*\| `0.15` \|", config)
    rules = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "rules").glob("*.smk"))
    artifacts = (tmp_path / "artifacts.md").read_text(encoding="utf-8")
    for name, body in re.findall(r"^ *rule (\w+):\n(.*?)(?=^ *rule |\Z)", rules, re.M | re.S):
        if re.search(r"^ +output:", body, re.M):
            assert f"`{name}`" in artifacts, name
        if '"""Target:' in body:
            assert f"`snakemake {name}`" in (tmp_path / "targets.md").read_text(encoding="utf-8"), name
    assert "`/" not in artifacts


@pytest.mark.long
def test_the_documentation_builds_without_a_warning():
    subprocess.run(["make", "docs"], check=True, cwd=ROOT)
    for page in ("index", "tutorial", "guides/data", "reference/config", "benchmarks/index", "notebooks/quickstart"):
        assert (DOCS / f"_build/html/{page}.html").stat().st_size > 5_000


@pytest.mark.long
@pytest.mark.parametrize("path", [path for path in PASTED if blocks(path, "sh")], ids=named)
def test_the_commands_of_a_page_run_as_pasted(path, trained, tmp_path):
    """At the size of the fixture, without those of make, which set the environment up."""
    workflow = copied(trained, tmp_path)
    shutil.copytree(DOCS / "guides", workflow / "docs/guides")
    shutil.copy(ROOT / "README.md", workflow.folder)
    commands = [re.sub(r"^make\b.*\n", "", block, flags=re.M) for block in blocks(path, "sh")]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = "\n".join(["set -e", *commands]).replace(". .venv/bin/activate\n", "")
    done = subprocess.run(["bash", "-c", script], cwd=workflow.folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def execute(notebook: str, workflow: Workflow, folder: Path, **environment: str) -> None:
    """Execute a notebook in a folder; in place of its git and make, scripts copy a workflow and link an environment."""
    subprocess.run(["make", ".venv-docs/ready"], check=True, cwd=ROOT)
    commands = folder / "bin"
    commands.mkdir()
    venv = Path(sys.executable).parents[1]
    for name, line in (("git", f"cp -a {workflow.folder} workflow"), ("make", f"ln -s {venv} .venv")):
        (commands / name).write_text(f"#!/bin/sh\n{line}\n")
        (commands / name).chmod(0o755)
    shutil.copy(DOCS / f"notebooks/{notebook}.ipynb", folder)
    command = [ROOT / ".venv-docs/bin/jupyter", "execute", "--inplace", "--timeout=3600", f"{notebook}.ipynb"]
    path = f"{commands}:{os.environ['PATH']}"
    subprocess.run(command, check=True, cwd=folder, env=os.environ | environment | {"PATH": path})


@pytest.mark.long
def test_the_quickstart_notebook_runs(finished_workflow, tmp_path):
    """From the finished example run: the report, a change, prompts."""
    execute("quickstart", finished_workflow, tmp_path)
    ran = tmp_path / "workflow/results"
    assert (ran / "report.html").exists() and (ran / "compare/runs.csv").exists()
    assert "learning_rate: 1e-2" in (tmp_path / "workflow/config.yaml").read_text()
    assert "srcdoc=" in (tmp_path / "quickstart.ipynb").read_text()


@pytest.mark.long
def test_the_notebook_of_gemma_runs_on_eight_devices(trained, tmp_path):
    """With a model of the fixture, and without a network."""
    rows = [{"prompt": f"What is after {number}?", "response": f"It is {number + 1}."} for number in range(100)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    settings = {"MODEL": str(trained / "results/base/small/preset"), "DATA": str(tmp_path / "rows.jsonl")}
    settings |= {"ACCELERATOR": "v5e-8", ANY_DEVICES: "1", "KAGGLE_USERNAME": "x", "KAGGLE_KEY": "x"}
    execute("gemma-lora", Workflow(tmp_path / "source"), tmp_path, **settings)
    results = tmp_path / "workflow/experiments/gemma/results"
    timings = [path.read_text() for path in (results / "finetune/gemma/checkpoints").glob("*/timings.csv")]
    assert timings and all('""cpu"": 8' in text for text in timings) and (results / "report.html").exists()
