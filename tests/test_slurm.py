"""The workflow through a real Slurm on this machine: the same bytes, TPUs held, jobs that come and go."""

import contextlib
import shutil
import signal
from types import SimpleNamespace

import pytest
from conftest import ROOT, configured, copied, existing, outside
from kills import fingerprints, wait_for
from one_node_slurm import NEEDED, PATH, Slurm
from snakemake.iocontainers import ResourceList
from snakemake_executor_plugin_slurm import ExecutorSettings
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import set_gres_string
from test_hosts import signal_all
from tpulm.config.outline import Outline
from tpulm.config.reading import SCHEMA, read_config, read_yaml
from tpulm.core.errors import UserError
from tpulm.workflow.checks import preflight
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
    ended = process.wait()
    printed = (workflow / "terminal.txt").read_text(errors="replace")
    assert ended == code, printed[-6000:]
    return printed


def jobs_of(slurm, comment, *states):
    found = [job for job in slurm.jobs() if comment in job["Comment"]]
    return [job for job in found if not states or job["JobState"] in states]


def jobs_since(slurm, before):
    known = {job["JobId"] for job in before}
    return [job for job in slurm.jobs() if job["JobId"] not in known]


def test_every_job_that_is_ready_is_submitted():
    """Of an array of which some jobs must wait, the executor submits none, and waits for them for ever."""
    shards = read_yaml(SCHEMA)["properties"]["tfrecords"]["properties"]["shards"]["properties"]
    most = sum(split["maximum"] for split in shards.values())
    assert read_yaml(ROOT / "profiles/slurm/config.yaml")["jobs"] > most >= 3 * 99_999


def requested(changes):
    """Return what the training of a run asks for with these resources, as its rule does."""
    runs = {"finetune": {"runs": {"python": {"resources": changes}}}}
    run = Outline(read_config([str(ROOT / "config.yaml")], runs)).runs_of("finetune")
    resources = resources_of(lambda name: run[name], "train", "", hosts=True)
    asked = {name: value("python", 1) if name == "runtime" else value("python") for name, value in resources.items()}
    assert resources["runtime"]("python", 2) == 2 * asked["runtime"]
    return {name: value for name, value in asked.items() if value is not None}


def test_hosts_with_gpus_are_one_task_each():
    """Not one for each GPU, which is how Slurm's executor takes `tasks`."""
    resources = ResourceList(fromdict=requested({"accelerator": "h100:4", "hosts": 2}))
    job = SimpleNamespace(resources=resources, threads=1)
    names = ("run_uuid", "slurm_logfile", "comment_str", "account", "partition", "workdir")
    call = get_submit_command(job, dict.fromkeys(names, "x"))
    assert "--nodes=2" in call and "ntasks-per-gpu" not in call
    assert set_gres_string(job) == " --gres=gpu:h100:4"


def interrupted(trained, folder, *missing):
    """Return a copy of a run of this machine without some of its files, where its trainings ask for TPUs."""
    workflow = copied(trained, folder)
    workflow.steady = True
    asked = {"accelerator": "v5e-8", "mem_gb": 2, "runtime": 30}
    runs = ("mlm.runs.tiny", "base.small", "finetune.runs.python")
    configured(workflow, {f"{run}.resources": asked for run in runs}, "config.yaml")
    for pattern in missing:
        for path in workflow.folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(workflow / "logs")
    return workflow


SHARDS = [f"results/tfrecords/train/{shard:05d}-of-00004.tfrecord" for shard in range(2)]
TUNED = "results/finetune/python/checkpoints/00000010"


# Jobs that end only when they are tried once more. No time limit is under a minute.
TRIED = """
rule all:
    localrule: True
    input: "late", "preempted"

rule one:
    output: "{name}"
    resources:
        runtime=lambda wildcards, attempt: attempt * (1 if wildcards.name == "late" else 30),
        gres=lambda wildcards: "tpu:v5e:8" if wildcards.name == "preempted" else None
    shell: "if [ -e tried-{output} ]; then touch {output}; else touch tried-{output}; sleep 300; fi"
"""


@pytest.mark.long
def test_jobs_that_are_ended_come_back(slurm, tmp_path):
    workflow, before = existing(tmp_path), slurm.jobs()
    (workflow / "Snakefile").write_text(TRIED)
    (workflow / "profiles").symlink_to(ROOT / "profiles")

    def tries(name):
        found = [job for job in jobs_since(slurm, before) if f"wildcards_{name}" in job["Comment"]]
        found.sort(key=lambda job: job["JobId"])
        return [(job["JobState"], job["TimeLimit"], job["Restarts"]) for job in found]

    with running(slurm, workflow) as process:
        wait_for(lambda: len([*workflow.folder.glob("tried-*")]) == 2, process)
        urgent = ["--partition=urgent", "--nodes=2", "--gres=tpu:v5e:8", "--output=/dev/null", "--wrap=sleep 1"]
        slurm("sbatch", "--job-name=urgent", *urgent)
        finish(process, workflow)
    assert tries("late") == [("TIMEOUT", "00:01:00", "0"), ("COMPLETED", "00:02:00", "0")]
    assert tries("preempted") == [("COMPLETED", "00:30:00", "1")]


@pytest.fixture
def ask(slurm, monkeypatch):
    """A function that asks, as Snakemake does before the first job, whether jobs with these resources could run."""
    command = read_yaml(ROOT / "profiles/slurm/config.yaml")["default-resources"]["preflight"].strip("'")
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)

    def asked(*resources):
        job = {"rule": "x", "where": "rule x", "threads": 1}
        jobs = [job | {"resources": {"mem_mb": 1000, "preflight": command} | own} for own in resources]
        preflight(jobs, ExecutorSettings(), str(ROOT))

    return asked


@pytest.mark.parametrize("resources", [{"accelerator": "h100:4"}, {"accelerator": "v5e-32", "hosts": 4}])
def test_what_slurm_does_not_have_is_refused(ask, resources):
    with pytest.raises(UserError, match=f"^rule x .*accelerator: {resources['accelerator']}"):
        ask(requested(resources))


def test_what_a_partition_does_not_allow_is_refused(ask, capfd):
    ask({"slurm_partition": "short", "runtime": 30}, {"runtime": 31})
    assert capfd.readouterr().err.startswith("note: the partition short ")
    with pytest.raises(UserError, match="^rule x .* runtime: 31, .* 30 minutes"):
        ask({"slurm_partition": "short", "runtime": 31})


def test_a_machine_without_slurm_is_refused(ask, tmp_path, monkeypatch):
    for program in ("sh", "which"):  # all that Slurm's executor must find
        (tmp_path / program).symlink_to(shutil.which(program))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="^sbatch is not on PATH"):
        ask({})


def test_what_only_has_to_wait_is_not_refused(slurm, ask):
    before = slurm.jobs()
    slurm("scontrol", "update", "nodename=n0,n1", "state=drain", "reason=maintenance")
    try:
        ask({"gres": "tpu:v5e:8"})
    finally:
        slurm("scontrol", "update", "nodename=n0,n1", "state=resume")
    (new,) = jobs_since(slurm, before)
    assert (new["JobName"], new["JobState"]) == ("preflight", "CANCELLED")


# After those that need no run of this machine: they pass while it is made.
def test_a_run_of_one_machine_goes_on_through_slurm(slurm, trained, tmp_path):
    workflow = interrupted(trained, tmp_path, "results/tfrecords/train/0000[01]*", TUNED)
    targets, before = [*SHARDS, f"{TUNED}/state.json", "results/figures/training/finetune-python.svg"], slurm.jobs()
    with running(slurm, workflow, *targets) as process:
        finish(process, workflow)
    there = fingerprints(workflow / "results")
    assert len(there) > 90 and there == fingerprints(trained / "results")
    jobs = jobs_since(slurm, before)
    by_rule = {}
    for job in jobs:
        if "rule_" in job["Comment"]:
            by_rule.setdefault(job["Comment"].removeprefix("rule_").split("_wildcards_")[0], []).append(job)
    counts = {rule: len(alike) for rule, alike in by_rule.items()}
    assert counts == {"write_shard": 2, "train_finetune": 1, "report_collect_history_plot_training": 1}
    assert {rule for rule, alike in by_rule.items() if "TresPerNode" in alike[0]} == {"train_finetune"}
    (training,) = by_rule["train_finetune"]
    assert (training["TresPerNode"], training["MinMemoryNode"]) == ("gres:tpu:v5e:8", "2000M")
    assert len({job["ArrayJobId"] for job in by_rule["write_shard"]}) == 1
    assert len([job for job in jobs if "/group_report" in job["StdOut"]]) == 1


@pytest.mark.long
def test_jobs_outlive_their_controller_and_are_not_doubled(slurm, trained, tmp_path):
    """On two hosts. What is queued when the controller is killed gives way; what runs keeps the next one out."""
    workflow = interrupted(trained, tmp_path)
    keys = {"steps": 100, "checkpoint_every": 100, "host_device_count": 2, "mesh": [1, 2]}
    keys["resources"] = {"accelerator": "v5e-16", "hosts": 2, "mem_gb": 2}
    wide = read_yaml(workflow / "config.yaml")["finetune"]["runs"]["python"] | keys
    configured(workflow, {"finetune.runs.wide": wide}, "config.yaml")
    target, log = "results/finetune/wide/history.csv", workflow / "logs/finetune/wide/00000100.log"
    training = "rule_train_finetune_wildcards_wide"
    slurm("sbatch", "--nodes=2", "--gres=tpu:v5e:8", "--job-name=blocker", "--output=/dev/null", "--wrap=sleep 10000")
    with running(slurm, workflow, target) as process:
        (queued,) = wait_for(lambda: jobs_of(slurm, training, "PENDING"), process)
        process.kill()
    with contextlib.ExitStack() as running_still:
        with running(slurm, workflow, target) as process:
            wait_for(lambda: len(jobs_of(slurm, training, "PENDING")) == 2, process)
            slurm("scancel", "--jobname=blocker")
            wait_for(lambda: log.is_file() and "steps 1 to 100" in log.read_text(), process, every=0.005)
            # Not for long: processes that train together give up when they miss heartbeats for 100 seconds.
            running_still.callback(signal_all, workflow.folder, signal.SIGCONT)
            signal_all(workflow.folder, signal.SIGSTOP)
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
        wait_for(lambda: not jobs_of(slurm, training, "RUNNING", "COMPLETING"))
        with running(slurm, workflow, target) as process:
            finish(process, workflow)
    ended = {job["JobId"]: job["JobState"] for job in jobs_of(slurm, training)}
    assert ended == {first["JobId"]: "COMPLETED", queued["JobId"]: "FAILED"}
    assert len((workflow / target).read_text().splitlines()) == 101
