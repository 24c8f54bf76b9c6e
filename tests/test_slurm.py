"""The workflow through a real Slurm on this machine: the same bytes, TPUs held, jobs that come and go."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT, Workflow, copied, reduced
from lib.config import SCHEMA, read_yaml
from lib.files import fingerprints
from one_node_slurm import NEEDED, PATH, Slurm
from ruamel.yaml import YAML
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import set_gres_string

MISSING = [name for name in NEEDED if not shutil.which(name, path=PATH)]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"no Slurm here to test with: {', '.join(MISSING)} not found")
# A real cluster is asked less often.
QUICK = ["--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5"]
COMMAND = [str(Path(sys.executable).with_name("snakemake")), "--workflow-profile", "profiles/slurm", *QUICK]
CLOCKS = ("timings.csv", "timings.html", ".partial")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def configure(workflow, **runs):
    """Give runs of `lora` resources, and return the config."""
    config = read_yaml(workflow / "config.yaml")
    config["lora"]["runs"] |= runs
    with open(workflow / "config.yaml", "w") as file:
        YAML(typ="safe", pure=True).dump(config, file)
    return config


@contextlib.contextmanager
def running(slurm, workflow, *arguments):
    """Start snakemake on the cluster; yield the process, which prints to `terminal.txt`."""
    with open(workflow / "terminal.txt", "w") as terminal:
        process = subprocess.Popen(
            [*COMMAND, *arguments], cwd=workflow.folder, env=os.environ | slurm.environment, stdout=terminal,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def finish(process, workflow, code=0):
    """Wait for snakemake; return what it printed."""
    ended = process.wait(timeout=600)
    printed = (workflow / "terminal.txt").read_text(errors="replace")
    assert ended == code, printed[-6000:]
    return printed


def wait(condition, seconds=120):
    """Wait until something is there; return it."""
    for _ in range(seconds * 5):
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError("it did not come about")


def jobs_of(slurm, comment, *states):
    """Return the jobs with this in their comment, of all states or some."""
    found = [job for job in slurm.jobs() if comment in job["Comment"]]
    return [job for job in found if not states or job["JobState"] in states]


def test_every_job_that_is_ready_is_submitted():
    """Of an array of which some jobs must wait, the executor submits none, and waits for them for ever."""
    shards = read_yaml(SCHEMA)["properties"]["tfrecords"]["properties"]["shards"]["properties"]
    most = sum(split["maximum"] for split in shards.values())
    assert read_yaml(ROOT / "profiles/slurm/config.yaml")["jobs"] > most >= 3 * 99_999


class Attributes(dict):
    __getattr__ = dict.__getitem__


def test_hosts_with_gpus_are_one_task_each(fresh):
    """Not one for each GPU, which is how Slurm's executor takes `tasks`."""
    config = read_yaml(fresh / "config.yaml")
    config["lora"]["runs"]["python"] |= {"resources": {"accelerator": "h100:4", "hosts": 2}}
    configure(fresh, **config["lora"]["runs"])
    printed = fresh("-n", "lora").stdout.partition("rule train_lora:")[2]
    listed = re.search(r"    resources: (.*)", printed)[1].split(", ")
    resources = Attributes(part.split("=", 1) for part in listed)
    resources |= {name: int(value) for name, value in resources.items() if value.isdigit()}
    job = SimpleNamespace(resources=resources, threads=1)
    names = ("run_uuid", "slurm_logfile", "comment_str", "account", "partition", "workdir")
    call = get_submit_command(job, dict.fromkeys(names, "x"))
    assert "--nodes=2" in call and "ntasks-per-gpu" not in call
    assert set_gres_string(job) == " --gres=gpu:h100:4"


@pytest.fixture(scope="module")
def through(slurm, tmp_path_factory):
    """All stages of a small config through Slurm; one training job is cancelled in mid-segment, another preempted."""
    workflow = Workflow(tmp_path_factory.mktemp("through") / "workflow")
    reduced(workflow)
    (workflow / "small.yaml").rename(workflow / "config.yaml")
    config = read_yaml(workflow / "config.yaml")
    for run in (config["mlm"]["runs"]["tiny"], config["base"]["small"], config["lora"]["runs"]["python"]):
        run["resources"] = {"accelerator": "v5e-8", "memory_gb": 2, "minutes": 30}
    with open(workflow / "config.yaml", "w") as file:
        YAML(typ="safe", pure=True).dump(config, file)
    with running(slurm, workflow) as process:
        victim = wait(lambda: in_training(slurm, workflow, "base", "small", 11, 20), 300)
        slurm("scancel", victim["JobId"])
        victim = wait(lambda: in_training(slurm, workflow, "lora", "python", 6, 10), 300)
        urgent = ["--partition=urgent", "--nodes=2", "--gres=tpu:v5e:8", "--output=/dev/null", "--wrap=sleep 1"]
        slurm("sbatch", "--job-name=urgent", *urgent)
        printed = finish(process, workflow)
    return workflow, victim, printed, slurm.jobs()


def in_training(slurm, workflow, stage, run, first, last):
    """Return the job of this segment of a run once it is at work."""
    log = workflow / f"logs/{stage}/{run}/{last:08d}.log"
    found = jobs_of(slurm, f"rule_train_{stage}_wildcards_{run}_{last:08d}", "RUNNING")
    return found[0] if found and log.is_file() and f"steps {first} to {last}" in log.read_text() else None


def test_the_same_bytes_as_on_one_machine(through, trained):
    workflow = through[0]
    here, there = (fingerprints(folder / "results") for folder in (trained, workflow))
    kept = {name: digest for name, digest in here.items() if not name.endswith(CLOCKS)}
    assert len(kept) > 90
    assert {name: digest for name, digest in there.items() if not name.endswith(CLOCKS)} == kept


def test_a_cancelled_segment_is_tried_again(through):
    _, _, printed, jobs = through
    tries = [job for job in jobs if "rule_train_base_wildcards_small_00000020" in job["Comment"]]
    assert [job["JobState"] for job in sorted(tries, key=lambda job: int(job["JobId"]))] == ["CANCELLED", "COMPLETED"]
    cancelled = next(job["JobId"] for job in tries if job["JobState"] == "CANCELLED")
    assert "Trying to restart job" in printed and f"'{cancelled}' failed, SLURM status is: 'CANCELLED'" in printed
    # What was cut short may have been short of time: it had twice as much.
    assert {job["TimeLimit"] for job in tries} == {"00:30:00", "01:00:00"}


def test_a_preempted_segment_comes_back_by_itself(through):
    _, victim, printed, jobs = through
    (job,) = [job for job in jobs if "rule_train_lora_wildcards_python_00000010" in job["Comment"]]
    assert (job["JobId"], job["JobState"], job["Restarts"]) == (victim["JobId"], "COMPLETED", "1")
    (urgent,) = [job for job in jobs if job["JobName"] == "urgent"]
    assert urgent["JobState"] == "COMPLETED" and urgent["EndTime"] <= job["StartTime"]


LATE = """
rule late:
    output: "late"
    resources: runtime=lambda wildcards, attempt: attempt
    shell: "if [ -e tried ]; then touch {output}; else touch tried; sleep 300; fi"
"""


def test_a_job_out_of_time_has_twice_as_much(slurm, tmp_path):
    (tmp_path / "Snakefile").write_text(LATE)
    (tmp_path / "profiles").symlink_to(ROOT / "profiles")
    done = subprocess.run(
        COMMAND, cwd=tmp_path, env=os.environ | slurm.environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    tries = [job for job in slurm.jobs() if "rule_late" in job["Comment"]]
    told = {job["JobState"]: job["TimeLimit"] for job in tries}
    assert len(tries) == 2 and told == {"TIMEOUT": "00:01:00", "COMPLETED": "00:02:00"}


def test_trainings_hold_their_tpus_and_nothing_else_does(through):
    training = [job for job in through[3] if "rule_train_" in job["Comment"] and "wildcards" in job["Comment"]]
    names = {job["Comment"].split("_wildcards_")[0] for job in training}
    assert names >= {"rule_train_mlm_tensorflow", "rule_train_base", "rule_train_lora"}
    others = [job for job in through[3] if "tokeni" in job["Comment"] or "corpus" in job["Comment"]]
    held = {job["Comment"].split("_wildcards_")[0]: job.get("TresPerNode") for job in training}
    assert {name: held[name] for name in names if "vocabulary" not in name} == dict.fromkeys(
        [name for name in names if "vocabulary" not in name], "gres:tpu:v5e:8"
    )
    assert others and not any("TresPerNode" in job for job in others)
    assert {job["MinMemoryNode"] for job in training if "vocabulary" not in job["Comment"]} == {"2000M"}


def test_small_jobs_are_few_for_the_scheduler(through):
    _, _, printed, jobs = through
    shards = [job for job in jobs if "rule_write_shard" in job["Comment"]]
    # Those of a split that was planned last may come too late for the array.
    arrays = {job["ArrayJobId"] for job in shards if "ArrayJobId" in job}
    assert len(shards) == 6 and len(arrays) + sum("ArrayJobId" not in job for job in shards) <= 3 and arrays
    report = [job for job in jobs if "/group_report" in job["StdOut"]]
    assert 1 <= len(report) <= 6 and not any("rule_tabulate" in job["Comment"] for job in jobs)
    assert "group_report" in printed


def test_nothing_is_to_be_done_then(slurm, through):
    done = subprocess.run(
        [*COMMAND, "-n"], cwd=through[0].folder, env=os.environ | slurm.environment, capture_output=True, text=True
    )
    assert "Nothing to be done" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("changed", "wanted", "why"),
    [
        ({"accelerator": "v5e-64"}, "accelerator: v5e-64, ", "Requested node configuration is not available"),
        ({"accelerator": "h100:4"}, "accelerator: h100:4, ", "Invalid generic resource (gres) specification"),
        (
            {"accelerator": "v5e-32", "hosts": 4},
            "accelerator: v5e-32, hosts: 4, ",
            "it would wait for ever (PartitionConfig)",
        ),
        ({"memory_gb": 90_000}, "memory_gb: 90000, ", "Requested node configuration is not available"),
    ],
)
def test_what_slurm_does_not_have_is_said_before_anything_runs(slurm, fresh, changed, wanted, why):
    config = read_yaml(fresh / "config.yaml")
    configure(fresh, python=config["lora"]["runs"]["python"] | {"resources": changed})
    before = slurm.jobs()
    with running(slurm, fresh, "lora") as process:
        printed = finish(process, fresh, 1)
    (said,) = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert said.startswith(f"error: lora.runs.python asks for {wanted}") and f"and Slurm refuses that: {why}" in said
    assert printed.rstrip().endswith(said) and "Traceback" not in printed
    new = [job for job in slurm.jobs() if job not in before]
    assert {(job["JobName"], job["JobState"]) for job in new} <= {("preflight", "FAILED"), ("preflight", "CANCELLED")}
    assert not (fresh / "results/corpus").exists()


def ask(slurm, *resources, **environment):
    """Run the profile's preflight for jobs that ask for these resources; return what it said."""
    jobs = [
        {"rule": "x", "where": "rule x", "threads": 1, "resources": {"mem_mb": 1000} | asked} for asked in resources
    ]
    settings = dict.fromkeys(("requeue", "no_requeue", "qos", "reservation", "partition_config"))
    return subprocess.run(
        [sys.executable, ROOT / "profiles/slurm/preflight.py"], input=json.dumps({"executor": settings, "jobs": jobs}),
        env=os.environ | slurm.environment | environment, capture_output=True, text=True,
    )  # fmt: skip


def test_what_only_has_to_wait_is_not_refused(slurm):
    """Slurm's own test refuses it."""
    before = slurm.jobs()
    slurm("scontrol", "update", "nodename=n0,n1", "state=drain", "reason=maintenance")
    try:
        done = ask(slurm, {"gres": "tpu:v5e:8"})
    finally:
        slurm("scontrol", "update", "nodename=n0,n1", "state=resume")
    assert (done.returncode, done.stderr) == (0, "")
    (new,) = [job for job in slurm.jobs() if job not in before]
    assert (new["JobName"], new["JobState"]) == ("preflight", "CANCELLED")


def test_other_refusals(slurm, tmp_path):
    short = {"slurm_partition": "short", "runtime": 31}
    sentence = (
        "\nerror: rule x asks for memory_gb: 1, minutes: 31, and Slurm refuses that: its partition has 30 minutes"
    )
    long_enough = ask(slurm, short | {"runtime": 30}, {"runtime": 31})
    assert long_enough.returncode == 0 and long_enough.stderr.startswith("note: the partition short cancels jobs that")
    assert sentence in ask(slurm, short).stderr
    assert "refuses that: Invalid partition name specified." in ask(slurm, {"slurm_partition": "none"}).stderr
    (tmp_path / "which").symlink_to(shutil.which("which"))  # all that Slurm's executor must find
    missing = ask(slurm, {}, PATH=str(tmp_path)).stderr
    assert missing == "error: this machine has no Slurm: sbatch is not on PATH; log in to a node that submits jobs.\n"


def test_jobs_outlive_their_controller_and_are_not_doubled(slurm, through, tmp_path):
    """On two hosts. What runs when the controller is killed is waited for; what was queued gives way."""
    workflow = copied(through[0], tmp_path)
    config = read_yaml(workflow / "config.yaml")
    wide = config["lora"]["runs"]["python"] | {"steps": 200, "checkpoint_every": 100}
    wide["resources"] = {"accelerator": "v5e-16", "hosts": 2, "memory_gb": 2}
    configure(workflow, wide=wide)
    target, log = "results/lora/wide/history.csv", workflow / "logs/lora/wide/00000100.log"
    with running(slurm, workflow, target) as process:
        wait(lambda: log.is_file() and "steps 1 to 100" in log.read_text(), 300)
        (first,) = jobs_of(slurm, "rule_train_lora_wildcards_wide", "RUNNING")
        os.kill(process.pid, signal.SIGKILL)
    assert first["TresPerNode"] == "gres:tpu:v5e:8" and first["NumNodes"] == "2"
    assert log.with_name("00000100.process1.log").is_file()
    steps = slurm("squeue", "--steps", "--noheader", f"--jobs={first['JobId']}", "--format=%i %N").split()
    assert {"n0", "n1"} <= set(steps), steps
    with running(slurm, workflow, target) as process:
        wait(lambda: "waiting until they have ended" in (workflow / "terminal.txt").read_text())
        # The second segment: its job is held in the queue while this controller is killed, too.
        slurm(
            "sbatch", "--nodes=2", "--gres=tpu:v5e:8", "--job-name=blocker", "--output=/dev/null", "--wrap=sleep 1000"
        )
        (queued,) = wait(lambda: jobs_of(slurm, "wide_00000200", "PENDING"), 300)
        os.kill(process.pid, signal.SIGKILL)
    with running(slurm, workflow, target) as process:
        wait(lambda: len(jobs_of(slurm, "wide_00000200", "PENDING")) == 2)
        slurm("scancel", "--jobname=blocker")
        finish(process, workflow)
    ended = {job["JobId"]: job["JobState"] for job in jobs_of(slurm, "rule_train_lora_wildcards_wide")}
    assert ended.pop(first["JobId"]) == "COMPLETED" and ended.pop(queued["JobId"]) == "FAILED"
    assert list(ended.values()) == ["COMPLETED"]
    assert "the snakemake that queued this job is gone" in Path(queued["StdOut"]).read_text()
    assert len((workflow / target).read_text().splitlines()) == 201
