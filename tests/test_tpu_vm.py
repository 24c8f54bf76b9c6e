"""profiles/tpu-vm against a simulated gcloud whose TPU VMs are processes of this machine."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, copied
from gcloud_simulator import Cloud, hosts, processes
from lib.config import read_yaml
from ruamel.yaml import YAML

spec = importlib.util.spec_from_file_location("tpu", ROOT / "profiles/tpu-vm/tpu.py")
tpu = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tpu)

SNAKEMAKE = str(Path(sys.executable).with_name("snakemake"))
# A chain of jobs such as the segments of a run: each appends where it ran to what the one before left.
CHAIN = """
rule all:
    input: expand("results/{run}/2", run=config.get("runs", ["a"]))

rule prepare:
    output: "results/corpus"
    shell: "echo ${{SIMULATED_VM-here}} > {output}"

rule train:
    input: lambda w: "results/corpus" if w.step == "1" else "results/a/1".replace("a", w.run)
    output: "results/{run}/{step}"
    log: "logs/lora/{run}/{step}.log"
    resources: accelerator=config.get("accelerator", "v5e-8"), hosts=config.get("hosts", 1), runtime=60
    shell: "echo '[train] begins {wildcards.step}'; sh train.sh {wildcards.step}; cat {input} > {output};"
           " echo $SIMULATED_VM >> {output}"
"""


class Project:
    """A folder with a workflow, and a cloud of its own."""

    def __init__(self, folder: Path, workflow: Path | None = None):
        self.folder = workflow or folder / "chain"
        self.cloud = Cloud(folder / "cloud")
        for name in ("bin", "image/.cache/tpu-vm"):
            (self.cloud.folder / name).mkdir(parents=True)
        gcloud = self.cloud.folder / "bin/gcloud"
        gcloud.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/gcloud_simulator.py "$@"\n')
        gcloud.chmod(0o755)
        passed = {name: os.environ[name] for name in ("JAX_COMPILATION_CACHE_DIR",) if name in os.environ}
        (self.cloud.folder / "environment.json").write_text(json.dumps(passed))
        if not workflow:
            self.folder.mkdir()
            (self.folder / "Snakefile").write_text(CHAIN)
            for part in ("profiles", "envs"):
                (self.folder / part).symlink_to(ROOT / part)
            self.train("")
        # The image has the software already: installing it is tested apart, with software that is small.
        here = os.getcwd()
        os.chdir(self.folder)
        software = self.cloud.folder / "image" / tpu.software().removeprefix("$HOME/")
        os.chdir(here)
        software.mkdir()
        (software / "ready").touch()
        (software / "environment").symlink_to(sys.prefix)

    def train(self, line: str) -> None:
        """Set what a job of the chain does."""
        (self.folder / "train.sh").write_text(line)

    def environment(self, **settings: str) -> dict:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "TPU_"))}
        given = {"TPU_PROJECT": "p", "TPU_ZONE": "z", "TPU_MOUNT": "touch mounted", "TPU_POLL_SECONDS": "0.3"}
        path = f"{self.cloud.folder}/bin:{os.environ['PATH']}"
        return kept | given | {"CLOUD": str(self.cloud.folder), "PATH": path} | settings

    def start(self, *arguments: str, **settings: str) -> subprocess.Popen:
        command = [SNAKEMAKE, "--workflow-profile", "profiles/tpu-vm", "--seconds-between-status-checks", "1"]
        return subprocess.Popen(
            [*command, *arguments], cwd=self.folder, env=self.environment(**settings), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, *arguments: str, code: int = 0, **settings: str) -> str:
        """Run Snakemake to its end, and to that of its keeper, which holds its output open; return what both said."""
        running = self.start(*arguments, **settings)
        try:
            said, _ = running.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            raise
        assert running.returncode == code, said[-6000:]
        return said

    def tpu(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess:
        """Run a command of the profile."""
        return subprocess.run(
            [sys.executable, "profiles/tpu-vm/tpu.py", *arguments], cwd=self.folder, env=self.environment(**settings),
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    def keeper(self) -> list[int]:
        """Return the keepers of this folder."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    arguments = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
                    if b"keep" in arguments and os.readlink(f"/proc/{entry}/cwd") == str(self.folder):
                        found.append(int(entry))
                except OSError:
                    continue
        return found

    def places(self, run: str = "a") -> list[str]:
        """Return where the jobs of a run ran."""
        return (self.folder / f"results/{run}/2").read_text().split()


@pytest.fixture
def project(tmp_path) -> Project:
    return Project(tmp_path)


def verbs(calls):
    """Return the commands of calls, without the repetitions of one that waits."""
    found = [call[3] if call[0] != "alpha" else call[4] for call in calls]
    return [verb for number, verb in enumerate(found) if number == 0 or verb != found[number - 1]]


def test_one_resource_serves_a_run_and_is_deleted(project):
    said = project.run()
    first, second, third = project.places()
    assert first == "here" and second == third and second.endswith("/0")
    name = second.split("/")[0]
    assert project.cloud.names() == [] and not processes(name)
    calls = [call for call in project.cloud.calls() if name in call]
    place = ["--zone=z", "--project=p", "--quiet"]
    assert project.cloud.calls("list") == [["compute", "tpus", "queued-resources", "list", *place, "--format=json"]]
    assert project.cloud.calls("create") == [
        [
            "compute", "tpus", "queued-resources", "create", name, f"--node-id={name}",
            "--accelerator-type=v5litepod-8", "--runtime-version=v2-alpha-tpuv5-lite",
            "--scopes=https://www.googleapis.com/auth/cloud-platform", "--spot", *place,
        ]
    ]  # fmt: skip
    describe = ["compute", "tpus", "queued-resources", "describe", name, *place, "--format=json"]
    assert describe in calls
    assert ["compute", "tpus", "tpu-vm", "describe", name, *place, "--format=json"] in calls
    assert project.cloud.calls("delete") == [["compute", "tpus", "queued-resources", "delete", name, "--force", *place]]
    ssh = project.cloud.calls("ssh")
    assert [call[:-1] for call in ssh] == [["compute", "tpus", "tpu-vm", "ssh", name, "--worker=0", *place]] * 3
    commands = [call[-1].removeprefix("--command=") for call in ssh]
    assert commands[0].startswith("{ touch mounted ; } >&2 && cd ")  # once, before the jobs
    assert all(" work .snakemake/tpu-vm/jobs/train-" in command for command in commands[1:])
    assert "[train] begins 1" in said and f"deleting {name}: snakemake ended" in said
    assert "echo" not in said.replace("echo '[train]", "")


def test_a_preempted_job_starts_again_elsewhere(project):
    project.cloud.fault("ssh", preempt="begins 2")
    said = project.run()
    _, first, second = project.places()
    assert first != second and "it was preempted" in said
    assert project.cloud.names() == [] and len(project.cloud.calls("create")) == 2


def test_errors_and_late_answers_are_waited_out(project):
    unavailable = "503: The service is currently unavailable"
    project.cloud.fault("list", error=unavailable)
    project.cloud.fault("create", error="DEADLINE_EXCEEDED: no answer", done=True)  # it came late, but it came
    project.cloud.fault("describe", error=unavailable, times=2)
    project.cloud.fault("describe", late=1)
    project.cloud.fault("ssh", error="[/usr/bin/ssh] exited with return code [255]")
    project.cloud.fault("ssh", disconnect="begins 2")
    project.cloud.fault("delete", error=unavailable, done=True)
    said = project.run()
    assert project.cloud.names() == [] and "the connection to" in said
    (first, again) = [call[4] if False else call[4] for call in project.cloud.calls("create")]
    assert first == again  # a second request would be a second bill
    assert len(set(project.places())) == 2


def test_an_error_that_stays_ends_in_one_sentence(project):
    project.cloud.fault("create", error="503: The service is currently unavailable", times=100)
    said = project.run(code=1)
    (line,) = [line for line in said.splitlines() if line.startswith("[tpu-vm] error")]
    assert line.endswith("failed 6 times; the last time: ERROR: (gcloud) 503: The service is currently unavailable.")
    assert project.cloud.names() == []


def test_an_error_that_no_repetition_mends_is_not_repeated(project):
    project.cloud.fault("create", error="RESOURCE_EXHAUSTED: Quota limit 'TPUV5sPerProject' has been exceeded")
    said = project.run(code=1)
    assert "Quota limit 'TPUV5sPerProject' has been exceeded." in said
    assert len(project.cloud.calls("create")) == 1 and project.cloud.names() == []


def test_a_job_that_fails_ends_the_workflow_and_the_tpu(project):
    project.train("[ $1 = 1 ] || { echo '[train] error: the loss is nan.'; exit 1; }")
    (project.folder / "Snakefile").write_text(
        CHAIN.replace("sh train.sh {wildcards.step};", "sh train.sh {wildcards.step} &&")
    )
    said = project.run(code=1)
    assert "[train] error: the loss is nan." in said and said.count("[train] begins 2") == 1
    assert project.cloud.names() == [] and (project.folder / "results/a/1").exists()


def until(condition, seconds=60):
    """Wait until something holds."""
    for _ in range(10 * seconds):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come to be")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_snakemake(project, sent):
    """Ctrl-C, and a kill; SIGTERM lets the jobs at work end first."""
    project.train("[ $1 = 1 ] || sleep " + ("2" if sent == signal.SIGTERM else "600"))
    running = project.start()
    for line in running.stdout:
        if "begins 2" in line:
            break
    (name,) = project.cloud.names()
    assert processes(name)
    if sent == signal.SIGINT:
        os.killpg(running.pid, sent)  # as a terminal does
    else:
        os.kill(running.pid, sent)
    said = running.communicate(timeout=60)[0]
    assert f"deleting {name}: snakemake ended" in said
    assert project.cloud.names() == [] and not processes(name) and not project.keeper()
    project.train("")
    project.run()
    assert len(set(project.places())) == (3 if sent != signal.SIGTERM else 2) and project.cloud.names() == []


def test_what_a_killed_keeper_leaves_is_deleted_at_the_next_start(project):
    project.train("[ $1 = 1 ] || sleep 600")
    running = project.start()
    for line in running.stdout:
        if "begins 2" in line:
            break
    (name,) = project.cloud.names()
    (keeper,) = project.keeper()
    os.kill(running.pid, signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not processes(name))  # the job ends with its connection
    assert project.cloud.names() == [name]
    assert project.tpu("list").stdout == f"{name} ACTIVE\n"
    project.train("")
    said = project.run()
    assert f"deleting {name}, which was left behind" in said and project.cloud.names() == []


def test_a_killed_keeper_fails_its_jobs(project):
    project.train("[ $1 = 1 ] || sleep 600")
    running = project.start()
    for line in running.stdout:
        if "begins 2" in line:
            break
    os.kill(*project.keeper(), signal.SIGKILL)
    said = running.communicate(timeout=60)[0]
    assert running.returncode == 1 and "error: the keeper of the TPUs was killed" in said
    done = project.tpu("clean")
    assert done.stdout.startswith("deleted snakemake-") and project.cloud.names() == []
