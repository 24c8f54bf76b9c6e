"""The GKE profile: what is sent to a cluster for each accelerator, and what is made of what becomes of it."""

import contextlib
import copy
import json
import re
import shutil
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from conftest import ROOT, Workflow, existing, outside
from kills import wait_for
from kubernetes import client
from kubernetes_api import UNSCHEDULABLE, WAITING, Cluster
from loopback_bucket import in_place_of_google
from snakemake_executor_plugin_gke.outcome import last_error, outcome
from snakemake_executor_plugin_gke.placement import place
from tpulm.core.errors import UserError
from tpulm.core.ledger import jobs_of
from tpulm.release.provenance import provenance

TPU, GPU = "google.com/tpu", "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("accelerator", "hosts", "resource", "count", "name", "topology"),
    [
        ("v5e-8", 1, TPU, 8, "tpu-v5-lite-podslice", "2x4"),
        ("v5e-8", 2, TPU, 4, "tpu-v5-lite-podslice", "2x4"),
        ("v6e-32", 8, TPU, 4, "tpu-v6e-slice", "4x8"),
        ("v3-8", 1, TPU, 4, "tpu-v3-device", "2x2"),
        ("v3-32", 4, TPU, 4, "tpu-v3-slice", "4x4"),
        ("v5p-64", 8, TPU, 4, "tpu-v5p-slice", "2x4x4"),
        ("tpu7x-128", 16, TPU, 4, "tpu7x", "4x4x4"),
        ("h100:4", 1, GPU, 4, "nvidia-h100-80gb", None),
    ],
)
def test_what_a_pod_asks_for(accelerator, hosts, resource, count, name, topology):
    placed = place(accelerator, hosts)
    expected = {"cloud.google.com/gke-accelerator": name}
    if topology:
        expected = {"cloud.google.com/gke-tpu-accelerator": name, "cloud.google.com/gke-tpu-topology": topology}
    assert (placed.resource, placed.count, placed.selector) == (resource, count, expected)
    # A job on one host, such as an evaluation of a run on several, gets what one host of the run has.
    for whole, alone in ((("v5e-256", 64), "v5e-4"), (("v3-32", 4), "v3-8"), (("v5p-64", 8), "v5p-8")):
        assert place(*whole, share=True) == place(alone, 1)


@pytest.mark.parametrize(
    ("accelerator", "hosts", "said"),
    [
        ("v2-8", 1, "resources.accelerator is v2-8, .*; allowed: v3, v4, v5e, v5p, v6e, tpu7x"),
        ("gtx:1", 1, "resources.accelerator is gtx:1, .*; allowed: t4, v100, l4, a100"),
        ("v5e-12", 3, '"v5e-12" .* allowed for v5e: 1, 4, 8, 16, '),
        ("v5e-16", 1, "resources.hosts is 1, but v5e-16 .*; allowed: 4"),
        ("v5p-8", 2, "resources.hosts is 2, but v5p-8 .*; allowed: 1"),
    ],
)
def test_what_gke_does_not_have_is_said(accelerator, hosts, said):
    with pytest.raises(UserError, match=said):
        place(accelerator, hosts)


# A workflow as small as can be: a job without an accelerator, jobs with one, a job on two hosts.
SNAKEFILE = """
rule all:
    default_target: True
    localrule: True
    input: "results/gpu.txt", "results/two.txt"

rule plain:
    output: "results/plain.txt"
    shell: "echo text > {output}"

rule tpu:
    input: "results/plain.txt"
    output: "results/tpu.txt"
    resources: accelerator="v5e-8", runtime=90, mem_mb=9000
    shell: "cat {input} {input} > {output}"

rule gpu:
    input: "results/tpu.txt"
    output: "results/gpu.txt"
    threads: 2
    resources: accelerator="h100:4"
    shell: "wc -l < {input} > {output}"

rule two:
    input: "results/tpu.txt"
    output: "results/two.txt"
    resources: accelerator="v5e-16", hosts=int(config.get("hosts", 4))
    script: "scripts/two.py"

rule fails:
    output: "results/fails.txt"
    resources: accelerator="v6e-4"
    script: "scripts/fails.py"
"""
TWO = """
import os, sys
sys.path.insert(0, "scripts")
from tpulm.core import processes

if not processes.launch_workers(snakemake.resources, lambda words: print(words, file=sys.stderr)):
    with open(f"host{processes.number()}", "w") as file:  # in the folder that all see
        file.write(f"{processes.number()} of {processes.count()} on {os.environ['JOB_COMPLETION_INDEX']}")
    sys.exit()
with open(snakemake.output[0], "w") as file:
    file.write("\\n".join(open(f"host{number}").read() for number in range(snakemake.resources.hosts)))
"""
FAILS = """
import sys
print("[finetune x] error: the loss became NaN at step 7.", file=sys.stderr)
sys.exit(1)
"""


class Folder:
    def __init__(self, workflow, bucket, cluster):
        self.workflow, self.bucket, self.cluster = workflow, bucket, cluster

    @contextlib.contextmanager
    def start(self, *arguments, image="registry.example/image:1", **environment):
        """Start `snakemake` with the profile as the README beside it says; it is killed if it does not end."""
        command = [
            "--workflow-profile", "profiles/gke", "--default-storage-prefix", "gs://bucket/run",
            "--storage-gcs-project", "project", "--seconds-between-status-checks", "1",
            *(["--container-image", image] if image else []), *arguments,
        ]  # fmt: skip
        own = {"PYTHONPATH": "profiles/gke", "KUBECONFIG": self.cluster.kubeconfig()}
        running = self.workflow.start(*command, environment=outside() | own | environment)
        try:
            yield running
        finally:
            running.kill()
            running.wait()
            running.stdout.close()

    def __call__(self, *arguments, **options):
        with self.start(*arguments, **options) as running:
            printed, _ = running.communicate()
        return subprocess.CompletedProcess(running.args, running.returncode, printed)

    def read(self, name):
        return self.bucket.get(f"/bucket/run/results/{name}").decode()


@pytest.fixture(scope="module")
def bucket():
    with in_place_of_google() as found:
        yield found


@pytest.fixture(scope="module", autouse=True)
def image():
    """The Python of the pods, which start Snakemake twice each: it is forked."""
    Cluster.image = Path(Workflow.python()).parent


@pytest.fixture(scope="module")
def workflow(tmp_path_factory):
    """A folder under git with the workflow and the profile: Snakemake sends to the pods what git knows."""
    folder = tmp_path_factory.mktemp("gke") / "workflow"
    for part in ("profiles/gke", "scripts/tpulm"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "Snakefile").write_text(SNAKEFILE)
    (folder / "scripts/two.py").write_text(TWO)
    (folder / "scripts/fails.py").write_text(FAILS)
    under_git(folder)
    return existing(folder)


def under_git(folder):
    shutil.copy(ROOT / ".gitignore", folder)
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=folder, check=True)


@pytest.fixture(scope="module")
def finished(workflow, bucket, tmp_path_factory):
    """All of the workflow, run on a cluster that starts pods as they are sent."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        run = Folder(workflow, bucket, cluster)
        cluster.busy["GET", "status"] = 3  # answers with errors at first
        run.printed = run("--gke-shared-volume", "shared", "--gke-spot").stdout
        yield run


def sent(cluster, rule):
    """Return the Job that was sent for a rule, its pod, and the container in that."""
    for made in cluster.of("Job"):
        pod = made["spec"]["template"]["spec"]
        if f"--allowed-rules {rule} " in pod["containers"][0]["args"][1]:
            return made["spec"], pod, pod["containers"][0]
    raise AssertionError(f"no job was sent for {rule}")


def test_a_workflow_runs_in_pods_and_leaves_nothing_behind(finished):
    assert finished.cluster.refusals == [], finished.printed
    assert finished.read("tpu.txt") == "text\ntext\n" and finished.read("gpu.txt") == "2\n"
    made = {f"{made['kind'].lower()}s/{made['metadata']['name']}" for made in finished.cluster.made}
    # The service of several hosts goes with its job, which owns it.
    services = {name for name in made if name.startswith("services/")}
    assert made - services == {name for name in finished.cluster.deleted if not name.startswith("pods/")}
    assert len(services) == 1 and finished.cluster.jobs == {}
    assert "Nothing to be done" in finished("-n", "--gke-shared-volume", "shared").stdout
    # A mistake is said before anything is sent.
    refused = finished("--forceall", "--gke-shared-volume", "x", "--config", "hosts=2")
    assert refused.returncode == 1 and "error: rule two " in refused.stdout and finished.cluster.jobs == {}


def test_what_a_job_needs_is_asked_for(finished):
    _, pod, container = sent(finished.cluster, "plain")
    assert pod["nodeSelector"] == {} and "tolerations" not in pod and "activeDeadlineSeconds" not in pod
    assert container["resources"] == {"requests": {"cpu": "950m", "memory": "4000M", "ephemeral-storage": "4000M"}}
    assert "pip install" not in container["args"][1]  # the image has what its lock says
    _, pod, container = sent(finished.cluster, "gpu")
    assert container["resources"]["limits"] == {GPU: "4"} and container["resources"]["requests"][GPU] == "4"
    assert container["resources"]["requests"]["cpu"] == "1900m"
    spec, pod, container = sent(finished.cluster, "tpu")
    selector = {"gke-tpu-accelerator": "tpu-v5-lite-podslice", "gke-tpu-topology": "2x4", "gke-spot": "true"}
    assert pod["nodeSelector"] == {f"cloud.google.com/{name}": value for name, value in selector.items()}
    assert container["resources"]["limits"] == {TPU: "8"}
    assert container["resources"]["requests"][TPU] == "8" and container["resources"]["requests"]["memory"] == "9000M"
    tolerated = [(entry["key"], entry["value"], entry["effect"]) for entry in pod["tolerations"]]
    spot = ("cloud.google.com/gke-spot", "true", "NoSchedule")
    assert tolerated == [(TPU, "present", "NoSchedule"), spot]
    assert pod["activeDeadlineSeconds"] == 90 * 60  # counts from when it has a node
    # What is preempted starts again; everything else that fails is told at once.
    assert spec["podFailurePolicy"]["rules"][0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert (spec["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    assert spec["ttlSecondsAfterFinished"] == 24 * 3600


def test_several_hosts_are_one_job_in_one_folder(finished):
    spec, pod, container = sent(finished.cluster, "two")
    (mount,) = container["volumeMounts"]
    name = mount["subPath"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (4, 4, "Indexed")
    assert container["resources"]["limits"] == {TPU: "4"} and "podFailurePolicy" not in spec
    # A run that has stopped early needs no other hosts: they are never called, and do not keep the job.
    assert spec["successPolicy"]["rules"] == [{"succeededIndexes": "0"}]
    assert pod["volumes"] == [{"name": mount["name"], "persistentVolumeClaim": {"claimName": "shared"}}]
    (service,) = finished.cluster.of("Service")
    assert pod["subdomain"] == service["metadata"]["name"] == name
    assert service["spec"] == {"clusterIP": "None", "selector": {"job-name": name}}
    assert service["metadata"]["ownerReferences"][0]["uid"] == f"uid-of-{name}"
    assert finished.read("two.txt").splitlines() == [f"{number} of 4 on {number}" for number in range(4)]
    assert not list((finished.cluster.folder / "shared" / name).iterdir())  # nothing stays on the volume


def pod(minutes=0, condition=None, **status):
    """Return a pod as Kubernetes tells of it, so many minutes old."""
    created = datetime.now(UTC) - timedelta(minutes=minutes)
    conditions = [client.V1PodCondition(**condition)] if condition else []
    status = client.V1PodStatus(conditions=conditions, **status)
    return client.V1Pod(metadata=client.V1ObjectMeta(creation_timestamp=created), status=status)


def container(**state):
    """Return the statuses of a pod's containers, of which the one that matters has this state."""
    one = {"name": "snakemake", "image": "i:1", "image_id": "", "ready": False, "restart_count": 0}
    return [client.V1ContainerStatus(state=client.V1ContainerState(**state), **one)]


PREEMPTED = {"type": "DisruptionTarget", "status": "True"}


def test_what_became_of_pods_is_a_sentence():
    failed = client.V1Job(status=client.V1JobStatus(conditions=[client.V1JobCondition(type="Failed", status="True")]))
    active = client.V1Job(status=client.V1JobStatus(active=1))
    waiting = client.V1ContainerStateWaiting(**WAITING)
    ended = {name: client.V1ContainerStateTerminated(exit_code=1, reason=name) for name in ("OOMKilled", "Error")}
    for job, pods, said in (
        (active, [pod(300, PREEMPTED), pod(1, UNSCHEDULABLE)], None),
        (active, [pod(300, PREEMPTED), pod(61, UNSCHEDULABLE)], "no node with a TPU in 60 minutes"),
        (active, [pod(container_statuses=container(waiting=waiting))], "ImagePullBackOff"),
        (failed, [pod(container_statuses=container(terminated=ended["OOMKilled"]))], "resources.mem_gb"),
        (failed, [pod(container_statuses=container(terminated=ended["Error"]))], "exit code 1"),
        (failed, [pod(reason="DeadlineExceeded")], "resources.runtime"),
        (failed, [pod(condition=PREEMPTED)], "it was preempted"),
        (failed, [], "its pod was deleted"),
    ):
        found = outcome(job, pods, 60, "a TPU")
        assert found == said if said is None else said in found and found.endswith(".") and "\n" not in found
    said = "[finetune x] error: the loss became NaN at step 7."
    assert last_error(f"[finetune x] step 7\n{said}\nTraceback\n") == said


@pytest.mark.long
def test_a_failure_ends_in_one_sentence_and_a_preempted_pod_starts_again(workflow, bucket, tmp_path):
    with Cluster(tmp_path, {"plain": ["preempted", "run"], "gpu": ["node"]}) as cluster:
        run = Folder(workflow, bucket, cluster)
        targets = [f"results/{name}.txt" for name in ("fails", "plain", "gpu")]
        printed = run(*targets, "--keep-going", "--gke-wait-minutes", "0", "--forcerun", "plain", "gpu").stdout
    for name, sentence in (("fails", "the loss became NaN"), ("gpu", "no node with 4 nvidia.com/gpu")):
        (said,) = (line for line in printed.splitlines() if f"message: {name}: " in line)
        assert sentence in said, printed
    assert "Traceback" not in printed and "message: plain" not in printed and run.read("plain.txt") == "text\n"
    made = {f"jobs/{made['metadata']['name']}" for made in cluster.of("Job")}
    assert len(made) >= 3 and made <= set(cluster.deleted)
    logs = [line.split()[1] for line in printed.splitlines() if line.strip().startswith("log: ")]
    assert any("the loss became NaN" in open(log).read() for log in logs)


@pytest.mark.long
def test_jobs_of_the_workflow_itself_go_to_pods(bucket, tmp_path, monkeypatch):
    """None stays here for the code that it has among its inputs; only the page is written here."""
    monkeypatch.setattr(Cluster, "image", Path(Workflow.python(steady=True)).parent)
    workflow = Workflow(tmp_path / "workflow")
    workflow.steady = True
    (workflow / "experiments/one").mkdir(parents=True)
    for folder in (".", "experiments/one"):
        (workflow / folder / "config.yaml").write_text("corpus: {source: python-docs, max_documents: 600}\n")
    under_git(workflow.folder)
    (tmp_path / "cluster").mkdir()
    with Cluster(tmp_path / "cluster") as cluster:
        run = Folder(workflow, bucket, cluster)
        # Pods get the files of the working folder, and the workflow is above that of an experiment.
        refused = run("-d", "experiments/one", "corpus", "--default-storage-prefix", "gs://bucket/one")
        assert refused.returncode == 1 and cluster.of("Job") == []
        assert ": --configfile experiments/one/config.yaml --default-storage-prefix PREFIX" in refused.stdout
        target = ["results/report.html", "--default-storage-prefix", "gs://bucket/real"]
        done = run(*target)
        assert done.returncode == 0, done.stdout
        made = ["read_part", "assign_splits", "build_corpus", "describe_corpus"]
        assert [job.rule for job in cluster.seen] == made
        record = bucket.get("/bucket/real/results/corpus/corpus.json")
        assert json.loads(record) and not (workflow / "results/corpus").exists()
        account = json.loads(bucket.get("/bucket/real/results/jobs.json"))["jobs"]
        assert len(account) == len(made) and all(job["failed"] == [] and job["cpu_seconds"] > 0 for job in account)
        copies = Path(".snakemake/storage/gcs/bucket/real/results/jobs")
        records = {job["rule"]: job for job in jobs_of(workflow.folder, copies)}
        assert {*made} <= set(records)
        assert all(job["attempts"][0]["exit"] == 0 and job["host"]["processors"] for job in records.values())
        assert " by read_part " in "\n".join(provenance("results/corpus/corpus.json", workflow.folder))
        assert "Nothing to be done" in run(*target).stdout


@pytest.mark.long
def test_a_mistake_is_said_before_anything_is_sent(workflow, bucket, tmp_path):
    with Cluster(tmp_path) as cluster:
        run = Folder(workflow, bucket, cluster)
        text = Path(cluster.kubeconfig()).read_text()
        (tmp_path / "closed").write_text(text.replace(f":{cluster.server.server_port}", ":9"))
        for arguments, options, said in (
            ([], {"image": None}, "--container-image is not given"),
            ([], {}, "rule two .*--gke-shared-volume is not given"),
            (["results/plain.txt"], {"KUBECONFIG": "/dev/null"}, "no cluster is set up here"),
            (["results/plain.txt"], {"KUBECONFIG": f"{tmp_path}/closed"}, "the cluster cannot be used"),
        ):
            done = run("--forceall", *arguments, **options)
            assert done.returncode == 1 and re.search(f"error: {said}", done.stdout), done.stdout
            assert "Traceback" not in done.stdout and "File " not in done.stdout, done.stdout
        assert cluster.of("Job") == []


@pytest.mark.long
def test_jobs_of_a_killed_snakemake_keep_the_next_one_out(workflow, bucket, tmp_path):
    with Cluster(tmp_path, {"plain": ["node"]}) as cluster:
        run = Folder(workflow, bucket, cluster)
        with run.start("results/plain.txt", "--forceall") as first:
            wait_for(lambda: cluster.of("Job"), first)
        done = run("results/plain.txt", "--forceall")
        label = cluster.of("Job")[0]["metadata"]["labels"]["snakemake-results"]
        assert done.returncode == 1 and f"--selector snakemake-results={label}" in done.stdout
        assert len(cluster.of("Job")) == 1 and len([name for name in cluster.deleted if "secrets" in name]) == 1


@pytest.mark.long
def test_ctrl_c_deletes_what_runs(workflow, bucket, tmp_path):
    """Also what is just being looked at, though the cluster does not answer at once; not what another one sent."""
    with Cluster(tmp_path, {"plain": ["node"]}) as cluster:
        cluster.answering.clear()
        cluster.busy["DELETE", "jobs"] = 1
        with Folder(workflow, bucket, cluster).start("results/plain.txt", "--forceall") as running:
            wait_for(cluster.asked.is_set, running)
            other = copy.deepcopy(cluster.of("Job")[0])
            other["metadata"]["name"] = other["metadata"]["labels"]["snakemake-run"] = "other"
            with cluster.lock:
                cluster.make("Job", "batch/v1", other)
            try:
                running.send_signal(signal.SIGINT)
                wait_for(lambda: list(cluster.jobs) == ["other"], running)
            finally:
                cluster.answering.set()
            printed, _ = running.communicate()
        assert running.returncode == 1 and "job was deleted" not in printed, printed
        assert any(name.startswith("secrets/") for name in cluster.deleted)
        del cluster.jobs["other"]  # which would keep the next one out
        # What cannot be deleted may run on, and is named.
        cluster.busy["DELETE", "jobs"] = 9
        cluster.asked.clear()
        with Folder(workflow, bucket, cluster).start("results/plain.txt", "--forceall") as running:
            wait_for(cluster.asked.is_set, running)
            running.send_signal(signal.SIGINT)
            printed, _ = running.communicate()
        run = cluster.of("Job")[-1]["metadata"]["labels"]["snakemake-run"]
        assert f"kubectl delete jobs --namespace default --selector snakemake-run={run}" in printed
