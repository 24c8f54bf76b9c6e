"""A job of Snakemake's: what it asks for, the folder that it is handed over in, the process that runs it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tpulm.core.accelerators import TPUS, check_hosts, is_tpu, job_name, parse_tpu, run_hosts, slice_hosts
from tpulm.core.errors import UserError

from tpu_vm.state import say
from tpu_vm.worker import ENDED

# What workers install, by the backend of a run; tpu for any other. No environment can train with both on TPUs.
ENVIRONMENTS = {"tensorflow": "tpu-tensorflow"}


def request(properties: dict) -> dict:
    """Return what a job asks for, from what Snakemake says of it: the content of job.json.

    run          how the config calls the job's run, or the rule of a job that belongs to none: the jobs of one run
                 share a slice
    run_hosts    on which the run trains, also where this job, such as an evaluation, takes one of them
    environment  of envs/, by the run's backend

    Raises UserError where the accelerator is no TPU slice, or has another number of hosts.
    """
    resources, rule = properties["resources"], properties.get("rule") or properties["groupid"]
    run, accelerator, hosts = job_name(resources, rule), resources.get("accelerator"), run_hosts(resources)
    if accelerator:
        check_accelerator(run, accelerator, hosts)
    return {
        "rule": rule,
        "accelerator": accelerator,
        "environment": ENVIRONMENTS.get(resources.get("backend"), "tpu"),
        "run": run,
        "hosts": resources.get("hosts") or 1,
        "run_hosts": hosts,
        "runtime": resources.get("runtime"),
        "threads": properties["threads"],
    }


def check_accelerator(run: str, accelerator: str, hosts: int, found: int | None = None) -> None:
    """Raise UserError where a run asks for what is no TPU slice, or for another number of hosts than that has.

    found  how many hosts the slice has; without it, how many Google documents
    """
    try:
        if not is_tpu(accelerator):
            raise UserError(
                f"resources.accelerator is {accelerator}; allowed: TPU slices such as v5e-8, or another profile."
            )
        if TPUS[parse_tpu(accelerator)[0]].runtime is None:
            raise UserError(
                f"resources.accelerator is {accelerator}, which Cloud TPU's API does not have; allowed: another TPU, "
                "or profiles/gke."
            )
        check_hosts(hosts, accelerator, [found or slice_hosts(accelerator)])
    except UserError as error:
        raise UserError(f"{run} cannot run on Cloud TPU VMs: {error}") from None


class Job:
    """A job, by its folder: script, job.json, status, output; `cancelled` when it is to end."""

    def __init__(self, folder: Path):
        """Read what the job asks for."""
        self.folder, self.name = folder, folder.name
        asked = json.loads((folder / "job.json").read_text())
        self.accelerator, self.run, self.rule = asked["accelerator"], asked["run"], asked["rule"]
        self.environment = asked["environment"]
        self.hosts, self.run_hosts = asked["hosts"], asked["run_hosts"]
        self.minutes, self.threads = asked["runtime"], asked["threads"]

    def end(self, how: str) -> None:
        """Set the status, `success` or `failed`, for `status` to tell."""
        (self.folder / "status.new").write_text(how)
        os.replace(self.folder / "status.new", self.folder / "status")

    def fail(self, why: str) -> None:
        """Let the job fail with a sentence."""
        say(f"error: {self.name}: {why}")
        self.end("failed")

    def cancelled(self) -> bool:
        """Return whether the job is to end."""
        return (self.folder / "cancelled").exists()


class JobProcess:
    """A job at work under `work`, here or on a TPU VM: its output kept, its progress forwarded."""

    def __init__(self, job: Job, command: list[str]):
        """Start it."""
        self.code = None  # the job's exit code; stays None where its place was lost
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
        self.reader = threading.Thread(target=self.read, args=(job,), daemon=True)
        self.reader.start()

    def read(self, job: Job) -> None:
        """Keep the output; forward the lines that the workflow's scripts write: those that open with [label]."""
        with open(job.folder / "output", "a", buffering=1) as output:
            for line in self.process.stdout:
                output.write(line)
                if line.startswith(ENDED):
                    self.code = int(line[len(ENDED) :])
                elif re.match(r"\[[a-z]", line):
                    with contextlib.suppress(OSError):
                        print(line, end="", file=sys.stderr, flush=True)
        self.process.wait()

    def ended(self, seconds: float = 0.2) -> bool:
        """Return whether it ended within this time."""
        self.reader.join(seconds)
        return not self.reader.is_alive()

    def end(self) -> None:
        """End it: `work` does when its input ends; where that takes too long, let go of it."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        if not self.ended(30):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.ended(5)
