"""The workflow through a real Slurm on this machine: the same bytes, TPUs held, jobs that come and go."""

import contextlib
import glob
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
from conftest import ROOT, Workflow, copied, existing, outside
from kills import edited, fingerprints
from one_node_slurm import NEEDED, PATH, Slurm
from test_experiments import configure
from tpulm.config.outline import Outline
from tpulm.config.reading import SCHEMA, read_config, read_yaml
from tpulm.workflow.resources import resources_of

MISSING = [name for name in NEEDED if not shutil.which(name, path=PATH)]
pytestmark = pytest.mark.skipif(bool(MISSING), reason="no Slurm here; apt-get install slurm-wlm munge")
# A real cluster is asked less often.
QUICK = ["--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5"]
COMMAND = ["--workflow-profile", "profiles/slurm", *QUICK]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


LATE = """
rule late:
    output: "late"
    resources: runtime=lambda wildcards, attempt: attempt
    shell: "if [ -e tried ]; then touch {output}; else touch tried; sleep 300; fi"
"""


@pytest.fixture(scope="module")
def late(slurm, tmp_path_factory):
    """A workflow whose job runs out of time at first, at work beside all other tests: no limit is under a minute."""
    workflow = existing(tmp_path_factory.mktemp("late"))
    (workflow / "Snakefile").write_text(LATE)
    (workflow / "profiles").symlink_to(ROOT / "profiles")
    with running(slurm, workflow) as process:
        yield process, workflow


@contextlib.contextmanager
def running(slurm, workflow, *arguments):
    """Start snakemake on the cluster; yield the process, which prints to `terminal.txt`."""
    with open(workflow / "terminal.txt", "w") as terminal:
        environment = outside() | slurm.environment
        process = workflow.start(*COMMAND, *arguments, environment=environment, output=terminal.fileno())
    try:
        yield process
    finally:
        process.kill()


def finish(process, workflow, code=0):
    """Wait for snakemake; return what it printed."""
    ended = process.wait()
    printed = (workflow / "terminal.txt").read_text(errors="replace")
    assert ended == code, printed[-6000:]
    return printed


def wait(condition, process, every=0.5):
    """Wait until something is there, looked for `every` so many seconds, and return it, while snakemake runs."""
    while not (found := condition()):
        assert process.poll() is None, "snakemake has ended"
        time.sleep(every)
    return found


def jobs_of(slurm, comment, *states):
    """Return the jobs with this in their comment, of all states or some."""
    found = [job for job in slurm.jobs() if comment in job["Comment"]]
    return [job for job in found if not states or job["JobState"] in states]


def jobs_since(slurm, before=()):
    """Return the jobs that came after those of `before`; not of the fixture `late`, which come at any time."""
    known = {job["JobId"] for job in before}
    return [job for job in slurm.jobs() if job["JobId"] not in known and "rule_late" not in job["Comment"]]


def test_every_job_that_is_ready_is_submitted():
    """Of an array of which some jobs must wait, the executor submits none, and waits for them for ever."""
    shards = read_yaml(SCHEMA)["properties"]["tfrecords"]["properties"]["shards"]["properties"]
    most = sum(split["maximum"] for split in shards.values())
    assert read_yaml(ROOT / "profiles/slurm/config.yaml")["jobs"] > most >= 3 * 99_999


class Attributes(dict):
    __getattr__ = dict.__getitem__


def test_hosts_with_gpus_are_one_task_each(fresh):
    """Not one for each GPU, which is how Slurm's executor takes `tasks`."""
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    fresh.steady = True
    with edited(fresh) as config:
        config["finetune"]["runs"]["python"]["resources"] = {"accelerator": "h100:4", "hosts": 2}
    printed = fresh("-n", "--verbose", "finetune").stdout.partition("rule train_finetune:")[2]
    listed = re.search(r"    resources: (.*)", printed)[1].split(", ")
    resources = Attributes(part.split("=", 1) for part in listed)
    resources |= {name: int(value) for name, value in resources.items() if value.isdigit()}
    job = SimpleNamespace(resources=resources, threads=1)
    names = ("run_uuid", "slurm_logfile", "comment_str", "account", "partition", "workdir")
    call = get_submit_command(job, dict.fromkeys(names, "x"))
    assert "--nodes=2" in call and "ntasks-per-gpu" not in call
    assert set_gres_string(job) == " --gres=gpu:h100:4"


SHARDS = [f"results/tfrecords/train/{shard:05d}-of-00004" for shard in range(4)]
TARGETS = [
    *(f"{shard}.tfrecord" for shard in SHARDS), "results/base/small/checkpoints/00000020/state.json",
    "results/finetune/python/history.csv", "results/figures/training/finetune-python.svg",
]  # fmt: skip


def on_tpus(workflow):
    """Give every run of a workflow its accelerator."""
    with edited(workflow) as config:
        for run in (config["mlm"]["runs"]["tiny"], config["base"]["small"], config["finetune"]["runs"]["python"]):
            run["resources"] = {"accelerator": "v5e-8", "mem_gb": 2, "runtime": 30}


@pytest.fixture(scope="module")
def through(slurm, trained, late, tmp_path_factory):
    """A run of this machine that goes on through Slurm: what is missing of TARGETS, and what follows from it.

    One training job is cancelled in mid-segment, another preempted.
    """
    workflow = copied(trained, tmp_path_factory.mktemp("through"))
    workflow.steady = True
    on_tpus(workflow)
    for shard in SHARDS:
        for end in ("tfrecord", "index", "json"):
            (workflow / f"{shard}.{end}").unlink()
    shutil.rmtree(workflow / "results/base/small/checkpoints/00000020")
    shutil.rmtree(workflow / "logs")
    with running(slurm, workflow, *TARGETS) as process:
        with held(slurm, workflow, process, "base", "small", 11, 20) as victim:
            slurm("scancel", victim["JobId"])
        with held(slurm, workflow, process, "finetune", "python", 6, 10) as victim:
            urgent = ["--partition=urgent", "--nodes=2", "--gres=tpu:v5e:8", "--output=/dev/null", "--wrap=sleep 1"]
            slurm("sbatch", "--job-name=urgent", *urgent)
        finish(process, workflow)
    return workflow, victim, jobs_since(slurm)


@contextlib.contextmanager
def held(slurm, workflow, process, stage, run, first, last):
    """Hold this segment of a run as soon as it is at work, until Slurm has begun to end its job; yield that.

    A segment may take less than a second, and would have ended before.
    """
    comment = f"rule_train_{stage}_wildcards_{run}_{last:08d}"
    log = workflow / f"logs/{stage}/{run}/{last:08d}.log"
    wait(lambda: log.is_file() and f"steps {first} to {last}" in log.read_text(), process, every=0.005)
    with paused(log):
        (job,) = jobs_of(slurm, comment, "RUNNING")
        yield job
        ended = ("COMPLETING", "PENDING", "CANCELLED", "REQUEUED", "PREEMPTED")
        wait(lambda: [one for one in jobs_of(slurm, comment, *ended) if one["JobId"] == job["JobId"]], process, 0.05)


@contextlib.contextmanager
def paused(log):
    """Stop the processes that write to a log, and let them go on at the end.

    Not for long: processes that train with them, and miss their heartbeat, give up after 100 seconds.
    """
    writers = {int(Path(entry).parts[2]) for entry in glob.glob("/proc/[0-9]*/fd/*") if leads_to(entry, log)}
    assert writers
    try:
        signalled(writers, signal.SIGSTOP)
        yield
    finally:
        signalled(writers, signal.SIGCONT)


def signalled(processes, number):
    """Send a signal to the processes that there still are."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def leads_to(link, path):
    """Return whether a link of /proc leads to a file."""
    try:
        return os.readlink(link) == str(path)
    except OSError:  # of a process that has ended meanwhile
        return False


def test_the_same_bytes_as_on_one_machine(through, trained):
    workflow, _, jobs = through
    there = fingerprints(workflow / "results")
    assert len(there) > 90 and there == fingerprints(trained / "results")
    # To go on elsewhere made nothing stale: only what was missing was made, and what depends on that.
    names = [job["Comment"].removeprefix("rule_").split("_wildcards_")[0] for job in jobs if "rule_" in job["Comment"]]
    alone = {name: names.count(name) for name in names}
    made_there = {"write_shard": 4, "train_base": 2, "export_base": 1, "train_finetune": 2}
    assert alone == made_there | {"report_collect_history_plot_training": 1}  # the last two are one group


@pytest.mark.long  # some fifty jobs, each of which starts Snakemake twice
def test_all_stages_through_slurm(slurm, trained, tmp_path):
    workflow = Workflow(tmp_path / "workflow")
    workflow.steady = True
    (workflow / "config.yaml").write_bytes((trained / "config.yaml").read_bytes())
    on_tpus(workflow)
    before = slurm.jobs()
    with running(slurm, workflow) as process:
        finish(process, workflow)
    there = fingerprints(workflow / "results")
    assert len(there) > 90 and there == fingerprints(trained / "results")
    jobs = jobs_since(slurm, before)
    held = {job["Comment"].split("_wildcards_")[0] for job in jobs if job.get("TresPerNode") == "gres:tpu:v5e:8"}
    assert held >= {"rule_train_mlm_tensorflow", "rule_train_base", "rule_train_finetune"}
    report = [job for job in jobs if "/group_report" in job["StdOut"]]
    assert 1 <= len(report) <= 6 and not any("rule_plot_training" in job["Comment"] for job in jobs)


def test_a_cancelled_segment_is_tried_again(through):
    *_, jobs = through
    tries = [job for job in jobs if "rule_train_base_wildcards_small_00000020" in job["Comment"]]
    assert [job["JobState"] for job in sorted(tries, key=lambda job: int(job["JobId"]))] == ["CANCELLED", "COMPLETED"]
    # What was cut short may have been short of time: it had twice as much.
    assert {job["TimeLimit"] for job in tries} == {"00:30:00", "01:00:00"}


def test_a_preempted_segment_comes_back_by_itself(through):
    _, victim, jobs = through
    (job,) = [job for job in jobs if "rule_train_finetune_wildcards_python_00000010" in job["Comment"]]
    assert (job["JobId"], job["JobState"], job["Restarts"]) == (victim["JobId"], "COMPLETED", "1")


def test_trainings_hold_their_tpus_and_nothing_else_does(through):
    training = [job for job in through[2] if "rule_train_" in job["Comment"]]
    assert {job["Comment"].split("_wildcards_")[0] for job in training} == {"rule_train_base", "rule_train_finetune"}
    assert {job.get("TresPerNode") for job in training} == {"gres:tpu:v5e:8"}
    assert {job["MinMemoryNode"] for job in training} == {"2000M"}
    others = [job for job in through[2] if "write_shard" in job["Comment"] or "export" in job["Comment"]]
    assert others and not any("TresPerNode" in job for job in others)


def test_an_experiment_runs_in_its_folder(slurm, fresh):
    configure(fresh, "one")
    with running(slurm, fresh, "-d", "experiments/one", "tokenizer") as process:
        finish(process, fresh)
    assert (fresh / "experiments/one/results/tokenizer/tokenizer.json").is_file() and not (fresh / "results").exists()
    records = (fresh / "experiments/one/results/jobs").rglob("*.jsonl")
    assert {path.stem for path in records} >= {"corpus", "train_tokenizer"}


def test_small_jobs_are_few_for_the_scheduler(through):
    *_, jobs = through
    shards = [job for job in jobs if "rule_write_shard" in job["Comment"]]
    assert len(shards) == 4 and len({job["ArrayJobId"] for job in shards}) == 1
    report = [job for job in jobs if "/group_report" in job["StdOut"]]
    assert len(report) == 1 and not any("rule_plot" in job["Comment"] for job in jobs)


def test_nothing_is_to_be_done_then(slurm, through):
    done = through[0].start(*COMMAND, "-n", *TARGETS, environment=outside() | slurm.environment)
    assert "Nothing to be done" in done.communicate()[0]


def test_what_slurm_does_not_have_is_said_before_anything_runs(slurm, fresh):
    with edited(fresh) as config:
        config["finetune"]["runs"]["python"]["resources"] = {"accelerator": "v5e-64"}
    before, fresh.steady = slurm.jobs(), True
    with running(slurm, fresh, "finetune") as process:
        printed = finish(process, fresh, 1)
    (said,) = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert said.startswith("error: finetune.runs.python requests accelerator: v5e-64, ")
    assert printed.rstrip().endswith(said) and "Traceback" not in printed
    new = jobs_since(slurm, before)
    assert {(job["JobName"], job["JobState"]) for job in new} <= {("preflight", "FAILED"), ("preflight", "CANCELLED")}
    assert not (fresh / "results/corpus").exists()


@pytest.mark.parametrize(
    ("changed", "wanted", "why"),
    [
        ({"accelerator": "h100:4"}, "accelerator: h100:4, ", "generic resource"),
        ({"accelerator": "v5e-32", "hosts": 4}, "accelerator: v5e-32, hosts: 4, ", "it would wait forever"),
        ({"mem_gb": 90_000}, "mem_gb: 90000, ", "Requested node configuration is not available"),
    ],
)
def test_what_slurm_does_not_have(slurm, changed, wanted, why):
    """What a run asks for, as its rule does, and the answer of the profile."""
    runs = {"finetune": {"runs": {"python": {"resources": changed}}}}
    run = Outline(read_config([str(ROOT / "config.yaml")], runs)).runs_of("finetune")
    wildcards = Attributes(run="python")
    resources = resources_of(lambda wildcards: run[wildcards.run], "train", "", hosts=True)
    asked = {name: value(wildcards, 1) if name == "runtime" else value(wildcards) for name, value in resources.items()}
    done = ask(slurm, {name: value for name, value in asked.items() if value is not None})
    assert done.returncode == 1 and done.stderr.startswith(f"error: rule x requests {wanted}")
    assert why in done.stderr


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
    (new,) = jobs_since(slurm, before)
    assert (new["JobName"], new["JobState"]) == ("preflight", "CANCELLED")


def test_other_refusals(slurm, tmp_path):
    short = {"slurm_partition": "short", "runtime": 31}
    long_enough = ask(slurm, short | {"runtime": 30}, {"runtime": 31})
    assert long_enough.returncode == 0 and long_enough.stderr.startswith("note: the partition short ")
    assert re.search(r"\nerror: rule x .* runtime: 31, .* 30 minutes", ask(slurm, short).stderr)
    assert "Invalid partition name specified" in ask(slurm, {"slurm_partition": "none"}).stderr
    (tmp_path / "which").symlink_to(shutil.which("which"))  # all that Slurm's executor must find
    missing = ask(slurm, {}, PATH=str(tmp_path)).stderr
    assert missing.startswith("error: ") and "sbatch is not on PATH" in missing and missing.count("\n") == 1


def test_jobs_outlive_their_controller_and_are_not_doubled(slurm, through, tmp_path):
    """On two hosts. What is queued when the controller is killed gives way; what runs keeps the next one out."""
    workflow = copied(through[0], tmp_path)
    workflow.steady = True
    keys = {"steps": 100, "checkpoint_every": 100, "host_device_count": 2, "mesh": [1, 2]}
    keys["resources"] = {"accelerator": "v5e-16", "hosts": 2, "mem_gb": 2}
    with edited(workflow) as config:
        config["finetune"]["runs"]["wide"] = config["finetune"]["runs"]["python"] | keys
    target, log = "results/finetune/wide/history.csv", workflow / "logs/finetune/wide/00000100.log"
    training = "rule_train_finetune_wildcards_wide"
    slurm("sbatch", "--nodes=2", "--gres=tpu:v5e:8", "--job-name=blocker", "--output=/dev/null", "--wrap=sleep 10000")
    with running(slurm, workflow, target) as process:
        (queued,) = wait(lambda: jobs_of(slurm, training, "PENDING"), process)
        process.kill()
    with contextlib.ExitStack() as running_still:
        with running(slurm, workflow, target) as process:
            wait(lambda: len(jobs_of(slurm, training, "PENDING")) == 2, process)
            slurm("scancel", "--jobname=blocker")
            wait(lambda: log.is_file() and "steps 1 to 100" in log.read_text(), process, every=0.005)
            running_still.enter_context(paused(log))
            (first,) = jobs_of(slurm, training, "RUNNING")
            process.kill()
        assert first["TresPerNode"] == "gres:tpu:v5e:8" and first["NumNodes"] == "2"
        assert log.with_name("00000100.process1.log").is_file()
        steps = slurm("squeue", "--steps", "--noheader", f"--jobs={first['JobId']}", "--format=%i %N").split()
        assert {"n0", "n1"} <= set(steps), steps
        with running(slurm, workflow, target) as process:
            printed = finish(process, workflow, 1)
        assert "error: jobs of a snakemake that was killed are still running" in printed
        running_still.close()
        while jobs_of(slurm, training, "RUNNING", "COMPLETING"):
            time.sleep(0.5)
        with running(slurm, workflow, target) as process:
            finish(process, workflow)
    ended = {job["JobId"]: job["JobState"] for job in jobs_of(slurm, training)}
    assert ended == {first["JobId"]: "COMPLETED", queued["JobId"]: "FAILED"}
    assert len((workflow / target).read_text().splitlines()) == 101


def test_a_job_out_of_time_has_twice_as_much(slurm, late):
    finish(*late)
    tries = jobs_of(slurm, "rule_late")
    told = {job["JobState"]: job["TimeLimit"] for job in tries}
    assert len(tries) == 2 and told == {"TIMEOUT": "00:01:00", "COMPLETED": "00:02:00"}
