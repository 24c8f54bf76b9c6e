"""What a job's pods ask for on GKE, and on which nodes they may run, from what the config calls its accelerator."""

from dataclasses import dataclass

from tpulm.core.accelerators import (
    GKE_GPUS,
    HOST_CHIPS,
    TPUS,
    check_hosts,
    is_tpu,
    parse_gpu,
    parse_tpu,
    shape_name,
    topology,
)
from tpulm.core.errors import UserError

TPU, GPU = "google.com/tpu", "nvidia.com/gpu"


@dataclass(frozen=True)
class Placement:
    """What each pod of a job takes, and the labels of the nodes that have it.

    resource  google.com/tpu or nvidia.com/gpu
    count     of each pod
    """

    resource: str
    count: int
    selector: dict[str, str]

    def __str__(self) -> str:
        """Return it as a part of a sentence."""
        return ", ".join([f"{self.count} {self.resource}", *self.selector.values()])


def place(accelerator: str, hosts: int, share: bool = False) -> Placement:
    """Return where the pods of a job run that asks for this accelerator, such as v5e-8 or h100:4.

    hosts  that the run trains on
    share  whether the job is another one of that run, on one host: it gets a slice as large as one host's share

    Raises UserError for what GKE does not offer.
    """
    return place_on_tpus(accelerator, hosts, share) if is_tpu(accelerator) else place_on_gpus(accelerator)


def place_on_gpus(accelerator: str) -> Placement:
    """Return where pods run that ask for GPUs. Raises UserError."""
    kind, count = parse_gpu(accelerator)
    check_offered(accelerator, kind, GKE_GPUS)
    return Placement(GPU, count, {"cloud.google.com/gke-accelerator": GKE_GPUS[kind]})


def place_on_tpus(accelerator: str, hosts: int, share: bool) -> Placement:
    """Return where pods run that ask for a TPU slice. Raises UserError."""
    version, _ = parse_tpu(accelerator)
    check_offered(accelerator, version, {name: tpu for name, tpu in TPUS.items() if tpu.gke_nodes})
    tpu, chips = TPUS[version], topology(accelerator).chips
    # GKE has nodes with four chips, and such with all chips of a slice on one host, also for the same slice.
    allowed = {1} if chips in tpu.single_host_chips else set()
    allowed |= {chips // HOST_CHIPS} if chips > HOST_CHIPS else set()
    check_hosts(hosts, accelerator, sorted(allowed))
    alone, count = share or hosts == 1, chips // hosts
    selector = {
        "cloud.google.com/gke-tpu-accelerator": (alone and tpu.gke_single_host) or tpu.gke_nodes,
        "cloud.google.com/gke-tpu-topology": shape_name(count if alone else chips, tpu.dimensions),
    }
    return Placement(TPU, count, selector)


def check_offered(accelerator: str, kind: str, offered: dict) -> None:
    """Raise UserError where GKE has no nodes with this kind of accelerator."""
    if kind not in offered:
        raise UserError(
            f"resources.accelerator is {accelerator}, but GKE has no {kind}; allowed: {', '.join(offered)}."
        )
