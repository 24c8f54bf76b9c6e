"""The rules of the house: what makes reruns exact and the workflow legible, held against the files as they are."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from tpulm.core.code_digest import backend_of_branch

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts"


def rules():
    """Return (script, text) of every rule that runs a script."""
    found = []
    for file in sorted((ROOT / "rules").glob("*.smk")):
        _, *parts = re.split(r"^ *rule (\w+):\n", file.read_text(), flags=re.M)
        named = zip(parts[::2], parts[1::2], strict=True)
        found += [(f"{file.stem}/{name}", body) for name, body in named if "script:" in body]
    return found


@pytest.mark.unit
def test_each_rule_declares_the_code_of_its_script():
    assert len(rules()) > 20
    for name, body in rules():
        assert f'"../scripts/{name}.py"' in body, name
        environment = body.partition("conda:")[2]
        declared = [f'"{stage}"' for stage in re.findall(r'"\.\./envs/(\w+)\.yaml"', environment)]
        backends = re.findall(r'f"\.\./envs/\{(.+\.backend)\}\.yaml"', environment)
        declared += [f"lambda w: {backend}" for backend in backends]
        assert any(f'code=code_digest("{name}", {one})' in body for one in declared), name
        # What a script does for one backend is only followed where the job says which.
        nodes = ast.walk(ast.parse((SCRIPTS / f"{name}.py").read_text()))
        assert any(map(backend_of_branch, nodes)) == (".backend" in environment), name


@pytest.mark.unit
def test_the_version_is_the_same_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[0] == version
