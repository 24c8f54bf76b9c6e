"""profiles/tpu-vm against a simulated gcloud whose TPU VMs are processes of this machine."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import forked
import pytest
from conftest import ROOT, Workflow, configured, copied, existing, outside
from gcloud_simulator import Cloud, parsed, processes
from kills import fingerprints, processes_in, wait_for
from tpu_vm import gcloud, jobs, settings, slices, state
from tpulm.config.reading import read_yaml
from tpulm.core.accelerators import ANY_DEVICES
from tpulm.core.errors import UserError

# A chain of jobs such as the segments of a run: each appends where it ran to what the one before left.
CHAIN = """
rule all:
    input: "results/a/2"

rule prepare:
    output: "results/corpus"
    shell: "echo ${{SIMULATED_VM-here}} > {output}"

rule train:
    input: lambda w: "results/corpus" if w.step == "1" else f"results/{w.run}/1"
    output: "results/{run}/{step}"
    log: "logs/finetune/{run}/{step}.log"
    resources:
        run_key=lambda w: f"finetune.runs.{w.run}", accelerator=config.get("accelerator", "v5e-8"),
        hosts=config.get("hosts", 1), runtime=60
    shell: "echo '[train] begins {wildcards.step}'; sh train.sh {wildcards.step}; cat {input} > {output};"
           " echo $SIMULATED_VM >> {output}"
"""

RESOURCES = {"run_key": "finetune.runs.x_1", "accelerator": "v6e-8", "runtime": 9}
PROPERTIES = {"rule": "train_finetune", "jobid": 7, "threads": 2, "log": ["logs/finetune/x_1/00000005.log"]}
PROPERTIES["resources"] = RESOURCES


def command(process: int) -> str:
    """Return the command of a process, nothing of one that has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def cloud_in(folder: Path) -> Cloud:
    """Return a cloud with a `gcloud` in its folder bin."""
    cloud = Cloud(folder / "cloud")
    for name in ("bin", "image/.cache/tpu-vm"):
        (cloud.folder / name).mkdir(parents=True)
    program = cloud.folder / "bin/gcloud"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/gcloud_simulator.py "$@"\n')
    program.chmod(0o755)
    (cloud.folder / "environment.json").write_text("{}")
    return cloud


def environment_of(cloud: Cloud) -> dict[str, str]:
    return {"CLOUD": str(cloud.folder), "PATH": f"{cloud.folder}/bin:{os.environ['PATH']}"}


class Project:
    def __init__(self, folder: Path, workflow: Path | None = None):
        self.folder, self.steady = workflow or folder / "chain", workflow is not None
        self.cloud = cloud_in(folder)
        passed = {name: value for name, value in os.environ.items() if name.startswith(forked.READ_ON_IMPORT)}
        (self.cloud.folder / "environment.json").write_text(json.dumps(passed))
        if not workflow:
            self.folder.mkdir()
            (self.folder / "Snakefile").write_text(CHAIN)
            for part in ("profiles", "envs", "scripts"):
                (self.folder / part).symlink_to(ROOT / part)
            (self.folder / "results").mkdir()
            (self.folder / "results/corpus").write_text("before\n")
            self.train("")
        # The image has the software already: installing it is tested apart, with software that is small.
        with contextlib.chdir(self.folder):
            software = self.cloud.folder / "image" / slices.software("tpu").removeprefix("$HOME/")
        software.mkdir()
        (software / "ready").touch()
        python = Workflow.python(self.steady)
        (software / "environment").symlink_to(Path(python).parents[1])

    def train(self, line: str) -> None:
        (self.folder / "train.sh").write_text(line)

    def environment(self, **settings: str) -> dict:
        kept = {key: value for key, value in outside().items() if not key.startswith("TPU_")}
        given = {"TPU_PROJECT": "p", "TPU_ZONE": "z", "TPU_MOUNT": "touch mounted", "TPU_POLL_SECONDS": "0.3"}
        given[ANY_DEVICES] = "1"  # there are no TPUs
        return kept | given | environment_of(self.cloud) | settings

    def start(self, *arguments: str, **settings: str) -> forked.Process:
        workflow = existing(self.folder)
        workflow.steady = self.steady
        command = ["--workflow-profile", "profiles/tpu-vm", "--seconds-between-status-checks", "1"]
        return workflow.start(*command, *arguments, environment=self.environment(**settings))

    def run(self, *arguments: str, code: int = 0, **settings: str) -> str:
        """Run Snakemake to the end of its supervisor, which holds its output open; return what both said."""
        running = self.start(*arguments, **settings)
        said, _ = running.communicate()
        assert running.returncode == code, said[-6000:]
        return said

    def tpu(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "profiles/tpu-vm/tpu.py", *arguments], cwd=self.folder, env=self.environment(**settings),
            capture_output=True, text=True,
        )  # fmt: skip

    def submit(self, line: str, runtime: float = 9, **settings: str) -> str:
        """Hand a job that runs a line of sh on a v6e-8 to a supervisor, as Snakemake does; return its id."""
        properties = PROPERTIES | {"resources": RESOURCES | {"runtime": runtime}}
        (self.folder / "script").write_text(f"#!/bin/sh\n# properties = {json.dumps(properties)}\n{line}\n")
        # Not the end of standard error: the supervisor holds it, and lives as long as this process.
        done = subprocess.run(
            [sys.executable, "profiles/tpu-vm/tpu.py", "submit", "script"], cwd=self.folder,
            env=self.environment(**settings), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    def status(self, job: str) -> str:
        return self.tpu("status", job).stdout.strip()

    def log(self) -> str:
        return (self.folder / ".snakemake/tpu-vm/log").read_text()

    def stop(self) -> None:
        for process in self.supervisors():
            os.kill(process, signal.SIGTERM)
        wait_for(lambda: not self.supervisors())

    def tpu_name(self) -> str:
        with contextlib.chdir(self.folder):
            return state.new_resource_name("finetune-a", "v6e-8")

    def supervisors(self) -> list[int]:
        return [process for process in processes_in(self.folder) if " supervise " in command(process)]

    def places(self) -> list[str]:
        return (self.folder / "results/a/2").read_text().split()


@pytest.fixture
def project(tmp_path) -> Project:
    return Project(tmp_path)


def begin(project: Project, text: str, *arguments: str, **settings: str) -> forked.Process:
    """Start Snakemake and wait until this is printed."""
    running = project.start(*arguments, **settings)
    seen = []
    for line in running.stdout:
        seen.append(line)
        if text in line:
            return running
    raise AssertionError("".join(seen))


def test_one_resource_serves_a_run_and_is_deleted(project):
    (project.folder / "results/corpus").unlink()
    said = project.run()
    first, second, third = project.places()
    assert first == "here" and second == third and second.endswith("/0")
    name = second.split("/")[0]
    assert project.cloud.names() == [] and not processes(name)
    (created,) = project.cloud.calls("create")
    assert created[4] == name and "--accelerator-type=v5litepod-8" in created and "--spot" in created
    assert len(project.cloud.calls("list")) == len(project.cloud.calls("delete")) == 1
    setup, *work = project.cloud.calls("ssh")
    assert "setup.sh" in setup[-1] and len(work) == 2  # the software, once
    assert all("FORCE_TF_AVAILABLE=1" in call[-1] for call in work)
    # The terminal has what the jobs say of their progress, and not what Snakemake says of them on the workers.
    assert said.count("[train] begins") == 2 and said.count("\nrule train:") == 2


@pytest.mark.long
def test_errors_and_late_answers_are_waited_out(project):
    unavailable = "503: The service is currently unavailable"
    project.cloud.fault("list", error=unavailable)
    project.cloud.fault("create", error="DEADLINE_EXCEEDED: no answer", done=True)  # the request got through
    project.cloud.fault("describe", error=unavailable)
    rate = "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute'"
    project.cloud.fault("describe", error=f"RESOURCE_EXHAUSTED: {rate} of service 'tpu.googleapis.com'")
    project.cloud.fault("ssh", error="[/usr/bin/ssh] exited with return code [255]")
    project.cloud.fault("ssh", disconnect="begins 1")
    project.cloud.fault("ssh", preempt="begins 2")
    project.cloud.fault("delete", error=unavailable, done=True)
    said = project.run()
    _, first, second = project.places()
    assert first != second and project.cloud.names() == []
    assert "it was preempted" in said and "[tpu-vm] error: " not in said
    # A resource asked for twice has one name: it is one.
    names = [call[4] for call in project.cloud.calls("create")]
    assert names[0] == names[1] == first.split("/")[0] and names[2:] == [second.split("/")[0]]


def test_an_error_that_stays_ends_in_one_sentence(project, monkeypatch):
    for name, value in project.environment().items():
        monkeypatch.setenv(name, value)
    project.cloud.fault("list", error="503: The service is currently unavailable", times=6)
    with pytest.raises(UserError, match="^`gcloud compute tpus queued-resources list .* failed 6 times.* 503: "):
        gcloud.own_resources()
    project.cloud.fault("create", error="NOT_FOUND: Project 'p' was not found")
    with pytest.raises(UserError, match="Project 'p' was not found"):
        gcloud.run(gcloud.create_arguments(project.tpu_name(), "v6e-8"))
    project.cloud.fault("create", error="RESOURCE_EXHAUSTED: Quota limit 'TPUV5s' has been exceeded")
    said = project.run(code=1)
    (error,) = (line for line in said.splitlines() if line.startswith("[tpu-vm] error: "))
    assert "'TPUV5s'" in error
    assert len(project.cloud.calls("create")) == 2 and project.cloud.names() == []


@pytest.mark.long
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_snakemake(project, sent):
    project.train("[ $1 = 1 ] || sleep 600")
    running = begin(project, "begins 2")
    (name,) = project.cloud.names()
    assert processes(name)
    os.killpg(running.pid, sent) if sent == signal.SIGINT else os.kill(running.pid, sent)
    said = running.communicate()[0]
    assert f"deleting {name}: snakemake ended" in said
    assert project.cloud.names() == [] and not processes(name) and not project.supervisors()
    project.train("")
    assert "begins 1" not in project.run() and project.cloud.names() == []
    first, second = project.places()[1:]
    assert first == f"{name}/0" and second != first


@pytest.mark.long
def test_what_a_killed_supervisor_leaves_is_deleted_at_the_next_start(project):
    project.train("[ $1 = 1 ] || sleep 600")
    running = begin(project, "begins 2")
    (name,) = project.cloud.names()
    assert "a snakemake is using the TPUs of this folder" in project.tpu("clean").stderr
    for process in (running.pid, *project.supervisors()):
        os.kill(process, signal.SIGKILL)
    wait_for(lambda: not processes(name))  # the job ends with its connection
    job = next(path.name for path in (project.folder / ".snakemake/tpu-vm/jobs").glob("train-1-*"))
    for name_of_job in (job, "another"):
        asked = project.tpu("status", name_of_job)
        assert asked.stdout == "failed\n" and "error: the TPU supervisor " in asked.stderr
    assert project.tpu("list").stdout == f"{name} ACTIVE\n"
    # Another folder's are not this one's.
    with project.cloud.resources() as found:
        found["snakemake-00000000-b"] = found[name]
    project.train("")
    assert f"deleting {name}, " in project.run()
    assert project.cloud.names() == ["snakemake-00000000-b"]


def test_clean_deletes_also_what_resists_for_a_while(project):
    name = project.tpu_name()
    with project.cloud.resources() as found:
        found[name] = {"state": "PROVISIONING", "accelerator": "v6e-8"}
    done = project.tpu("list", TPU_MOUNT="")
    identity = (project.folder / ".snakemake/tpu-vm/folder").read_text()
    assert name.startswith(f"snakemake-{identity}-") and done.stdout == f"{name} PROVISIONING\n"
    done = project.tpu("clean", TPU_MOUNT="")
    assert done.returncode == 0 and name in done.stderr and project.cloud.names() == []


@pytest.mark.long
def test_what_cannot_be_deleted_is_named_and_stops_nothing(project):
    times = 3 * gcloud.ATTEMPTS  # of a deletion
    project.cloud.fault("delete", error="PERMISSION_DENIED: no", times=2 * times)
    job = project.submit("true", TPU_POLL_SECONDS="0.03")
    wait_for(lambda: project.status(job) == "success")
    (name,) = project.cloud.names()
    project.stop()
    assert name in project.log().splitlines()[-1]
    with project.cloud.resources() as found:
        found[project.tpu_name()] = found[name]
    done = project.tpu("clean", TPU_POLL_SECONDS="0.03")
    assert done.returncode == 1 and f"\nerror: {name} " in done.stderr
    assert project.cloud.names() == [name]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_call_that_is_broken_off_ends_with_its_children(tmp_path, monkeypatch, stopped):
    """As gcloud's ssh: they hold its streams."""
    program = tmp_path / "gcloud"
    program.write_text("#!/bin/sh\nsleep 100000 & echo $! > child.new; mv child.new child; wait\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    stop = threading.Event()
    if stopped:
        threading.Thread(target=lambda: (wait_for((tmp_path / "child").exists), stop.set())).start()
        with pytest.raises(gcloud.Stopped):
            gcloud.call([], stop, 100_000)
    else:
        assert gcloud.call([], stop, 3)[:2] == (1, "")
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    wait_for(lambda: not child.exists() or child.read_text().split()[2] == "Z")


@pytest.mark.long
def test_a_slice_that_idles_is_given_back(project):
    first = project.submit("true", TPU_IDLE_MINUTES="0.02")
    wait_for(lambda: project.status(first) == "success")
    wait_for(lambda: project.cloud.calls("delete"))
    second = project.submit("true", TPU_IDLE_MINUTES="0.02")
    wait_for(lambda: project.status(second) == "success")
    project.stop()
    assert len(project.cloud.calls("create")) == 2 and project.cloud.names() == []


@pytest.mark.long
def test_a_job_ends_when_its_time_is_up_and_when_it_is_cancelled(project):
    def at_work() -> str:
        return "\n".join(map(command, processes(name)))

    late, next_one = project.submit("sleep 600", runtime=0.03), project.submit("sleep 600")
    wait_for(lambda: project.status(late) == "failed")
    assert "resources.runtime of finetune.runs.x_1" in project.log()
    (name,) = project.cloud.names()
    wait_for(lambda: next_one in at_work())
    assert subprocess.run([project.folder / "profiles/tpu-vm/cancel", next_one], cwd=project.folder).returncode == 0
    wait_for(lambda: project.status(next_one) == "failed")
    assert late not in at_work() and next_one not in at_work()
    project.stop()
    assert project.cloud.names() == [] and len(project.cloud.calls("create")) == 1


@pytest.mark.long
def test_a_slice_of_several_hosts(project):
    """Software on all; a job that is told so starts the others; when one of those fails, the job does."""
    project.train("PATH=$PATH; python3 profiles/tpu-vm/tpu.py launch 1 'echo [train] on $SIMULATED_VM; sleep 600'")
    project.cloud.fault("ssh", crash="[train] on", worker=1)
    said = project.run("--config", "accelerator=v4-16", "hosts=2", code=1)
    setups = [call for call in project.cloud.calls("ssh") if "setup.sh" in call[-1]]
    assert sorted(call[5] for call in setups) == ["--worker=0", "--worker=1"]
    (name,) = {call[4] for call in project.cloud.calls("ssh")}
    assert f"[train] on {name}/1" in said and project.cloud.names() == []
    assert not list((project.folder / "results/a").glob("*"))


@pytest.mark.parametrize(
    ("hosts", "accelerator", "allowed"),
    [(2, "v6e-8", 1), (None, "v5e-16", 4), (1, "v3-32", 4), (1, "v5p-16", 2)],
)
def test_hosts_that_do_not_fit_the_slice_are_refused_before_there_is_one(hosts, accelerator, allowed):
    def asked(**resources):
        return jobs.request(PROPERTIES | {"resources": RESOURCES | {"accelerator": accelerator} | resources})

    with pytest.raises(UserError, match=rf"^finetune\.runs\.x_1 .*resources\.hosts is .*; allowed: {allowed}\."):
        asked(hosts=hosts)
    assert asked(hosts=allowed)["hosts"] == allowed
    assert asked(run_hosts=allowed)["hosts"] == 1  # an evaluation
    with pytest.raises(UserError, match=r"^finetune\.runs\.x_1 .*tpu7x-8"):
        asked(accelerator="tpu7x-8")


def job_in(folder: Path, **resources) -> jobs.Job:
    (folder / "job.json").write_text(json.dumps(jobs.request(PROPERTIES | {"resources": RESOURCES | resources})))
    return jobs.Job(folder)


def test_whatever_happens_in_a_deletion_the_slice_is_named(monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gcloud, "delete", fail)
    monkeypatch.setattr(slices, "say", print)
    used = slices.Slice("finetune-x_1", "v6e-8", threading.Event())
    used.name = "slice"
    used.stop.set()
    used.close()
    assert used.undeleted == ["slice"]


def test_mistakes_end_in_one_sentence(project):
    script = project.folder / "script"
    script.write_text(f"# properties = {json.dumps(PROPERTIES)}\n")
    for name, value, said in (
        ("TPU_ZONE", "", "TPU_ZONE"),
        ("TPU_TIER", "cheap", "TPU_TIER is cheap; allowed: spot, "),
        ("TPU_IDLE_MINUTES", "five", "TPU_IDLE_MINUTES is 'five'; allowed: "),
        ("PATH", "/nowhere", "gcloud is not on PATH"),
    ):
        done = project.tpu("submit", str(script), **{name: value})
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert said in done.stderr


@pytest.mark.long
def test_mistakes_are_said_before_anything_runs(fresh, tmp_path):
    configured(fresh, {"finetune.runs.python.resources": {"accelerator": "h100:4"}}, "config.yaml")
    said = Project(tmp_path, fresh.folder).run("finetune", code=1)
    (last,) = [line for line in said.splitlines() if "error: " in line]
    assert re.match(r"error: finetune\.runs\.python .*resources\.accelerator is h100:4; allowed: ", last)
    assert said.rstrip().endswith(last) and "Traceback" not in said
    assert not (fresh / "results/corpus").exists() and not (fresh / ".snakemake/tpu-vm/jobs").exists()


def test_a_python_without_packages_is_enough():
    """For this machine's `python3`, and for workers before they have any software."""
    bare = [sys.executable, "-I", "-S", str(ROOT / "profiles/tpu-vm/tpu.py")]
    done = subprocess.run([*bare, "list"], env={}, capture_output=True, text=True)
    assert done.stderr.startswith("error: ") and "TPU_PROJECT" in done.stderr
    done = subprocess.run([*bare, "launch", "0", "echo here"], env={}, capture_output=True, text=True)
    assert done.stdout == "here\n"
    settings.check_python((3, 11))
    with pytest.raises(UserError, match=r"^python3 is Python 3\.9 .*; allowed: 3\.11 to 3\.13"):
        settings.check_python((3, 9))  # the locks are for others


@pytest.mark.parametrize(
    ("settings", "accelerator", "expected"),
    [
        ({}, "v5p-8", ["v5p-8", "v2-alpha-tpuv5", "--spot"]),
        ({"TPU_TIER": "on-demand", "TPU_RUNTIME": "other"}, "v6e-256", ["v6e-256", "other"]),
        (
            {"TPU_TIER": "flex-start", "TPU_MAX_HOURS": "2"},
            "v5e-4",
            ["v5litepod-4", "v2-alpha-tpuv5-lite", "--provisioning-model=flex-start", "--max-run-duration=7200s"],
        ),
        (
            {"TPU_NETWORK": "n", "TPU_SUBNETWORK": "s", "TPU_SERVICE_ACCOUNT": "a", "TPU_INTERNAL_IPS": "1",
             "TPU_PREFIX": "a-prefix-as-long-as-"},
            "v4-8",
            ["v4-8", "tpu-ubuntu2204-base", *("--network=n --subnetwork=s --service-account=a".split()),
             "--internal-ips", "--spot"],
        ),
    ],
)  # fmt: skip
def test_what_is_asked_for(monkeypatch, settings, accelerator, expected):
    for name, value in {"TPU_PROJECT": "p", "TPU_ZONE": "z", **settings}.items():
        monkeypatch.setenv(name, value)
    name = state.new_resource_name("finetune.runs." + "A_long_name-" * 9, accelerator)
    arguments = gcloud.create_arguments(name, accelerator)
    asked, named, flags = parsed(arguments)  # none that is not documented
    assert flags["--scopes"] == "https://www.googleapis.com/auth/cloud-platform"
    assert asked.startswith("alpha") == (settings.get("TPU_TIER") == "flex-start")
    assert named == flags["--node-id"] == name and name.startswith(state.name_prefix())
    assert re.fullmatch("[a-z][a-z0-9-]{0,61}[a-z0-9]", name)
    assert [flags[flag] for flag in ("--accelerator-type", "--runtime-version")] == expected[:2]
    always = {"--node-id", "--accelerator-type", "--runtime-version", "--scopes", "--zone", "--project", "--quiet"}
    assert [flag for flag in arguments if flag.startswith("--") and flag.split("=")[0] not in always] == expected[2:]


def test_software_comes_from_the_locks_with_their_hashes(tmp_path):
    """By setup.sh, with programs in place of python3, pip and uv that note what they are asked for."""
    programs, asked, target = tmp_path / "bin", tmp_path / "asked", tmp_path / "software"
    programs.mkdir()
    tool = f'echo "${{0##*/}} $*" >> {asked}; case "$*" in *"$FAILS"*) exit 1; esac'
    make = f'mkdir -p "$3/bin" && for name in python uv; do cp {programs}/tool "$3/bin/$name"; done'
    for name, text in (("tool", tool), ("python3", make)):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)

    def setup(fails):
        command = ["sh", ROOT / "profiles/tpu-vm/setup.sh", target, "tpu-tensorflow", "3.11"]
        environment = {"PATH": f"{programs}:/usr/bin:/bin", "FAILS": fails}
        return subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    done = setup("pip sync")
    assert done.returncode == 1 and not (target / "ready").exists()
    assert done.stdout.splitlines()[-1].startswith("error: ")
    asked.unlink()
    assert setup("nothing").returncode == 0 and (target / "ready").exists()
    environment = f"{target}/environment"
    expected = [
        "python -m pip install --quiet --require-hashes -r envs/bootstrap.txt",
        f"uv venv --quiet --python 3.11 {environment}",
        f"uv pip sync --quiet --require-hashes --compile-bytecode --python {environment}/bin/python "
        "envs/tpu-tensorflow.txt envs/gcs.txt",
    ]
    assert asked.read_text().splitlines() == expected
    assert setup("pip sync").stdout == "" and asked.read_text().splitlines() == expected  # it is there


def test_a_worker_that_sees_another_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TPU_MOUNT", "cd elsewhere")
    for part in ("envs", "elsewhere"):
        (tmp_path / part).mkdir()
    for name in ("bootstrap.txt", "tpu.txt", "gcs.txt"):
        (tmp_path / "envs" / name).touch()
    command = slices.setup_command(job_in(tmp_path))
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == 1 and gcloud.PERMANENT.search(done.stderr)
    assert f"a worker does not see {tmp_path}: TPU_MOUNT " in done.stderr


def test_workers_install_what_their_run_trains_with(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TPU_MOUNT", "true")
    for backend, environment in (("jax", "tpu"), ("tensorflow", "tpu-tensorflow")):
        job, software = job_in(tmp_path, backend=backend), slices.software(environment)
        command = slices.setup_command(job)
        assert software in command and f" {environment} 3." in command
        assert f"{software}/environment/bin/python" in slices.work_command(job, "vm", 1)


def test_the_profile_repeats_the_flags_of_the_default():
    ours, default = (read_yaml(ROOT / f"profiles/{name}/config.yaml") for name in ("tpu-vm", "default"))
    del default["resources"]  # runs do not take turns: each has a slice
    assert ours | default == ours


@pytest.mark.long
def test_training_on_tpu_vms_gives_the_bytes_of_training_here(trained, tmp_path):
    """Two segments on one slice, which is preempted in the middle of the second."""
    workflow = copied(trained, tmp_path)
    away = read_yaml(workflow / "config.yaml")["finetune"]["runs"]["python"] | {"resources": {"accelerator": "v5e-8"}}
    configured(workflow, {"finetune.runs.away": away}, "config.yaml")
    project = Project(tmp_path, workflow.folder)
    project.cloud.fault("ssh", preempt="[finetune away] step 6/10")
    said = project.run("results/finetune/away/history.csv")
    assert "it was preempted" in said and project.cloud.names() == []
    first, second = (call[4] for call in project.cloud.calls("create"))
    jobs = [call for call in project.cloud.calls("ssh") if " work " in call[-1]]
    assert [call[4] for call in jobs] == [first, first, second]
    here, away = (fingerprints(workflow / f"results/finetune/{run}/checkpoints") for run in ("python", "away"))
    assert len(away) >= 8 and {name: here[name] for name in away} == away


@pytest.mark.parametrize("fails", [False, True])
def test_the_loop_of_the_guide_creates_a_vm_until_the_run_is_done(tmp_path, fails):
    """The first VM is preempted. Where the run itself fails, the loop ends. No VM is left, whatever is answered."""
    cloud = cloud_in(tmp_path)
    guide = (ROOT / "docs/guides/one-tpu-vm.md").read_text()
    (tmp_path / "loop.sh").write_text(re.search(r"```bash\n(.*?)```", guide, re.S)[1])
    tries = f"echo try >> {tmp_path}/tries\necho begins\n[ $(wc -l < {tmp_path}/tries) -gt 1 ] || sleep 1000\n"
    (tmp_path / "run.sh").write_text(f"{tries}exit {int(fails)}\n")
    cloud.fault("ssh", preempt="begins")
    cloud.fault("delete", error="UNAVAILABLE: try again", times=3)  # the last one with the preempted VM
    cloud.fault("delete", error="UNAVAILABLE: after it was done", done=True, times=2)
    cloud.fault("create", error="RESOURCE_EXHAUSTED: there is no capacity")
    setting = {"NAME": "first", "ZONE": "z", "TYPE": "v5litepod-8", "IMAGE": "v2-alpha-tpuv5-lite", "PAUSE": "0"}
    environment = os.environ | setting | environment_of(cloud)
    done = subprocess.run(["bash", "loop.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == fails, done.stderr
    assert (tmp_path / "tries").read_text() == "try\ntry\n" and len(cloud.calls("create")) == 4
    assert ("has failed" in done.stdout) == fails and cloud.names() == []


def test_the_guide_types_what_google_documents():
    guide = (ROOT / "docs/guides/one-tpu-vm.md").read_text()
    commands = re.findall(r"^(?:\$ |.*`)gcloud (compute tpus .*?)(?:`.*| +#.*)?$", guide, re.M)
    assert len(commands) >= 8
    for command in commands:
        parsed(command.split())
