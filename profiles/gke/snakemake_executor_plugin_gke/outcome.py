"""What Kubernetes says of a job and its pods, as an end in one sentence, or as no end yet."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from kubernetes.client import V1ContainerStatus, V1Job, V1Pod

DONE = "done"
# Why a container does not start and will not by waiting.
NEVER_STARTS = {
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
}
OUT_OF_MEMORY = "it was killed because it used more memory than the node had; request more with resources.mem_gb."


def outcome(job: V1Job, pods: Sequence[V1Pod], patience: float, wants: str) -> str | None:
    """Return DONE, the sentence that a job ends with, or None while it may still succeed.

    patience  minutes that each of its pods may wait for a node
    wants     what they wait for
    """
    conditions = {condition.type for condition in job.status.conditions or [] if condition.status == "True"}
    if conditions & {"SuccessCriteriaMet", "Complete"}:  # the first one until pods that are left over have ended
        return DONE
    if "Failed" in conditions:
        failed = [sentence for pod in pods if (sentence := failure(pod))]
        return failed[0] if failed else "its pod was deleted or lost with its node."
    for pod in pods:
        stuck = startup_error(pod)
        if stuck:
            return stuck
        waited = datetime.now(UTC) - pod.metadata.creation_timestamp
        if waited > timedelta(minutes=patience) and (why := unschedulable(pod)):
            return f"no node with {wants} in {patience:g} minutes (--gke-wait-minutes): {why.rstrip('.')}."
    return None


def container(pod: V1Pod) -> V1ContainerStatus | None:
    """Return the status of the container that runs Snakemake, once there is one."""
    found = [status for status in pod.status.container_statuses or [] if status.name == "snakemake"]
    return found[0] if found else None


def failure(pod: V1Pod) -> str | None:
    """Return why a pod failed; None for one that did not."""
    status = pod.status
    if any(
        condition.type == "DisruptionTarget" and condition.status == "True" for condition in status.conditions or []
    ):
        return "it was preempted; run again."
    if status.reason == "DeadlineExceeded":
        return "it took longer than resources.runtime; increase it, or reduce checkpoint_every."
    own = container(pod)
    ended = own.state.terminated if own else None
    if ended and ended.reason == "OOMKilled":
        return OUT_OF_MEMORY
    if ended and ended.exit_code:
        return f"it ended with exit code {ended.exit_code}."
    if status.phase == "Failed":
        return f"its pod failed: {(status.message or status.reason or 'no reason given').rstrip('.')}."
    return None


def startup_error(pod: V1Pod) -> str | None:
    """Return why a container will never start; None where it may."""
    own = container(pod)
    waiting = own.state.waiting if own else None
    if waiting is None or waiting.reason not in NEVER_STARTS:
        return None
    about = f" of {own.image}" if "Image" in waiting.reason else ""
    return (
        f"its container{about} cannot start: {waiting.reason}: {' '.join((waiting.message or '').split()).rstrip('.')}."
    )


def unschedulable(pod: V1Pod) -> str | None:
    """Return why no node takes a pod; None where one did."""
    for condition in pod.status.conditions or []:
        if condition.type == "PodScheduled" and condition.status == "False":
            return " ".join((condition.message or condition.reason or "").split())
    return None


def last_error(log: str) -> str | None:
    """Return the last sentence that a script ended with in a pod's log, such as "[mlm tiny] error: ..."."""
    found = re.findall(r"^(\[[^\]\n]+\] (?:error: |stopped by ).+)$", log, re.M)
    return found[-1] if found else None
