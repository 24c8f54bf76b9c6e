"""Records of jobs and of source: attempts, what an interruption repeated, where a file is from; without Snakemake."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT
from gcp_storage_emulator.server import create_server
from tpulm.config.outline import Outline
from tpulm.config.publications import chosen
from tpulm.config.reading import read_config
from tpulm.core import job_record
from tpulm.core.live_metrics import LiveMetrics
from tpulm.core.past_jobs import jobs_of
from tpulm.release.archive import source_files, version_of

pytestmark = pytest.mark.unit

JOB = """
import os, sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
from tpulm.core import job_record
place = sys.argv[3]
snakemake = SimpleNamespace(rule="train", wildcards={}, threads=1, params={"recipe": {"last": 20}},
                            input=[place + "results/text"], output=[place + "results/model"])
with job_record.recorded(place + "logs/train.log"):
    if sys.argv[2] == "killed":
        os._exit(9)
    if sys.argv[2] == "failed":
        sys.exit(1)
    job_record.note(resumed_from_step=10)
    os.makedirs(place + "results", exist_ok=True)
    open(place + "results/model", "w").write("weights")
"""


def attempt(folder, how, place="", **environment):
    command = [sys.executable, "-c", JOB, str(ROOT / "scripts"), how, place]
    subprocess.run(command, cwd=folder, env=os.environ | environment, check=False, timeout=300)


def test_every_attempt_is_recorded_until_the_job_is_stale_again(tmp_path):
    for how in ("killed", "failed", "well"):
        attempt(tmp_path, how)
    (job,) = jobs_of(tmp_path)
    assert [one["exit"] for one in job["attempts"]] == [None, 1, 0]
    assert job["attempts"][2]["resumed_from_step"] == 10 and job["attempts"][2]["memory_bytes"] > 1e6
    assert job["rule"] == "train" and job["params"] == {"last": 20} and job["host"]["processors"] >= 1
    assert job["outputs"] == {"results/model": hashlib.sha256(b"weights").hexdigest()}
    attempt(tmp_path, "well")
    assert len(jobs_of(tmp_path)[0]["attempts"]) == 1


def test_a_pod_leaves_its_record_in_the_bucket(tmp_path):
    """Each attempt in a folder that goes with its machine; afterwards, the logs are copied here."""
    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
    server.start()
    address = f"http://127.0.0.1:{server._api._httpd.server_port}"
    for how in ("killed", "well"):
        (tmp_path / how).mkdir()
        variables = {"STORAGE_EMULATOR_HOST": address, job_record.STORE: "true"}
        attempt(tmp_path / how, how, ".snakemake/storage/gcs/bucket/team/try/", **variables)
    record = server._storage.get_file("bucket", "team/try/logs/train.jobs.jsonl")
    server.stop()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/train.jobs.jsonl").write_bytes(record)
    (job,) = jobs_of(tmp_path)
    assert [one["exit"] for one in job["attempts"]] == [None, 0] and job["id"] == "train"
    assert list(job["outputs"]) == ["results/model"] and list(job["inputs"]) == ["results/text"]
    # Where the folder stays, so does the record.
    (tmp_path / "here").mkdir()
    attempt(tmp_path / "here", "well", ".snakemake/storage/gcs/bucket/team/try/")
    (job,) = jobs_of(tmp_path / "here")
    assert job["log"] == "logs/train.log" and list(job["outputs"]) == ["results/model"]


def test_what_an_interruption_repeats_is_noted(tmp_path, monkeypatch):
    log = tmp_path / "00000020.log"
    monkeypatch.setattr(job_record, "current", [job_record.path_of(log)])
    live = LiveMetrics(str(log), 0)
    for step in (5, 10, 15):
        live.write({"step": step, "last_step": 20})
    starts = [{"event": "start", "time": 0.0}, {"event": "start", "time": 1.0}]
    job_record.path_of(log).write_text(json.dumps(starts[0]) + "\n")
    kept = live.path.read_text()
    LiveMetrics(str(log), 10)  # the job was done before: another config trains it again
    assert len(job_record.read(job_record.path_of(log))) == 1
    live.path.write_text(kept)
    job_record.append(job_record.path_of(log), starts[1])
    LiveMetrics(str(log), 10)
    assert job_record.read(job_record.path_of(log))[2:] == [{"event": "note", "repeated_steps": 5}]


def test_no_secret_is_in_a_record_however_it_is_spelled(tmp_path, monkeypatch):
    secret = 'pass"wörd\\canary'
    monkeypatch.setenv("HF_TOKEN", secret)
    path = tmp_path / "a.jobs.jsonl"
    recipe = {"files": [f"https://{secret}@host/a.txt"], f"by {secret}": ROOT}
    job_record.append(path, {"event": "start", "time": 1.5, "recipe": recipe})
    recipe = {"files": ["https://[secret]@host/a.txt"], "by [secret]": str(ROOT)}
    assert (
        job_record.read(path) == [{"event": "start", "time": 1.5, "recipe": recipe}]
        and "canary" not in path.read_text()
    )


def test_the_source_is_told_by_commit_and_difference(tmp_path):
    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "rules").mkdir()
    (tmp_path / "Snakefile").write_text("one\n")
    assert version_of(tmp_path) == ({"commit": None, "changed": None, "untracked": []}, "")
    git("init")
    git("add", "Snakefile")
    git("commit", "-m", "first")
    version, diff = version_of(tmp_path)
    assert len(version["commit"]) == 40 and not version["changed"] and diff == ""
    (tmp_path / "Snakefile").write_text("two\n")
    (tmp_path / "rules/new.smk").write_text("")
    (tmp_path / "private.txt").write_text("a text of the user")
    version, diff = version_of(tmp_path)
    assert version["changed"] and version["untracked"] == ["rules/new.smk"] and "-one\n+two\n" in diff
    assert list(source_files(tmp_path)) == ["Snakefile", "rules/new.smk"]


def test_the_archive_is_published_where_it_is_named():
    config = read_config([ROOT / "config.yaml"], {"publish": {"hub": "me/models"}})
    assert "archive" not in chosen(Outline(config))
    section = {"publish": {"hub": "me/models", "artifacts": ["archive"]}}
    (archive,) = chosen(Outline(read_config([ROOT / "config.yaml"], section))).values()
    assert archive.files == {f"models-1.zip{end}": f"archive/models-1.zip{end}" for end in ("", ".sha256")}
    assert archive.type == "dataset" and archive.card == ""


def test_many_jobs_that_are_alike_are_told_of_once(tmp_path):
    def job(rule, name, inputs, outputs):
        known = {"id": name, "rule": rule, "params": None, "log": f"logs/{name}.log", "start": None, "seconds": None}
        return known | {
            "inputs": dict.fromkeys(inputs), "outputs": dict.fromkeys(outputs), "attempts": [], "host": {},
            "accelerators": {},
        }  # fmt: skip

    parts = [job("read_part", f"part/{n}", [f"text/{n}"], [f"results/parts/{n}"]) for n in range(5000)]
    texts = job("build", "text", [f"results/parts/{n}" for n in range(5000)], ["results/text"])
    shards = [job("write_shard", f"shard/{n}", ["results/text"], [f"results/shard/{n}"]) for n in range(10_000)]
    listed = job("merge", "merge", [f"results/shard/{n}" for n in range(10_000)], ["results/manifest"])
    chain = [
        job("train", f"step/{n}", ["results/manifest"] + [f"results/step/{n - 1}"] * (n > 0), [f"results/step/{n}"])
        for n in range(2000)
    ]
    (tmp_path / "jobs.json").write_text(json.dumps([*parts, texts, *shards, listed, *chain]))
    tool = [sys.executable, ROOT / "tools/provenance.py", "results/step/1999", "--from", tmp_path]
    lines = subprocess.check_output(tool, text=True).splitlines()
    assert len(lines) < 80
    assert all(any(f"{count} more" in line for line in lines) for count in ("9,997", "4,997", "1,996"))
    assert sum("by train " in line for line in lines) == 4 and any("text/0  from outside" in line for line in lines)
    told = subprocess.check_output([*tool, "--all"], text=True)
    assert told.count("by write_shard") == 10_000 and told.count("by train ") == 2000


def test_a_job_on_jax_records_the_devices_that_it_computes_on(trained):
    lines = (trained / "logs/finetune/python/00000010.jobs.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["accelerators"] == {"cpu": 8}
