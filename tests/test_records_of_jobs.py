"""Records of jobs and of source: attempts, what an interruption repeated, where a file is from; without Snakemake."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from conftest import ROOT, write_record
from loopback_bucket import in_place_of_google
from tpulm.config.outline import Outline
from tpulm.config.publications import selected_publications
from tpulm.config.reading import read_config
from tpulm.core import job_record, ledger
from tpulm.core.errors import UserError
from tpulm.core.ledger import jobs_of, makers
from tpulm.core.live_metrics import LiveMetrics
from tpulm.release.archive import source_files, version_of
from tpulm.release.integrity import check_artifacts, read_otherwise
from tpulm.release.publishing import checked, last_receipt
from tpulm.workflow.upgrade import take_over

pytestmark = pytest.mark.unit

# What a script does, killed or ended in several ways; its files are below a place.
JOB = """
import __main__, os, sys
from types import SimpleNamespace
from snakemake.iocontainers import InputFiles
from tpulm.core import job_record
from tpulm.core.code_digest import code_of
how, place = sys.argv[1:]
os.makedirs(place + "results", exist_ok=True)
open(place + "results/text", "w").write("text")
inputs = InputFiles(fromdict={"text": place + "results/text"})
params = {"recipe": {"last": 20}, "code": code_of("scripts/mlm/train_mlm_jax.py", "jax").param()}
__main__.snakemake = SimpleNamespace(rule="train", wildcards={}, threads=1, params=params, input=inputs,
                                     output=[place + "results/model"])
with job_record.recorded(place + "logs/train.log", print):
    if how == "killed":
        os._exit(9)
    if how == "full":
        os.unlink(place + "results/jobs/train.jsonl")
        os.symlink("/dev/full", place + "results/jobs/train.jsonl")
        sys.exit()
    if how == "failed":
        sys.exit(1)
    job_record.note(resumed_from_step=10)
    open(place + "results/model", "w").write("weights")
"""
CODES = {"killed": 9, "failed": 1, "full": 1, "well": 0}


def attempt(folder, how, place=""):
    return warm.run("ledger", JOB, how, place, folder=folder, code=CODES[how])


def test_every_attempt_is_recorded_until_the_job_is_stale_again(tmp_path):
    for how in ("killed", "failed", "well"):
        attempt(tmp_path, how)
    (job,) = jobs_of(tmp_path)
    assert [one["exit"] for one in job["attempts"]] == [None, 1, 0]
    assert job["attempts"][2]["resumed_from_step"] == 10 and job["attempts"][2]["memory_bytes"] > 1e6
    assert job["rule"] == "train" and job["params"] == {"last": 20} and job["host"]["processors"] >= 1
    assert job["outputs"] == {"results/model": hashlib.sha256(b"weights").hexdigest()}
    assert job["inputs"] == {"results/text": hashlib.sha256(b"text").hexdigest()}
    assert job["script"] == "scripts/mlm/train_mlm_jax.py" and "scripts/tpulm/specs/schedule.py" in job["code"]
    assert job["script"] in job["code"] and "scripts/tpulm/core/secrets.py" not in job["code"]
    assert {"jax", "keras"} <= job["packages"].keys() and "idna" not in job["packages"]
    attempt(tmp_path, "well")
    assert len(jobs_of(tmp_path)[0]["attempts"]) == 1


# Reads the records in a bucket twice; says how many requests that has taken by then. The first has many of its own.
READER = """
import sys
from pathlib import Path
from tpulm.core import bucket, ledger
folder = Path(sys.argv[2])
if sys.argv[1] == "first":
    for number in range(100):
        ledger.append(folder / f"many/{number}.jsonl", {"event": "note"})
    ledger.combine(folder)
read, asked = bucket.file_system().cat_file, []
bucket.file_system().cat_file = lambda *words, **more: asked.append(words) or read(*words, **more)
for _ in range(2):
    ledger.synchronize(folder)
    print(len(asked))
"""


def test_records_are_beside_the_results_in_a_bucket(tmp_path):
    """Each attempt in a folder that goes with its machine; afterwards, another folder has them by few requests."""
    place = ".snakemake/storage/gcs/bucket/team/try/"
    folder, requests = Path(f"{place}results/jobs"), []
    for machine in ("killed", "well", "first", "second"):
        (tmp_path / machine).mkdir()
    with in_place_of_google() as cloud:
        for how in ("killed", "well"):
            attempt(tmp_path / how, how, place)
        whole = cloud.get("/bucket/team/try/results/jobs/train.jsonl")
        for machine in ("first", "second"):
            done = warm.run("ledger", READER, machine, str(folder), folder=tmp_path / machine)
            requests += done.stdout.split()
    assert requests == ["0", "0", "1", "1"]
    assert (tmp_path / "second" / folder / "train.jsonl").read_bytes() == whole
    assert len(list((tmp_path / "second" / folder).rglob("*.jsonl"))) == 101
    (job,) = jobs_of(tmp_path / "second", folder)
    assert [one["exit"] for one in job["attempts"]] == [None, 0] and job["id"] == "train"
    assert list(job["outputs"]) == ["results/model"] and list(job["inputs"]) == ["results/text"]
    assert job["log"] == "logs/train.log"


def test_an_attempt_that_was_killed_is_told_of_and_one_that_cannot_be_recorded_fails(tmp_path):
    attempt(tmp_path, "killed")
    again = attempt(tmp_path, "well")
    assert "its record has no end" in again.stdout
    record = tmp_path / "results/jobs/train.jsonl"
    whole = record.read_text()
    record.write_text(whole[:-20])  # as a crash leaves it
    attempt(tmp_path, "well")
    assert [line["event"] for line in ledger.read_record(record)] == ["start", "start", "note", "start", "note", "end"]
    assert "No space left on device" in attempt(tmp_path, "full").stderr


def test_a_changed_file_is_refused_though_its_date_and_size_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = Path("results/model")
    model.parent.mkdir()
    model.write_bytes(bytes(20_000_000))
    date = model.stat().st_mtime_ns
    written = {path: facts["sha256"] for path, facts in job_record.digests_of_outputs([str(model)]).items()}
    write_record(tmp_path, "logs/train.log", "train", 1.0, 2.0, outputs=written)
    model.write_bytes(bytes(19_999_999) + b"x")
    os.utime(model, ns=(date, date))
    monkeypatch.setattr(job_record, "current", [ledger.path_of("logs/publish.log")])
    with pytest.raises(UserError, match=r"^results/model is corrupt: .* snakemake --force results/model "):
        checked({"names": [""]}, ["results/model"])  # as each job does that publishes
    jobs = jobs_of(tmp_path)
    assert [set(found) for _, found in check_artifacts(jobs, makers(jobs), Path("results"))] == [{"results/model"}]


def test_a_file_that_was_another_when_it_was_read_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_record(tmp_path, "logs/a.log", "one", 1.0, 2.0, outputs={"results/a": "1" * 64})
    write_record(tmp_path, "logs/b.log", "two", 3.0, 4.0, {"results/a": "2" * 64}, {"results/b": "3" * 64})
    jobs = jobs_of(tmp_path)
    for path in ("results/a", "results/b"):
        Path(path).touch()
    sentences = dict(read_otherwise(jobs, makers(jobs)))
    assert list(sentences) == ["results/b"] and "results/a" in sentences["results/b"]


def test_the_past_of_0_2_0_is_taken_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = {"event": "start", "time": 1.0, "rule": "train", "wildcards": {}, "recipe": {"seed": 1}, "threads": 1}
    start |= {"host": {}, "inputs": ["scripts/mlm/train.py", "envs/jax.txt", "results/a"]}
    end = {"event": "end", "time": 2.0, "exit": 0, "outputs": {"results/b": {"bytes": 1, "sha256": "1" * 64}}}
    for path, text in (
        ("logs/mlm/x.jobs.jsonl", "".join(json.dumps(line) + "\n" for line in (start, end))),
        ("results/history/mlm/.x.json", json.dumps([{"hash": "1"}, {"hash": "2"}])),
        (".snakemake/published/results/publish/hub/models.json", json.dumps({"place": "me/models", "files": {}})),
    ):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    Path("results/history/mlm/damaged.json").write_text("")
    for _ in range(2):
        take_over("results")
    (job,) = jobs_of(tmp_path)
    assert job["id"] == "mlm/x" and job["inputs"] == {"results/a": None} and job["outputs"] == {"results/b": "1" * 64}
    assert ledger.notes_of(Path("results/jobs/history/mlm/x.jsonl"), "kept_run") == [{"hash": "1"}, {"hash": "2"}]
    assert last_receipt("logs/publish/hub/models.log")["place"] == "me/models"


def test_what_an_interruption_repeats_is_noted(tmp_path, monkeypatch):
    log = tmp_path / "logs/00000020.log"
    record = ledger.path_of(log)
    monkeypatch.setattr(job_record, "current", [record])
    live = LiveMetrics(str(log), 0)
    for step in (5, 10, 15):
        live.write({"step": step, "last_step": 20})
    ledger.append(record, {"event": "start", "time": 0.0})
    kept = live.path.read_text()
    LiveMetrics(str(log), 10)  # the job was done before: another config trains it again
    assert len(ledger.read_record(record)) == 1
    live.path.write_text(kept)
    ledger.append(record, {"event": "start", "time": 1.0})
    LiveMetrics(str(log), 10)
    assert ledger.read_record(record)[2:] == [{"event": "note", "repeated_steps": 5}]


def test_no_secret_is_in_a_record_however_it_is_spelled(tmp_path, monkeypatch):
    secret = 'pass"wörd\\canary'
    monkeypatch.setenv("HF_TOKEN", secret)
    path = tmp_path / "a.jsonl"
    ledger.append(path, {"event": "start", "files": [f"https://{secret}@host/a.txt"], f"by {secret}": ROOT})
    hidden = {"event": "start", "files": ["https://[secret]@host/a.txt"], "by [secret]": str(ROOT)}
    assert ledger.read_record(path) == [hidden] and "canary" not in path.read_text()


def test_the_source_is_told_by_commit_and_difference(tmp_path):
    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "Snakefile").write_text("one\n")
    assert version_of(tmp_path) == ({"commit": None, "changed": None, "untracked": []}, "")
    git("init")
    git("add", "Snakefile")
    git("commit", "-m", "first")
    version, diff = version_of(tmp_path)
    assert len(version["commit"]) == 40 and not version["changed"] and diff == ""
    (tmp_path / "Snakefile").write_text("two\n")
    (tmp_path / "private.txt").write_text("a text of the user")
    version, diff = version_of(tmp_path)
    assert version["changed"] and version["untracked"] == [] and "-one\n+two\n" in diff
    assert list(source_files(tmp_path)) == ["Snakefile"]


def test_the_archive_is_published_where_it_is_named():
    config = read_config([ROOT / "config.yaml"], {"publish": {"hub": "me/models"}})
    assert "archive" not in selected_publications(Outline(config))
    section = {"publish": {"hub": "me/models", "artifacts": ["archive"]}}
    (archive,) = selected_publications(Outline(read_config([ROOT / "config.yaml"], section))).values()
    assert archive.files == {f"models-1.zip{end}": f"archive/models-1.zip{end}" for end in ("", ".sha256")}
    assert archive.type == "dataset" and archive.card == ""


def test_many_jobs_that_are_alike_are_told_of_once(tmp_path):
    def job(rule, name, inputs, output):
        known = {"id": name, "rule": rule, "script": rule, "params": None, "log": f"logs/{name}.log"}
        known |= {"attempts": [], "accelerators": {}, "host": {"processors": 2, "processor": "x", "python": "3.11.2"}}
        return known | {"inputs": dict.fromkeys(inputs), "outputs": {output: None}, "start": 1.0, "seconds": 1.0}

    shards = [job("write_shard", f"shard/{n}", [f"text/{n}"], f"results/shard/{n}") for n in range(1000)]
    listed = job("merge", "merge", [f"results/shard/{n}" for n in range(1000)], "results/step/0")
    chain = [job("train", f"step/{n}", [f"results/step/{n - 1}"], f"results/step/{n}") for n in range(1, 2000)]
    (tmp_path / "jobs.json").write_text(json.dumps([*shards, listed, *chain]))
    tool = [sys.executable, ROOT / "tools/provenance.py", "results/step/1999", "--from", tmp_path]
    lines = subprocess.check_output(tool, text=True).splitlines()
    assert len(lines) < 60
    assert all(any(f"{count} more" in line for line in lines) for count in ("997", "1,995"))
    assert sum("by train " in line for line in lines) == 4 and any("text/0  from outside" in line for line in lines)
    told = subprocess.check_output([*tool, "--all"], text=True)
    assert told.count("by write_shard") == 1000 and told.count("by train ") == 1999
