"""The workflow as a module of another one, with a prefix and renamed rules."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

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


def configure(workflow, **sections):
    config = read_yaml(workflow / "small.yaml")
    for section, keys in sections.items():
        config[section] = config.get(section, {}) | keys
    write_yaml(workflow / "small.yaml", config)


def count(printed):
    return dict(re.findall(r"^(lm_\w+) +(\d+)$", printed, re.M))


def test_a_module_publishes(outer, monkeypatch):
    configure(outer, publish={"hub": "me/models", "artifacts": ["tokenizer"]})
    printed = outer("lm_publish", "--cores", "1", check=False).stdout
    assert "error: HF_TOKEN " in printed
    with loopback_hub.served() as hub:
        for name, value in (("HF_ENDPOINT", hub.url), ("HF_TOKEN", loopback_hub.TOKEN)):
            monkeypatch.setenv(name, value)
        outer("lm_publish", "--cores", "2")
        files = hub.repositories["models/me/models-tokenizer"].files()
        # What a repository has is named without the prefix.
        made = outer / "lm/results/tokenizer"
        assert files["tokenizer.json"] == (made / "tokenizer.json").read_bytes()
        assert files["README.md"] == (made / "README.md").read_bytes()
        receipt = json.loads((outer / "lm/results/publish/hub/tokenizer.json").read_text())
        assert receipt["files"] and set(receipt["files"]) <= set(files)
        assert "Nothing to be done" in outer("lm_publish", "-n").stdout


def test_a_module_makes_the_same_bytes(outer, trained):
    """Up to the records, and with one core where `trained` had two; all of it is one of the long tests."""
    jobs = count(outer("-n").stdout)
    assert jobs["lm_train_mlm_tensorflow"] == jobs["lm_train_finetune"] == "2" and jobs["lm_write_shard"] == "6"
    outer("lm_tfrecords", "--cores", "1")
    made, expected = fingerprints(outer / "lm/results"), fingerprints(trained / "results")
    assert len(made) > 20 and made == {name: expected[name] for name in made}
    assert not (outer / "results").exists()
    assert "Nothing to be done" in outer("lm_tfrecords", "-n").stdout
    # How a file came to be is told of a module, too: with its scripts, logs and the records of its jobs.
    command = [sys.executable, ROOT / "tools/provenance.py", "lm/results/tfrecords/manifest.json"]
    told = subprocess.check_output(command, cwd=outer.folder, text=True)
    assert re.search(r" by lm_merge_manifest  \(\S+, log lm/logs/", told), told
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


def test_a_module_is_not_archived(outer):
    done = outer("lm_archive", "-n", check=False)
    assert done.returncode == 1 and "error: a module of another workflow " in done.stdout


def test_a_module_needs_its_checks(outer, fresh):
    write(outer, fresh, onstart="")
    done = outer("lm_corpus", "--cores", "1", check=False)
    assert done.returncode == 1 and "error: the checks before the first job did not run: " in done.stdout


def test_a_second_start_of_a_module_is_refused(outer):
    inner = (outer / "profiles").resolve().parent
    waiting = "import time\nfrom pathlib import Path\nPath('started').touch()\ntime.sleep(600)\n"
    (inner / "scripts/corpus/read_part.py").write_text(waiting)
    command = [str(Path(sys.executable).with_name("snakemake")), "lm_corpus", "--cores", "1"]
    first = subprocess.Popen(
        command, cwd=outer.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        while not (outer / "started").exists():
            assert first.poll() is None
            time.sleep(0.1)
        done = outer("lm_corpus", "--cores", "1", check=False)
        assert done.returncode == 1 and "error: another snakemake is running in this folder" in done.stdout
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
