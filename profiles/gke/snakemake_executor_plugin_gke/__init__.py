"""Snakemake on GKE: the Kubernetes executor, with accelerators, with several hosts, and with failures in one sentence.

The executor that exists writes the Kubernetes Job of a Snakemake job, keeps secrets and cancels. This one adds to
that Job what the job's resources ask for before it is sent, and reads differently what becomes of it.

resources  run_key, how the config calls the run that the job belongs to, for messages;
           accelerator, such as v5e-8 or h100:4; hosts, or run_hosts where a job of such a run takes one host;
           runtime, minutes that a pod may take once it has a node
"""

import functools
import hashlib
import shlex
import sys
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import kubernetes
import snakemake_executor_plugin_kubernetes as kubernetes_executor
from kubernetes import client
from kubernetes.client.rest import ApiException
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from urllib3.exceptions import HTTPError

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

from tpulm.core.accelerators import job_name, run_hosts
from tpulm.core.errors import UserError

from .manifest import COMPLETION_INDEX, adapted, service
from .outcome import DONE, last_error, outcome
from .placement import Placement, place

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

# The image has the storage plugin, from the lock; pip would fetch whatever version is newest.
common_settings = replace(kubernetes_executor.common_settings, auto_deploy_default_storage_provider=False)
OWNER = "snakemake-results"  # label that says whose results a job makes
RUN = "snakemake-run"  # label that says which Snakemake sent it


@dataclass
class ExecutorSettings(kubernetes_executor.ExecutorSettings):
    """The Kubernetes executor's settings, and those of GKE."""

    wait_minutes: int = field(
        default=60, metadata={"help": "How long pods may wait for a node with the requested resources."}
    )
    spot: bool = field(default=False, metadata={"help": "Run jobs that request accelerators on spot nodes."})
    shared_volume: str = field(
        default="",
        metadata={"help": "Claim (ReadWriteMany) of the volume on which the hosts of one job share its folder."},
    )


class Jobs(client.BatchV1Api):
    """The API for Kubernetes Jobs, which makes each as `change` returns it."""

    def __init__(self, change: Callable[[client.V1Job], client.V1Job] = lambda body: body) -> None:
        super().__init__()
        self.change = change

    def create_namespaced_job(self, namespace: str, body: client.V1Job, **options) -> client.V1Job:
        """Create a Job."""
        return super().create_namespaced_job(namespace, self.change(body), **options)


class Executor(kubernetes_executor.Executor):
    """The Kubernetes executor, with accelerators."""

    def __post_init__(self) -> None:
        """Check all jobs and the cluster before the first job is sent; end Snakemake in a sentence otherwise."""
        self.settings = self.workflow.executor_settings
        prefix = self.workflow.storage_settings.default_storage_prefix or ""
        self.owner = hashlib.sha256(prefix.encode()).hexdigest()[:16]
        try:
            if "/snakemake/snakemake:" in f"/{self.workflow.remote_execution_settings.container_image}":
                raise UserError("--container-image is not given; allowed: an image built from profiles/gke/Dockerfile.")
            for job in self.dag.needrun_jobs():
                if not job.is_local:
                    self.placement(job)
            super().__post_init__()
            self.batchapi = Jobs()
            self.refuse_second()
        except UserError as error:
            sys.exit(f"error: {error}")
        except kubernetes.config.ConfigException as error:
            sys.exit(
                f"error: no cluster is set up here ({error}); gcloud container clusters get-credentials sets it up."
            )
        except (ApiException, HTTPError) as error:
            sys.exit(f"error: the cluster cannot be used: {reason(error)}.")

    def refuse_second(self) -> None:
        """Raise UserError while jobs of an earlier Snakemake still write the same results."""
        selector = f"{OWNER}={self.owner}"
        try:
            jobs = self.batchapi.list_namespaced_job(self.namespace, label_selector=selector).items
            running = [job for job in jobs if job.status.active]
            if running:
                raise UserError(
                    f"{len(running)} jobs of another snakemake, or of one that was killed, still write these results; "
                    "wait until they end, or stop them: "
                    f"kubectl delete jobs --namespace {self.namespace} --selector {selector}"
                )
        except (UserError, ApiException, HTTPError):
            self.unregister_secret()
            raise

    def placement(self, job: JobExecutorInterface) -> Placement | None:
        """Return where a job's pods run; None where any node will do. Raises UserError."""
        asked = job.resources
        accelerator, hosts, name = asked.get("accelerator"), asked.get("hosts") or 1, job_name(asked, job.name)
        if hosts > 1 and not self.settings.shared_volume:
            raise UserError(
                f"{name} requests resources.hosts: {hosts}, but --gke-shared-volume is not given; allowed: the claim "
                "of a volume that all hosts can write to (profiles/gke/README.md)."
            )
        try:
            share = asked.get("run_hosts") is not None
            return place(accelerator, run_hosts(asked), share) if accelerator else None
        except UserError as error:
            raise UserError(f"{name} cannot run on GKE: {error}") from None

    def run_job(self, job: JobExecutorInterface) -> None:
        """Send a job, as the Kubernetes executor writes it, with what its resources ask for."""
        placement, hosts = self.placement(job), job.resources.get("hosts") or 1
        if placement:
            self.logger.info(f"{job.name} requests {placement}{f', on each of {hosts} hosts' if hosts > 1 else ''}.")
        self.batchapi.change = functools.partial(
            adapted,
            placement=placement,
            hosts=hosts,
            minutes=job.resources.get("runtime"),
            labels={OWNER: self.owner, RUN: self.run_namespace},
            spot=self.settings.spot,
            shared_volume=self.settings.shared_volume,
        )
        super().run_job(job)

    def report_job_submission(self, job_info: SubmittedJobInfo, register_job: bool = True) -> None:
        """Give the pods of several hosts the names by which they find each other."""
        sent = job_info.aux["pod"]
        if sent.spec.completions and sent.spec.completions > 1:
            self._kubernetes_retry(
                lambda: self.kubeapi.create_namespaced_service(self.namespace, service(sent.metadata))
            )
        super().report_job_submission(job_info, register_job)

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report the jobs that have ended; yield the others."""
        for info in active_jobs:
            async with self.status_rate_limiter:
                try:
                    ended = self.outcome(info)
                except (ApiException, HTTPError) as error:
                    self.logger.warning(
                        f"The cluster does not answer ({reason(error)}); jobs continue to run; trying again."
                    )
                    ended = None
            if ended is None:
                yield info
            elif ended == DONE:
                self.report_job_success(info)
                self.remove(info)
            else:
                sentence, logs = self.last_error_and_log(info)
                self.report_job_error(info, msg=f"{info.job.name}: {sentence or ended} ", aux_logs=logs)
                self.remove(info)

    def outcome(self, info: SubmittedJobInfo) -> str | None:
        """Return DONE, why a job failed, or None while it goes on. Raises ApiException, HTTPError."""
        name = info.external_jobid
        try:
            job = self.authenticated(lambda: self.batchapi.read_namespaced_job_status(name, self.namespace))
        except ApiException as error:
            if error.status == 404:
                return "its Kubernetes job was deleted." if self.wait else None
            raise
        pods = self.authenticated(lambda: self.pods(name))
        wants = self.placement(info.job) or "the CPUs and the memory that it requests"
        return outcome(job, pods, self.settings.wait_minutes, str(wants))

    def authenticated(self, question: Callable):
        """Return the answer to a question to the cluster, asked again with a new token where the old one ran out."""
        try:
            return question()
        except ApiException as error:
            if error.status != 401:
                raise
            return self._reauthenticate_and_retry(question)

    def _reauthenticate_and_retry(self, func: Callable | None = None):
        """Do as the Kubernetes executor does, which puts its own API for Jobs in the place of this one's."""
        change = self.batchapi.change
        super()._reauthenticate_and_retry()
        self.batchapi = Jobs(change)
        return func() if func else None

    def pods(self, name: str) -> list[client.V1Pod]:
        """Return the pods of a Kubernetes Job, the first host's before the others'."""
        found = self.kubeapi.list_namespaced_pod(self.namespace, label_selector=f"job-name={name}").items
        return sorted(found, key=lambda pod: int((pod.metadata.annotations or {}).get(COMPLETION_INDEX, 0)))

    def last_error_and_log(self, info: SubmittedJobInfo) -> tuple[str | None, list[str]]:
        """Return the sentence that a failed job's script ended with, and the file that keeps the pod's log."""
        name = info.external_jobid
        try:
            first = self.authenticated(lambda: self.pods(name))[0].metadata.name
            log = self.authenticated(
                lambda: self.kubeapi.read_namespaced_pod_log(first, self.namespace, container="snakemake")
            )
        except (ApiException, HTTPError, IndexError):
            return None, []  # a pod that never ran, or is gone, has no log
        file = self.log_path / f"{name}.log"
        file.write_text(log, encoding="utf-8")
        return last_error(log), [str(file)]

    def remove(self, info: SubmittedJobInfo) -> None:
        """Delete the Kubernetes Job of a job that has ended."""
        if not self.settings.omit_job_cleanup:
            try:
                self.authenticated(lambda: self.safe_delete_job(info.external_jobid))
            except (ApiException, HTTPError) as error:
                self.logger.warning(f"The Kubernetes job {info.external_jobid} could not be deleted: {reason(error)}.")

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Delete every Job that this Snakemake sent: `active_jobs` lacks those that are just being looked at."""
        self.wait = False  # from here on, a Job that is gone is no failure
        selector = f"{RUN}={self.run_namespace}"
        for pause in (1, 2, 4, None):
            try:
                self.authenticated(
                    lambda: self.batchapi.delete_collection_namespaced_job(
                        self.namespace, label_selector=selector, propagation_policy="Background"
                    )
                )
                return
            except (ApiException, HTTPError) as error:
                if pause is None:
                    self.logger.error(
                        f"Jobs may still run, because the cluster did not delete them ({reason(error)}); stop them: "
                        f"kubectl delete jobs --namespace {self.namespace} --selector {selector}"
                    )
                else:
                    time.sleep(pause)


def reason(error: Exception) -> str:
    """Return in a few words what the cluster answered, or why it did not."""
    if isinstance(error, ApiException):
        return f"{error.status} {error.reason}"
    return shlex.quote(str(getattr(error, "reason", None) or error))
