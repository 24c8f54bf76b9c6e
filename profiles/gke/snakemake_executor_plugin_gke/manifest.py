"""The Kubernetes Job of a Snakemake job: what GKE needs to know beyond what the Kubernetes executor writes."""

from kubernetes import client

from .placement import Placement

# What the pods of the hosts after the first one do: wait until start_on_host.sh hands them a command, and run it.
FOLLOW = (
    "n=.hosts/$JOB_COMPLETION_INDEX; until [ -e $n.command ]; do sleep 1; done; "
    "open=$(mktemp -u); mkfifo $open; sh $n.command <>$open 2>$n.errors; echo $? >$n.partial; mv $n.partial $n.exit"
)
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"  # annotation of a pod: which of the hosts it is


def adapted(
    body: client.V1Job,
    placement: Placement | None,
    hosts: int,
    minutes: int | None,
    labels: dict[str, str],
    spot: bool,
    shared_volume: str,
) -> client.V1Job:
    """Return the Job that the Kubernetes executor wrote, with what GKE needs to know beyond that.

    placement      where its pods run; None for any node
    hosts          how many pods work together
    minutes        that a pod may take once it has a node
    labels         that the Job is found by
    spot           whether pods with a placement run on spot nodes
    shared_volume  claim of the volume on which several pods share the job's folder
    """
    body.metadata.labels |= labels
    body.spec.ttl_seconds_after_finished = 24 * 3600  # where this Snakemake is killed before it deletes the Job
    pod = body.spec.template.spec
    container = pod.containers[0]
    if minutes:
        pod.active_deadline_seconds = 60 * minutes
    if placement:
        # Kubernetes wants the request and the limit of such a resource to be the same.
        for amounts in ("requests", "limits"):
            found = getattr(container.resources, amounts) or {}
            setattr(container.resources, amounts, found | {placement.resource: str(placement.count)})
        pod.node_selector |= placement.selector
        pod.tolerations = [toleration(placement.resource, "present")]
        if spot:
            pod.node_selector["cloud.google.com/gke-spot"] = "true"
            pod.tolerations.append(toleration("cloud.google.com/gke-spot", "true"))
    if hosts > 1:
        spread(body, hosts, shared_volume)
    else:
        # A pod that is preempted or loses its node is no failure: Kubernetes starts it again.
        lost = client.V1PodFailurePolicyOnPodConditionsPattern(type="DisruptionTarget", status="True")
        rule = client.V1PodFailurePolicyRule(action="Ignore", on_pod_conditions=[lost])
        body.spec.pod_failure_policy = client.V1PodFailurePolicy(rules=[rule])
    return body


def spread(body: client.V1Job, hosts: int, volume: str) -> None:
    """Make a Job one of several pods that share a folder; the first runs the job, the others what it hands them."""
    body.spec.completion_mode, body.spec.completions, body.spec.parallelism = "Indexed", hosts, hosts
    # A run that has stopped early never calls the others, which would wait.
    first_is_enough = client.V1SuccessPolicyRule(succeeded_indexes="0")
    body.spec.success_policy = client.V1SuccessPolicy(rules=[first_is_enough])
    pod = body.spec.template.spec
    pod.subdomain = body.metadata.name  # its pods' names end with it, see `service`
    container = pod.containers[0]
    command = container.args[1]
    first = f"trap 'find . -mindepth 1 -delete' EXIT; {command}"
    container.args = ["-c", f'if [ "$JOB_COMPLETION_INDEX" = 0 ]; then {first}; else {FOLLOW}; fi']
    container.volume_mounts[0].sub_path = body.metadata.name
    pod.volumes[0] = client.V1Volume(
        name="workdir", persistent_volume_claim=client.V1PersistentVolumeClaimVolumeSource(claim_name=volume)
    )


def service(job: client.V1ObjectMeta) -> client.V1Service:
    """Return the headless service that gives the pods of a Job names; it is deleted with the Job."""
    owner = client.V1OwnerReference(api_version="batch/v1", kind="Job", name=job.name, uid=job.uid)
    return client.V1Service(
        api_version="v1",
        kind="Service",
        metadata=client.V1ObjectMeta(name=job.name, owner_references=[owner]),
        spec=client.V1ServiceSpec(cluster_ip="None", selector={"job-name": job.name}),
    )


def toleration(key: str, value: str) -> client.V1Toleration:
    """Return the permission to run on nodes that keep other pods away."""
    return client.V1Toleration(key=key, operator="Equal", value=value, effect="NoSchedule")
