"""What a job's pods ask for on GKE, and on which nodes they may run, from what the config calls its accelerator."""

from dataclasses import dataclass

from lib.errors import UserError
from lib.tpu import CHIPS, LARGEST, shape

TPU, GPU = "google.com/tpu", "nvidia.com/gpu"


@dataclass(frozen=True)
class Tpu:
    """A TPU version: what GKE calls its nodes, and how many chips of a slice one host may have.

    alone  the name of nodes that are a slice by themselves, where that is another one
    sizes  chips of such a node; each of several hosts of a slice has HOST_CHIPS
    """

    name: str
    sizes: tuple[int, ...]
    alone: str | None = None


# cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
TPUS = {
    "v3": Tpu("tpu-v3-slice", (4,), alone="tpu-v3-device"),
    "v4": Tpu("tpu-v4-podslice", (4,)),
    "v5e": Tpu("tpu-v5-lite-podslice", (1, 4, 8)),
    "v5p": Tpu("tpu-v5p-slice", (4,)),
    "v6e": Tpu("tpu-v6e-slice", (1, 4, 8)),
}
HOST_CHIPS = 4
# cloud.google.com/kubernetes-engine/docs/concepts/gpus, by names that a config may have
GPUS = {
    "t4": "nvidia-tesla-t4",
    "v100": "nvidia-tesla-v100",
    "l4": "nvidia-l4",
    "a100": "nvidia-tesla-a100",
    "a100_80gb": "nvidia-a100-80gb",
    "h100": "nvidia-h100-80gb",
    "h100_mega": "nvidia-h100-mega-80gb",
    "h200": "nvidia-h200-141gb",
    "b200": "nvidia-b200",
}


@dataclass(frozen=True)
class Place:
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


def place(accelerator: str, hosts: int, share: bool = False) -> Place:
    """Return where the pods of a job run that asks for this accelerator, such as v5e-8 or h100:4.

    hosts  that the run trains on
    share  whether the job is another one of that run, on one host: it gets a slice as large as one host's share

    Raises UserError for what GKE does not offer.
    """
    if ":" in accelerator:
        name, count = accelerator.split(":")
        if name not in GPUS:
            raise UserError(f"GKE has no GPU {name} ({accelerator}); allowed: {', '.join(GPUS)}.")
        return Place(GPU, int(count), {"cloud.google.com/gke-accelerator": GPUS[name]})
    version, size = accelerator.split("-")
    if version not in TPUS:
        raise UserError(f"GKE has no TPU {version} ({accelerator}); allowed: {', '.join(TPUS)}.")
    tpu, chip = TPUS[version], CHIPS[version]
    chips, odd = divmod(int(size), 2 if chip.counted_by == "cores" else 1)
    if odd or chips & (chips - 1) or chips > LARGEST[chip.dimensions]:
        raise UserError(f"{accelerator} is no slice with a shape known here; allowed: powers of two, such as v5e-8.")
    needed = chips // HOST_CHIPS if chips > HOST_CHIPS else None
    if not (hosts == needed or hosts == 1 and chips in tpu.sizes):
        sizes = " or ".join(map(str, tpu.sizes))
        allowed = [f"hosts: {needed}"] if needed else []
        allowed += ["hosts: 1"] if chips in tpu.sizes else []
        raise UserError(
            f"resources.hosts is {hosts} and accelerator {accelerator}, which has {chips} chips: one host of GKE "
            f"has {sizes}, each of several {HOST_CHIPS}; allowed: {' or '.join(allowed) or 'another accelerator'}."
        )
    alone = share or hosts == 1
    taken = chips // hosts
    return Place(TPU, taken, labels((alone and tpu.alone) or tpu.name, taken if alone else chips, chip.dimensions))


def labels(name: str, chips: int, dimensions: int) -> dict[str, str]:
    """Return the labels of nodes of a TPU slice of so many chips."""
    topology = "x".join(map(str, shape(chips, dimensions)))
    return {"cloud.google.com/gke-tpu-accelerator": name, "cloud.google.com/gke-tpu-topology": topology}
