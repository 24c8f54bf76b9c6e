"""The archive of a finished run: the same bytes each time, checked, and read by what reads such crates."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, Workflow, copied, existing
from tpulm.release.rebuild import command_of, rebuild, unpack
from tpulm.release.verify import MANIFEST, read_manifest

ARCHIVE = "results/archive/models-1.zip"
# The config is one of several files of this name, in a folder of its own, and not the one of the source.
GIVEN = ("--configfile", "größe/config.yaml", "--cores", "2")
# A file of each kind, by the beginning and the end of its name.
ENDS = [
    ("results/report", ".html"), ("results/corpus/", ".parquet"), ("", ".tfrecord"), ("results/tokenizer/", ".json"),
    ("results/mlm/", "metrics.json"), ("", ".csv"), ("results/", "README.md"), ("source/envs/", ".txt"),
    ("source/scripts/", ".py"), ("config/given/", ".yaml"), ("config/", "completed.json"), ("verify", ".py"),
]  # fmt: skip


@pytest.fixture(scope="module")
def archived(trained, tmp_path_factory) -> Workflow:
    """A finished run with its archive; not to be changed."""
    workflow = copied(trained, tmp_path_factory.mktemp("archived"))
    workflow.steady = True
    (workflow / "größe").mkdir()
    (workflow / "config.yaml").rename(workflow / "größe/config.yaml")
    shutil.copy2(ROOT / "config.yaml", workflow.folder)
    printed = workflow("archive", *GIVEN).stdout
    assert re.search(r"left out, .*archive\.largest_file_mb, 1: .*weights\.safetensors \(\d", printed)
    return workflow


def test_the_same_results_give_the_same_bytes(archived):
    before = hashlib.sha256((archived / ARCHIVE).read_bytes()).digest()
    archived("archive", *GIVEN, "--forcerun", "write_archive")
    assert hashlib.sha256((archived / ARCHIVE).read_bytes()).digest() == before
    assert (archived / ARCHIVE).stat().st_size < 10e6
    command = ["sha256sum", "--check", f"{Path(ARCHIVE).name}.sha256"]
    subprocess.run(command, cwd=(archived / ARCHIVE).parent, check=True)


def test_an_archive_answers_alone(archived):
    # Run by itself, without anything installed.
    subprocess.run([sys.executable, "-I", "-S", archived / ARCHIVE], check=True)
    with zipfile.ZipFile(archived / ARCHIVE) as archive:
        names, jobs = archive.namelist(), json.loads(archive.read("jobs.json"))
        artifacts = json.loads(archive.read(MANIFEST))["artifacts"]
    for start, end in ENDS:
        assert any(name.startswith(start) and name.endswith(end) for name in names), (start, end)
    train = next(job for job in jobs if job["id"] == "mlm/tiny/00000020")
    assert train["rule"] == "train_mlm_tensorflow" and train["params"]["last"] == 20
    tuned = next(job for job in jobs if job["id"] == "finetune/python/00000010")
    assert tuned["accelerators"] == {"cpu": 8}  # as JAX divides this machine
    assert train["host"]["processors"] > 0 and train["software"]["tensorflow"]
    assert [attempt["exit"] for attempt in train["attempts"]] == [0] and train["attempts"][0]["cpu_seconds"] > 0
    assert all(train["inputs"].values()) and all(train["code"].values())
    # Every file that there is, but what is no artifact of `all`.
    there = {str(path.relative_to(archived.folder)) for path in (archived / "results").rglob("*") if path.is_file()}
    kept = ("results/archive/", "results/jobs/")  # what stays when a run is made anew
    there = {path for path in there if "/." not in path and not path.startswith(kept)}
    assert set(artifacts) == there
    for path, facts in artifacts.items():
        assert hashlib.sha256((archived / path).read_bytes()).hexdigest() == facts["sha256"]
    assert artifacts["results/mlm/tiny/timings.csv"]["compare"] == "time"
    assert artifacts["results/corpus/train.parquet"]["compare"] == "bytes"
    assert artifacts["results/mlm/tiny/metrics.json"]["compare"] == "numbers"


def test_the_archive_alone_describes_the_whole_run(archived, tmp_path, monkeypatch):
    alone = tmp_path / "alone"
    alone.mkdir()
    monkeypatch.chdir(alone)
    manifest = read_manifest(archived / ARCHIVE)
    with zipfile.ZipFile(archived / ARCHIVE) as archive:
        assert unpack(archive, manifest, alone / "again") is None
        metadata = json.loads(archive.read("ro-crate-metadata.json"))
    entities = {entity["@id"] for entity in metadata["@graph"]}
    assert "source/report/page/jobs.html" in entities and not any(name.startswith("#report/page") for name in entities)
    assert manifest["outside"] == {} and manifest["configfiles"] == {"config/given/1.yaml": "größe/config.yaml"}
    assert (alone / "again/config.yaml").read_bytes() == (ROOT / "config.yaml").read_bytes()
    (program, *arguments) = command_of(manifest, "2")
    planned = existing(alone / "again")(*arguments, "-n").stdout
    before = archived(ARCHIVE, *GIVEN, "-n", "--forceall").stdout
    counts = [re.findall(r"^(\w+) +(\d+)$", printed, re.M) for printed in (planned, before)]
    assert program == ".venv/bin/snakemake" and len(counts[0]) > 30 and counts[0] == counts[1]


def test_provenance_goes_back_to_the_text(archived, tmp_path):
    tool, file = ROOT / "tools/provenance.py", "results/finetune/python/metrics.json"
    lines = subprocess.check_output([sys.executable, tool, file], cwd=archived.folder, text=True)
    assert lines.startswith(f"{file}\n  by evaluate_finetune  ") and '"source": "python-source"' in lines
    assert all(rule in lines for rule in ("train_finetune", "train_base", "write_causal_shard", "read_part"))
    kept = subprocess.check_output([sys.executable, tool, file, "--from", archived / ARCHIVE], cwd=tmp_path, text=True)
    # The archive has checksums that Snakemake had not taken when a job began, such as those of folders.
    one, other = ([line.split("  ")[-1] for line in text.splitlines() if " by " in line] for text in (kept, lines))
    assert one == other
    done = subprocess.run([sys.executable, tool, "nothing"], cwd=archived.folder, capture_output=True, text=True)
    assert done.returncode and done.stderr.startswith("error: ") and "nothing" in done.stderr


def test_earlier_runs_are_kept_and_compared(archived, tmp_path):
    workflow = copied(archived, tmp_path)
    workflow.steady = True
    (kept,) = json.loads((workflow / "results/history/mlm/tiny.json").read_text())
    state = (workflow / "results/mlm/tiny/checkpoints/00000020/state.json").read_bytes()
    assert kept["hash"] == hashlib.sha256(state).hexdigest()
    assert kept["metrics"] == json.loads((workflow / "results/mlm/tiny/metrics.json").read_text())
    scores = json.loads((workflow / "results/evaluation/mlm/tiny/scores.json").read_text())["scores"]
    assert kept["scores"] == scores != []
    before = kept | {"hash": "0123456789abcdef" * 4, "recipe": kept["recipe"] | {"learning_rate": 0.5}}
    (workflow / "results/history/mlm/tiny.json").write_text(json.dumps([before, kept]))
    shutil.rmtree(workflow / "results/jobs")  # as of 0.2.0
    (workflow / "results/history/mlm/gone.json").write_text(json.dumps([kept | {"name": "gone"}]))
    printed = workflow("compare", *GIVEN).stdout
    assert "tiny 01234567" in printed and "learning_rate=0.5" in printed
    assert f"gone {kept['hash'][:8]}" in printed and f"tiny {kept['hash'][:8]}" not in printed
    # A run with other weights is added, and nothing is lost.
    workflow("results/history/mlm/tiny.json", *GIVEN, "--forcerun", "keep_run")
    found = json.loads((workflow / "results/history/mlm/tiny.json").read_text())
    assert [run["hash"] for run in found] == [before["hash"], kept["hash"]]


def test_what_was_changed_by_hand_is_not_archived(archived, tmp_path):
    workflow = copied(archived, tmp_path)
    workflow.steady = True
    path = workflow / "results/mlm/tiny/fill_mask.json"
    path.write_text(path.read_text().replace("0.", "1.", 1))
    done = workflow("archive", *GIVEN, "--forcerun", "write_archive", check=False)
    assert done.returncode == 1 and "error: results/mlm/tiny/fill_mask.json " in done.stdout


# The validator would fetch the JSON-LD contexts that the metadata names: ro-crate-py has their terms, but for three.
VALIDATE = """
import json, sys
from pathlib import Path
import rocrate
from rocrate_validator import models, services
from rocrate_validator.utils import http
context = json.loads((Path(rocrate.__file__).parent / "data/ro-crate.jsonld").read_text())
context["@context"]["ComputationalWorkflow"] = "https://bioschemas.org/ComputationalWorkflow"
for term in ("resourceUsage", "sha256"):
    context["@context"][term] = "https://w3id.org/ro/terms/workflow-run#" + term
class Kept:
    ok, status_code, headers = True, 200, {"Content-Type": "application/ld+json"}
    def json(self):
        return context
known = ("https://w3id.org/ro/crate/1.1/context", "https://w3id.org/ro/terms/workflow-run/context")
http.HttpRequester.get = lambda self, url, **_: {name: Kept() for name in known}[url]
settings = services.ValidationSettings(
    rocrate_uri=sys.argv[1], profile_identifier="provenance-run-crate", skip_availability_check=True,
    requirement_severity=models.Severity.REQUIRED, offline=True,
)
found = services.validate(settings)
for issue in found.get_issues():
    print(issue.severity, issue.check.identifier, issue.message)
assert not found.has_issues(models.Severity.REQUIRED)
"""


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_the_crate_is_a_provenance_run_crate(archived, openers, tmp_path):
    with zipfile.ZipFile(archived / ARCHIVE) as archive:
        archive.extractall(tmp_path)
    openers("crates", VALIDATE, str(tmp_path))
    report = openers("crates", "import sys; from runcrate.cli import cli; cli(['report', sys.argv[1]])", str(tmp_path))
    assert "train_mlm_" in report and "results/mlm/tiny/metrics.json" in report


@pytest.mark.unit
def test_a_rebuild_asks_for_the_python_of_the_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "models.zip", "w") as kept:
        kept.writestr("jobs.json", json.dumps([{"host": None}, {"host": {"python": "3.2.6"}}]))
    said = rebuild(tmp_path / "models.zip", {"files": {}, "outside": {}}, tmp_path / "again", "local", "1")
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert said.startswith("error: ") and here in said and "3.2" in said


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_a_run_is_made_again(archived, tmp_path):
    """An environment is installed: this needs a package index."""
    command = [sys.executable, shutil.copy2(archived / ARCHIVE, tmp_path), "--rebuild", "again"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "the same bytes" in done.stdout and "different" not in done.stdout
