"""The workflow as a module of another one, with a prefix and renamed rules."""

import json
import platform
import re
import subprocess
import sys

import loopback_hub
import pytest
from conftest import ROOT, existing, reduced, write_yaml
from kills import fingerprints
from tpulm.config.reading import read_yaml

OUTER = """
configfile: "small.yaml"


module lm:
    snakefile: {snakefile!r}
    config: config
    prefix: "lm"


use rule * from lm as lm_*

{onstart}

rule everything:
    default_target: True
    input:
        rules.lm_all.input,
"""
ONSTART = """
onstart:
    lm.onstart()

"""


@pytest.fixture
def outer(fresh, tmp_path):
    """A workflow in a folder of its own that has this one as a module; the profile is the shipped one."""
    reduced(fresh)
    workflow = existing(tmp_path / "outer")
    workflow.folder.mkdir()
    (workflow / "profiles").symlink_to(fresh / "profiles")
    (fresh / "small.yaml").rename(workflow / "small.yaml")
    write(workflow, fresh)
    return workflow


def write(workflow, inner, onstart=ONSTART):
    (workflow / "Snakefile").write_text(OUTER.format(snakefile=str(inner / "Snakefile"), onstart=onstart))


def test_a_module_makes_the_same_bytes_and_publishes_them(outer, trained, monkeypatch):
    """Up to the tokenizer, and with one core where `trained` had two; all of it is one of the long tests."""
    section = {"publish": {"hub": "me/models", "artifacts": ["tokenizer"]}}
    write_yaml(outer / "small.yaml", read_yaml(outer / "small.yaml") | section)
    with loopback_hub.served() as hub:
        for name, value in (("HF_ENDPOINT", hub.url), ("HF_TOKEN", loopback_hub.TOKEN)):
            monkeypatch.setenv(name, value)
        outer("lm_publish", "--cores", "1")
        files = hub.repositories["models/me/models-tokenizer"].files()
        jobs = dict(re.findall(r"^(lm_\w+) +(\d+)$", outer("-n").stdout, re.M))
    assert jobs["lm_train_mlm_tensorflow"] == jobs["lm_train_finetune"] == "2" and "lm_train_tokenizer" not in jobs
    results = outer / "lm/results"
    # What a repository has is named without the prefix.
    for name in ("tokenizer.json", "README.md"):
        assert files[name] == (results / "tokenizer" / name).read_bytes()
    receipt = json.loads((results / "publish/hub/tokenizer.json").read_text())
    assert receipt["files"] and set(receipt["files"]) <= set(files)
    made, expected = fingerprints(results), fingerprints(trained / "results")
    of_publishing = {name for name in made if name.startswith("publish/") or name.endswith("/README.md")}
    assert len(made) > 8 and all(made[name] == expected.get(name) for name in made.keys() - of_publishing)
    assert not (outer / "results").exists()
    # How a file came to be is told of a module, too: with its scripts, logs and the records of its jobs.
    command = [sys.executable, ROOT / "tools/provenance.py", "lm/results/tokenizer/tokenizer.json"]
    told = subprocess.check_output(command, cwd=outer.folder, text=True)
    assert re.search(r" by lm_train_tokenizer  \(\S+, log lm/logs/", told), told
    assert " by lm_read_part  (" in told and told.count(f"Python {platform.python_version()}") == told.count(" by lm_")


@pytest.mark.long
def test_a_module_makes_the_same_models(outer, trained):
    """A whole run, with one core where `trained` had two."""
    outer("--cores", "1")
    assert fingerprints(outer / "lm/results") == fingerprints(trained / "results")
    page = json.loads((outer / "lm/results/jobs/report.jsonl").read_text().splitlines()[0])["recipe"]
    assert len(page["runs"]) == 3 and all((outer / run["log"]).is_file() for run in page["runs"])
    said = outer("lm_verify", "lm_clean").stdout
    assert re.search(r"\[verify\] all [\d,]+ files are ok", said) and "[clean] 0 files " in said


def test_what_a_module_refuses(outer, fresh):
    """Archives, and to run without its checks."""

    def refused(*arguments):
        done = outer(*arguments, check=False)
        assert done.returncode == 1
        return done.stdout

    assert "error: a module of another workflow " in refused("lm_archive", "-n")
    write(outer, fresh, onstart="")
    assert "error: the checks before the first job did not run" in refused("lm_corpus", "--cores", "1")
