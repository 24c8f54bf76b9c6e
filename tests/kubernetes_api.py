"""A cluster on loopback: it speaks as much of the Kubernetes API as jobs need, and runs their pods as processes.

Every object that is made is checked against Kubernetes' own schema. Rules of a test say what a job's pods meet.
"""

import base64
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import kubernetes_validate
from loopback_bucket import Handler

VERSION = "1.33"
WAITING = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "nowhere/image:1"'}
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient google.com/tpu.",
}


class Cluster:
    """The objects of a cluster, and what becomes of its pods.

    fates   by the rule that a job runs, what its pods meet, in order: run, node (there is none), preempted; the last
            one lasts
    folder  where the pods have their folders, and volumes their content
    """

    image: Path  # folder of the programs that pods find first

    def __init__(self, folder: Path, fates: dict[str, list[str]] | None = None):
        self.folder, self.fates = folder, fates or {}
        self.made: list[dict] = []  # every object that was ever made, in order
        self.deleted: list[str] = []
        self.jobs: dict[str, Job] = {}
        self.seen: list[Job] = []  # the deleted ones, too
        self.refusals: list[str] = []
        # Requests that are yet to be answered with an error, by method and last word of the path.
        self.busy: Counter[tuple[str, str]] = Counter()
        # Set when somebody asked for a job's status; when that may be answered.
        self.asked, self.answering = threading.Event(), threading.Event()
        self.answering.set()
        self.lock = threading.RLock()
        handler = type("Handler", (ApiHandler,), {"cluster": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()
        for job in self.jobs.values():
            job.end()

    def kubeconfig(self) -> str:
        file = self.folder / "kubeconfig"
        server = f"http://127.0.0.1:{self.server.server_port}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        file.write_text(json.dumps(config))
        return str(file)

    def of(self, kind: str) -> list[dict]:
        return [made for made in self.made if made["kind"] == kind]

    def make(self, kind: str, version: str, body: dict) -> dict:
        body = {"apiVersion": version, "kind": kind} | {key: value for key, value in body.items() if value is not None}
        try:
            kubernetes_validate.validate(body, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            self.refusals.append(str(error))
            raise Refused(422, str(error)) from None
        name = body["metadata"]["name"]
        body["metadata"] |= {"namespace": "default", "uid": f"uid-of-{name}"}
        self.made.append(body)
        if kind == "Job":
            self.jobs[name] = Job(self, body)
            self.seen.append(self.jobs[name])
        return body


class Refused(Exception):
    """An answer that is an error."""


class Job:
    def __init__(self, cluster: Cluster, body: dict):
        self.cluster, self.body = cluster, body
        self.name, spec = body["metadata"]["name"], body["spec"]
        self.command = spec["template"]["spec"]["containers"][0]["args"]
        self.rule = re.search(r"--allowed-rules (\w+)", self.command[1])[1]
        self.pods: list[Pod] = []
        self.hosts = spec.get("completions", 1)
        for index in range(self.hosts):
            self.start(index)

    def start(self, index: int) -> None:
        fates = self.cluster.fates.get(self.rule, ["run"])
        self.pods.append(Pod(self, index, fates.pop(0) if len(fates) > 1 else fates[0]))

    def end(self) -> None:
        for pod in self.pods:
            pod.end()

    def status(self) -> dict:
        """Return the job's status, having done what a job's controller does."""
        for pod in list(self.pods):
            if pod.fate == "preempted" and "podFailurePolicy" in self.body["spec"] and not pod.replaced:
                pod.replaced = True
                self.start(pod.index)
        succeeded = {str(pod.index) for pod in self.pods if pod.phase() == "Succeeded"}
        enough = [rule["succeededIndexes"] for rule in self.body["spec"].get("successPolicy", {}).get("rules", [])]
        if len(succeeded) == self.hosts or succeeded & set(enough):
            self.end()  # of the pods that are left over
            return {"succeeded": 1, "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]}
        if any(pod.phase() == "Failed" and not pod.replaced for pod in self.pods):
            self.end()
            return {"failed": 1, "conditions": [{"type": "Failed", "status": "True"}]}
        return {"active": 1}


class Pod:
    """A pod: a process in a folder of its own, or on a volume."""

    def __init__(self, job: Job, index: int, fate: str):
        self.job, self.index, self.fate, self.replaced = job, index, fate, False
        self.name = f"{job.name}-{index}-{len(job.pods):05d}"
        self.process = self.run() if fate == "run" else None
        self.created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def run(self) -> subprocess.Popen:
        spec = self.job.body["spec"]["template"]["spec"]
        container, volume = spec["containers"][0], spec["volumes"][0]
        mount = container["volumeMounts"][0]
        claim = volume.get("persistentVolumeClaim")
        where = self.job.cluster.folder / (claim["claimName"] if claim else self.name) / mount.get("subPath", "")
        where.mkdir(parents=True, exist_ok=True)
        path = f"{self.job.cluster.image}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "PYTHON"))}
        environment |= {"PATH": path, "XDG_CACHE_HOME": tempfile.mkdtemp(dir=self.job.cluster.folder)}
        for variable in container.get("env", []):
            if "value" in variable:
                environment[variable["name"]] = variable["value"]
                continue
            wanted = variable["valueFrom"]["secretKeyRef"]
            secret = next(made for made in self.job.cluster.of("Secret") if made["metadata"]["name"] == wanted["name"])
            environment[variable["name"]] = base64.b64decode(secret["data"][wanted["key"]]).decode()
        if "completionMode" in self.job.body["spec"]:
            environment["JOB_COMPLETION_INDEX"] = str(self.index)
        self.output = self.job.cluster.folder / f"{self.name}.log"
        with open(self.output, "w") as log:
            return subprocess.Popen(
                [*container["command"], *container["args"]], cwd=where, env=environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def end(self) -> None:
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, 9)
            self.process.wait()

    def phase(self) -> str:
        if self.process:
            code = self.process.poll()
            return "Running" if code is None else "Failed" if code else "Succeeded"
        return "Pending" if self.fate == "node" else "Failed"

    def object(self) -> dict:
        status: dict = {"phase": self.phase()}
        container = {"name": "snakemake", "image": "nowhere/image:1", "imageID": "", "ready": False, "restartCount": 0}
        state = None
        if self.process:
            code = self.process.poll()
            state = {"running": {}} if code is None else {"terminated": {"exitCode": code, "reason": "Error"}}
        elif self.fate == "node":
            status["conditions"] = [UNSCHEDULABLE]
        elif self.fate == "preempted":
            status["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]
        if state:
            status["containerStatuses"] = [container | {"state": state}]
        metadata = {"name": self.name, "namespace": "default", "labels": {"job-name": self.job.name}}
        metadata["creationTimestamp"] = self.created
        if "completionMode" in self.job.body["spec"]:
            metadata["annotations"] = {"batch.kubernetes.io/job-completion-index": str(self.index)}
        spec = {"containers": [{"name": "snakemake"}]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


class ApiHandler(Handler):
    """The API: https://kubernetes.io/docs/reference/kubernetes-api."""

    cluster: Cluster
    KINDS = {"secrets": ("Secret", "v1"), "services": ("Service", "v1"), "jobs": ("Job", "batch/v1")}

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or "{}")
        address = urlparse(self.path)
        code, content = 200, {}
        about = self.command, address.path.rpartition("/")[2]
        if about == ("GET", "status"):
            self.cluster.asked.set()
            self.cluster.answering.wait(60)
        try:
            with self.cluster.lock:
                if self.cluster.busy[about]:
                    self.cluster.busy[about] -= 1
                    raise Refused(503, "Service Unavailable")
                content = self.content(address.path, parse_qs(address.query), body)
        except Refused as refused:
            code, message = refused.args
            content = {"kind": "Status", "status": "Failure", "code": code, "message": message}
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(content, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = answer

    def content(self, path: str, query: dict, body: dict):
        """Return what is answered to a request. Raises Refused."""
        found = re.fullmatch(r"/(?:api/v1|apis/batch/v1)/namespaces/default/(\w+)(?:/([\w-]+))?(?:/(\w+))?", path)
        if not found:
            raise Refused(404, f"no such path: {path}")
        kind, name, part = found.groups()
        if self.command == "POST":
            return self.cluster.make(*self.KINDS[kind], body)
        selector = dict(pair.split("=") for pair in query.get("labelSelector", [""])[0].split(",") if pair)
        if self.command == "DELETE":
            names = [name] if name else [job.name for job in self.chosen(selector)]
            if kind == "jobs" and query.get("propagationPolicy") not in (["Background"], ["Foreground"]):
                raise Refused(400, "the pods of a job stay unless it is said that they go")
            for name in names:
                self.cluster.deleted.append(f"{kind}/{name}")
                if kind == "jobs":
                    self.job(name).end()
                    del self.cluster.jobs[name]
            return {"kind": "Status", "status": "Success"}
        if kind == "jobs" and name:
            job = self.job(name)
            return job.body | {"status": job.status()}
        if kind == "jobs":
            chosen = [job.body | {"status": job.status()} for job in self.chosen(selector)]
            return {"apiVersion": "batch/v1", "kind": "JobList", "metadata": {}, "items": chosen}
        pods = [pod for job in self.cluster.jobs.values() for pod in job.pods]
        if part == "log":
            pod = next(pod for pod in pods if pod.name == name)
            if pod.process is None:
                raise Refused(400, "container is waiting to start")
            return pod.output.read_text()
        chosen = [pod.object() for pod in pods if pod.job.name == selector["job-name"]]
        return {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": chosen}

    def chosen(self, selector: dict) -> list[Job]:
        return [job for job in self.cluster.jobs.values() if selector.items() <= job.body["metadata"]["labels"].items()]

    def job(self, name: str) -> Job:
        if name not in self.cluster.jobs:
            raise Refused(404, f"jobs.batch {name} not found")
        return self.cluster.jobs[name]
