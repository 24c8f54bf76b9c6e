"""The jobs that ask for a TPU slice: its queued resource, the software of its workers, the jobs on it."""

from __future__ import annotations

import hashlib
import os
import queue
import re
import shlex
import sys
import threading
import time

from tpulm.core.accelerators import ANY_DEVICES, HOST_CHIPS, shape_name
from tpulm.core.errors import UserError

from tpu_vm import gcloud
from tpu_vm.gcloud import Missing, Stopped
from tpu_vm.jobs import Job, JobProcess, check_accelerator
from tpu_vm.settings import number, setting
from tpu_vm.state import PROFILE, PROGRAM, new_resource_name, say

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"  # workers get the one of this machine
PREEMPTIONS = 20  # of one job, before it is given up: a segment that outlasts its slices so often never ends
LOST = 5  # connections of one job to a slice that is healthy
SETUP_SECONDS = 3600  # that setting up a worker may take


class Slice:
    """The jobs of one run that ask for one kind of slice: one after another, on one resource as long as it lives."""

    def __init__(self, run: str, accelerator: str, stop: threading.Event):
        """Wait for jobs."""
        self.run, self.accelerator, self.stop = run, accelerator, stop
        self.jobs: queue.Queue[Job] = queue.Queue()
        self.name: str | None = None  # of the resource, while there may be one
        self.workers = 0  # its hosts, once it is set up
        self.undeleted: list[str] = []  # resources that resisted
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def close(self) -> None:
        """Wait until what was to be ended and deleted is; `stop` is set."""
        self.thread.join()

    def serve(self) -> None:
        """Run the jobs as they come; delete the resource when none has come for a while, and at the end.

        An error that no job can be told, such as a full disk where its status is written, ends the supervisor:
        Snakemake learns from `status` that it is gone.
        """
        idle, why = time.monotonic(), "snakemake ended"
        try:
            while not self.stop.is_set():
                try:
                    job = self.jobs.get(timeout=0.2)
                except queue.Empty:
                    if self.name and time.monotonic() - idle > 60 * number("TPU_IDLE_MINUTES"):
                        self.release("it was idle")
                    continue
                try:
                    job.end("success" if self.complete(job) else "failed")
                except Stopped:
                    job.end("failed")
                except Exception as error:  # whatever it is, the job ends, and the resource does with the supervisor
                    job.fail(str(error) if isinstance(error, UserError) else repr(error))
                    if not self.workers:
                        self.release("it could not be set up")
                idle = time.monotonic()
        except Exception as error:
            why = "the supervisor cannot continue"
            say(f"error: {why}: {error}.")
        self.stop.set()
        self.release(why)

    def release(self, why: str) -> None:
        """Delete the resource, if there may be one. One that resists is told, and tried again at the next start."""
        if not self.name:
            return
        say(f"deleting {self.name}: {why}")
        try:
            gcloud.delete(self.name)
        except Exception as error:  # whatever it is, the supervisor's last line names what is left
            say(f"error: {error}")
            self.undeleted.append(self.name)
        self.name, self.workers = None, 0

    def complete(self, job: Job) -> bool:
        """Run a job, on a new resource where one is preempted; return whether it succeeded.

        Raises UserError and Stopped.
        """
        preempted = lost = 0
        while preempted <= PREEMPTIONS and lost <= LOST:
            if job.cancelled():
                raise Stopped
            try:
                if not self.workers:
                    self.make_ready(job)
                code = self.attempt(job)
            except Missing:  # preempted and gone while it was asked for
                code = None
            if code == 0:
                return True
            # A VM that is being taken away ends its jobs before Google says so.
            if self.healthy() and not self.stop.wait(number("TPU_POLL_SECONDS")) and self.healthy():
                if code is not None:
                    say(f"{job.name} failed on {self.name}; its output: {job.folder / 'output'}")
                    return False
                lost += 1
                say(f"the connection to {self.name} was lost; {job.name} starts again")
            else:
                preempted += 1
                self.release("it was preempted")
                say(f"{job.name} starts again on a new {self.accelerator}")
        raise UserError(
            f"its slices were preempted {preempted} times; reduce checkpoint_every for shorter jobs."
            if preempted > PREEMPTIONS
            else f"the connection to {self.name} was lost {lost} times."
        )

    def make_ready(self, job: Job) -> None:
        """Create a resource, wait until it is there, set up the software of its workers, once.

        Raises UserError, Stopped, and Missing where it is gone again.
        """
        self.name = self.name or new_resource_name(self.run, self.accelerator)
        say(f"requesting {self.accelerator} ({setting('TPU_TIER')}): {self.name}")
        gcloud.run(gcloud.create_arguments(self.name, self.accelerator), self.stop)
        self.wait_until_active(job)
        workers = len(gcloud.describe("tpu-vm", self.name, self.stop)["networkEndpoints"])
        check_accelerator(job.run, self.accelerator, job.run_hosts, found=workers)
        self.on_all(workers, setup_command(job))
        self.workers = workers

    def wait_until_active(self, job: Job) -> None:
        """Wait until Google has given the resource. Raises UserError, Stopped, and Missing where it is gone again."""
        state = None
        while state != "ACTIVE":
            found = gcloud.describe("queued-resources", self.name, self.stop).get("state", {})
            if found.get("state") != state:
                say(f"{self.name} is {found.get('state')}")
            state = found.get("state")
            if state == "FAILED":
                reason = found.get("failedData", {}).get("error", {}).get("message", "Google gave no reason")
                raise UserError(f"{self.name} could not be created: {reason.rstrip('.')}.")
            if state in ("SUSPENDING", "SUSPENDED"):
                raise Missing
            if state != "ACTIVE" and (self.stop.wait(number("TPU_POLL_SECONDS")) or job.cancelled()):
                raise Stopped

    def on_all(self, workers: int, command: str) -> None:
        """Run a line of sh on all workers at once. Raises what the first that failed raised."""
        failures: list[Exception] = []

        def run(worker: int) -> None:
            try:
                gcloud.run(gcloud.ssh_arguments(self.name, worker, command), self.stop, SETUP_SECONDS)
            except Exception as failure:
                failures.append(failure)

        threads = [threading.Thread(target=run, args=(worker,)) for worker in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def attempt(self, job: Job) -> int | None:
        """Run a job once on worker 0; return its exit code, None where slice or connection were lost before it ended.

        Raises UserError when it takes longer than it may, Stopped when it is to end.
        """
        command = work_command(job, self.name, self.workers)
        process = JobProcess(job, ["gcloud", *gcloud.ssh_arguments(self.name, 0, command)])
        poll, looked = number("TPU_POLL_SECONDS"), time.monotonic()
        deadline = looked + 60 * job.minutes if job.minutes else float("inf")
        try:
            while not process.ended():
                if self.stop.is_set() or job.cancelled():
                    raise Stopped
                if time.monotonic() > deadline:
                    raise UserError(f"it took longer than resources.runtime of {job.run}, {job.minutes} minutes.")
                if time.monotonic() - looked > poll:
                    if not self.healthy():
                        return None
                    looked = time.monotonic()
            return process.code
        finally:
            process.end()

    def healthy(self) -> bool:
        """Return whether the resource is there and its node ready. Raises UserError, Stopped."""
        try:
            state = gcloud.describe("queued-resources", self.name, self.stop).get("state", {}).get("state")
            return state == "ACTIVE" and gcloud.describe("tpu-vm", self.name, self.stop).get("state") == "READY"
        except Missing:
            return False


def software(environment: str) -> str:
    """Return the folder of a worker's software, for sh on the worker: named by what it is made from."""
    lock = PROFILE.parents[1] / "envs" / f"{environment}.txt"
    locks = re.findall(r"^-r (\S+)$", lock.read_text(), re.M)
    sources = [lock, *(lock.with_name(name) for name in (*locks, "gcs.txt"))]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    return f"$HOME/.cache/tpu-vm/{PYTHON}-{digest}"


def setup_command(job: Job) -> str:
    """Return the line of sh that lets a worker see this folder and have the software; it can be repeated."""
    folder, proof = shlex.quote(os.getcwd()), shlex.quote(str(job.folder / "script"))
    blind = shlex.quote(f"ERROR: a worker does not see {os.getcwd()}: TPU_MOUNT has to mount it there")
    return (
        f"{{ {setting('TPU_MOUNT')} ; }} >&2 && cd {folder} && test -e {proof} || {{ echo {blind} >&2; exit 1; }}; "
        f"sh {shlex.quote(str(PROFILE / 'setup.sh'))} {software(job.environment)} {job.environment} {PYTHON} >&2"
    )


def work_command(job: Job, name: str, workers: int) -> str:
    """Return the line of sh that runs a job on worker 0 of a resource with so many workers."""
    variables = {"TPU_VM": name} | {key: setting(key) for key in ("TPU_ZONE", "TPU_PROJECT")}
    variables |= {"TPU_INTERNAL_IPS": "1"} if setting("TPU_INTERNAL_IPS") else {}
    # transformers looks for TensorFlow under the names of packages, and tensorflow-tpu is not among them.
    variables["FORCE_TF_AVAILABLE"] = "1"
    variables |= {ANY_DEVICES: os.environ[ANY_DEVICES]} if ANY_DEVICES in os.environ else {}
    if job.hosts == 1 < workers:
        # One process of a slice with several hosts: it would wait for the others, unless its own chips are all.
        chips = f"{shape_name(HOST_CHIPS, 2).replace('x', ',')},1"
        variables |= {"TPU_PROCESS_BOUNDS": "1,1,1", "TPU_CHIPS_PER_PROCESS_BOUNDS": chips}
    pairs = shlex.join(f"{variable}={value}" for variable, value in variables.items())
    folder, program = shlex.quote(os.getcwd()), shlex.quote(str(PROGRAM))
    return f"cd {folder} && exec {software(job.environment)}/environment/bin/python {program} work {job.folder} {pairs}"
