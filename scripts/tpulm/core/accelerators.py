"""The accelerators that a config may name: their peaks, the shapes and names of slices, and checks of jobs' devices.

A slice is named VERSION-NUMBER, such as v5e-8, a number of GPUs KIND:NUMBER, such as h100:4. A device is what JAX
calls one: a core of v2 and v3, a chip of all later versions (on v4 and v5p its two cores work as one, "megacore").
Also read by the Python of profiles/tpu-vm, 3.9 or later.

Snakemake passes resources to executors as names with numbers or strings: an executor plugin reads them from the job's
`resources`, a script of the cluster-generic executor as JSON.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tpulm.core.errors import UserError

GIB = 2**30
HOST_CHIPS = 4  # chips of each host in a slice of several hosts
LARGEST_SLICES = {2: 256, 3: 4096}  # chips of the largest slice with a compact shape, by its number of dimensions


@dataclass(frozen=True)
class Tpu:
    """A TPU version: published peaks of one chip, and how its slices are shaped and named.

    The figures are Google's (docs.cloud.google.com/tpu/docs, the page of each version). By default, TPUs multiply
    float32 matrices in bfloat16, too.

    flops              peak bfloat16 operations per second
    hbm                bytes of memory
    hbm_bandwidth      bytes per second
    ici_bandwidth      bytes per second over all links of a chip to other chips together, in one direction
    devices            of one chip, as JAX counts them
    counts             unit of the number in a slice's name: "chips", or "cores", of which a chip has two
    dimensions         of the mesh of chips
    single_host_chips  possible numbers of chips of a slice on one host
    runtime            image of Cloud TPU VMs with this version, for JAX and PyTorch; None if there are no such VMs
    cloud_name         version in Cloud TPU's accelerator types; None if it is the same as here
    gke_nodes          value of the label gke-tpu-accelerator on GKE; None if GKE does not have this version
    gke_single_host    value of the label for a slice on one host; None if it is the same
    tensorflow         whether TensorFlow supports this version
    compiler_options   options that the compiler needs for this version
    """

    flops: float
    hbm: int
    hbm_bandwidth: float
    ici_bandwidth: float
    devices: int
    counts: str
    dimensions: int
    single_host_chips: tuple[int, ...]
    runtime: str | None = "tpu-ubuntu2204-base"
    cloud_name: str | None = None
    gke_nodes: str | None = None
    gke_single_host: str | None = None
    tensorflow: bool = True
    compiler_options: dict[str, Any] = field(default_factory=dict)


# Nodes: cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
TPUS = {
    "v2": Tpu(45e12, 16 * GIB, 700e9, 248e9, 2, "cores", 2, (4,)),
    "v3": Tpu(
        123e12, 32 * GIB, 900e9, 328e9, 2, "cores", 2, (4,), gke_nodes="tpu-v3-slice", gke_single_host="tpu-v3-device"
    ),
    "v4": Tpu(
        275e12, 32 * GIB, 1200e9, 300e9, 1, "cores", 3, (4,), gke_nodes="tpu-v4-podslice",
        compiler_options={"chip_config_name": "megacore"},
    ),
    "v5e": Tpu(
        197e12, 16 * GIB, 819e9, 200e9, 1, "chips", 2, (1, 4, 8), runtime="v2-alpha-tpuv5-lite",
        cloud_name="v5litepod", gke_nodes="tpu-v5-lite-podslice",
    ),
    "v5p": Tpu(
        459e12, 95 * GIB, 2765e9, 600e9, 1, "cores", 3, (4,), runtime="v2-alpha-tpuv5", gke_nodes="tpu-v5p-slice"
    ),
    # tpu/docs/v6e and tpu/docs/tpu7x: HBM 1,638 GB/s, links 800 GB/s in both directions.
    "v6e": Tpu(
        918e12, 32 * GIB, 1638e9, 400e9, 1, "chips", 2, (1, 4, 8), runtime="v2-alpha-tpuv6e",
        gke_nodes="tpu-v6e-slice",
    ),
    # Named as on Google Cloud and in xpk. Each of the two cores of a chip is a device, with half of its memory.
    "tpu7x": Tpu(
        2307e12, 192 * GIB, 7380e9, 600e9, 2, "cores", 3, (4,), runtime=None, gke_nodes="tpu7x", tensorflow=False
    ),
}  # fmt: skip
# GPUs on GKE, by the kinds that a config may name: cloud.google.com/kubernetes-engine/docs/concepts/gpus
GKE_GPUS = {
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
# GiB of memory of each of them (nvidia.com, the data sheet of each).
GPU_MEMORY = {
    "t4": 16, "v100": 16, "l4": 24, "a100": 40, "a100_80gb": 80, "h100": 80, "h100_mega": 80, "h200": 141, "b200": 180,
}  # fmt: skip

# TPU versions by JAX's names of their devices.
JAX_TPUS = {
    "TPU v2": "v2", "TPU v3": "v3", "TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5e": "v5e", "TPU v5": "v5p",
    "TPU v5p": "v5p", "TPU v6 lite": "v6e", "TPU v6e": "v6e", "TPU7x": "tpu7x",
}  # fmt: skip
# Peak bfloat16 operations per second of GPUs, matrices without sparsity (nvidia.com, the data sheet of each; float16
# without bfloat16), by parts of their names; the first match counts.
GPU_FLOPS = {
    "B200": 2250e12, "H200 NVL": 835e12, "H200": 989e12, "H100 NVL": 835e12, "H100 PCIe": 756e12, "H100": 989e12,
    "A100": 312e12, "L4": 121e12, "V100": 125e12, "T4": 65e12,
}  # fmt: skip

# Mean power of a chip while it trains, in watts, where it is published: Jouppi et al. 2023 (arXiv 2304.01433), table 4.
TPU_WATTS = {"v3": 220.0, "v4": 170.0}

# Environment variable with which a job trains on any devices, to try a config.
ANY_DEVICES = "TPULM_ANY_DEVICES"

# Minutes after which a slice of the profile tpu-vm that has no job is deleted, unless TPU_IDLE_MINUTES says otherwise.
IDLE_MINUTES = 5

# The form of `resources.accelerator`. A test compares the pattern in schemas/config.schema.yaml with this one.
TPU_PATTERN = f"({'|'.join(TPUS)})-[1-9][0-9]{{0,4}}"
GPU_PATTERN = "[a-z][a-z0-9_.]{0,31}:[1-9][0-9]?"
ACCELERATOR_PATTERN = rf"^({TPU_PATTERN}|{GPU_PATTERN})\Z"


def is_tpu(accelerator: str) -> bool:
    """Return whether this is the name of a TPU slice, whether its size exists or not."""
    return re.fullmatch(TPU_PATTERN, accelerator) is not None


def parse_tpu(accelerator: str) -> tuple[str, int]:
    """Return version and size of v5e-8: ("v5e", 8), in units of `Tpu.counts`. Raises UserError for another name."""
    if not is_tpu(accelerator):
        versions = ", ".join(TPUS)
        raise UserError(f'"{accelerator}" is not a TPU slice; allowed: one of {versions}, and a size, such as v5e-8.')
    version, number = accelerator.split("-")
    return version, int(number)


def parse_gpu(accelerator: str) -> tuple[str, int]:
    """Return kind and number of the GPUs of a host: ("h100", 4) of h100:4. Raises ValueError for another form."""
    kind, number = accelerator.split(":")
    return kind, int(number)


def peak_flops(device_kind: str) -> float | None:
    """Return the peak bfloat16 operations per second of a device, by JAX's name of it; None if it is not known."""
    if device_kind in JAX_TPUS:
        tpu = TPUS[JAX_TPUS[device_kind]]
        return tpu.flops / tpu.devices
    words = device_kind.replace("-", " ")
    return next((flops for name, flops in GPU_FLOPS.items() if re.search(rf"\b{name}\b", words)), None)


def tpu_name(versions: Collection[str] | None, requested: str) -> str:
    """Return JAX's name of a TPU of one of these versions, such as "TPU v3", or "TPU v2 or TPU v3".

    versions   that it may have; empty for one that no config can name; None for unknown ones, which gives "TPU"
    requested  accelerator of the run, which decides between several versions; "" for none
    """
    if versions is None:
        return "TPU"
    of_request = [version for version in versions if is_tpu(requested) and parse_tpu(requested)[0] == version]
    names = [next(name for name in JAX_TPUS if JAX_TPUS[name] == version) for version in of_request or versions]
    return " or ".join(names) or "TPU of another version"


def mean_watts(kind: str, number: int) -> float | None:
    """Return the mean power of `number` training devices together, in watts, by JAX's name; None if not published."""
    version = JAX_TPUS.get(kind)
    return TPU_WATTS[version] * number / TPUS[version].devices if version in TPU_WATTS else None


def slice_named(kind: str, number: int) -> str | None:
    """Return the name of the slice with `number` devices, such as v5e-8, by JAX's name; None if they are no TPUs."""
    version = JAX_TPUS.get(kind)
    if version is None:
        return None
    chips = number // TPUS[version].devices
    return f"{version}-{2 * chips if TPUS[version].counts == 'cores' else chips}"


def check_devices(resources: Mapping, number: int, kind: str) -> None:
    """Raise UserError if a job lacks the devices that its run requests. Without a request, any devices are allowed.

    resources  of the job: accelerator, hosts, run_key
    number     devices of the job, on all hosts
    kind       JAX's name of them, such as TPU v3 or NVIDIA L4; TPU for an unknown version
    """
    requested = resources.get("accelerator")
    if not requested or os.environ.get(ANY_DEVICES):
        return
    if is_tpu(requested):
        version, _ = parse_tpu(requested)
        fits = kind == "TPU" or JAX_TPUS.get(kind) == version
        expected = slice_chips(requested) * TPUS[version].devices
    else:
        name, per_host = parse_gpu(requested)
        # Clusters choose these names. Those of GKE are the vendor's: a100_80gb is in NVIDIA A100-SXM4-80GB, too.
        parts = name.removesuffix("_mega").split("_") if name in GKE_GPUS else []
        named = all(re.search(rf"\b{part}[a-z]?\b", kind.lower()) for part in parts)
        fits = named and kind not in JAX_TPUS and kind.lower() not in ("cpu", "tpu")
        expected = per_host * resources.get("hosts", 1)
    if not fits or number != expected:
        raise UserError(
            f"{resources['run_key']}.resources.accelerator is {requested}, which has {expected} "
            f"device{'s' * (expected != 1)}, but this job found {number} device{'s' * (number != 1)} ({kind}). Use a "
            "machine with this accelerator and its packages, or remove the key. If there are more GPUs, "
            "CUDA_VISIBLE_DEVICES selects those to use. "
            f"{ANY_DEVICES}=1 in the environment trains on any devices."
        )


def slice_chips(accelerator: str) -> int:
    """Return how many chips a slice has. Raises UserError for a name that is no TPU slice."""
    version, number = parse_tpu(accelerator)
    return number // 2 if TPUS[version].counts == "cores" else number


def slice_hosts(accelerator: str) -> int:
    """Return how many hosts a slice has on Cloud TPU: one if it can hold all chips, else one for every four chips.

    Raises UserError for a name that is no TPU slice.
    """
    chips, single_host = slice_chips(accelerator), TPUS[parse_tpu(accelerator)[0]].single_host_chips
    return 1 if chips <= max(single_host) else chips // HOST_CHIPS


def check_hosts(hosts: int, accelerator: str, allowed: Collection[int]) -> None:
    """Raise UserError if the number of hosts of a run is not one that its slice can have.

    allowed  possible numbers of hosts of the slice in this environment, ascending
    """
    if hosts not in allowed:
        counts = " or ".join(map(str, allowed))
        noun = "host" if list(allowed) == [1] else "hosts"
        raise UserError(f"resources.hosts is {hosts}, but {accelerator} has {counts} {noun}; allowed: {counts}.")


def cloud_tpu_type(accelerator: str) -> str:
    """Return a slice's accelerator type on Cloud TPU: v5litepod-8 of v5e-8. Raises UserError for another name."""
    version, number = parse_tpu(accelerator)
    return f"{TPUS[version].cloud_name or version}-{number}"


def gres(accelerator: str | None, hosts: int = 1) -> str | None:
    """Return a host's share of an accelerator as Slurm writes it: tpu:v5e:8 of v5e-8, gpu:h100:4 of h100:4.

    accelerator  a TPU slice, which all hosts have together, or the GPUs of each host; None for none
    """
    if accelerator is None:
        return None
    if not is_tpu(accelerator):
        return f"gpu:{accelerator}"
    version, number = parse_tpu(accelerator)
    return f"tpu:{version}:{max(1, number // hosts)}"


@dataclass(frozen=True)
class Topology:
    """A slice: its name here and for the compiler, and the peaks of one of its devices, as `Tpu` has them.

    link_bandwidth  bytes per second of one link of a chip, in one direction: it has two along each of `dimensions`
    """

    name: str
    compiler_name: str
    compiler_options: dict[str, Any]
    chips: int
    devices: int
    flops: float
    hbm: int
    hbm_bandwidth: float
    link_bandwidth: float
    dimensions: int


def topology(accelerator: str) -> Topology:
    """Return the slice of a name such as v3-8. Raises UserError for another name, or a size without a known shape."""
    version, number = parse_tpu(accelerator)
    tpu, chips = TPUS[version], slice_chips(accelerator)
    per_chip = 2 if tpu.counts == "cores" else 1
    sizes = [2**power for power in range(13) if 2**power >= HOST_CHIPS or 2**power in tpu.single_host_chips]
    if chips * per_chip != number or chips not in sizes or chips > LARGEST_SLICES[tpu.dimensions]:
        allowed = ", ".join(str(per_chip * size) for size in sizes[:6])
        raise UserError(
            f'"{accelerator}" is not a TPU slice with a known shape; allowed for {version}: {allowed}, ... '
            f"{per_chip * LARGEST_SLICES[tpu.dimensions]}."
        )
    share = 1 / tpu.devices
    return Topology(
        name=accelerator,
        compiler_name=f"{version}:{shape_name(chips, tpu.dimensions)}",
        # By default, the compiler assumes four chips per host.
        compiler_options=tpu.compiler_options | ({"chips_per_host_bounds": (1, 1, 1)} if chips == 1 else {}),
        chips=chips,
        devices=chips * tpu.devices,
        flops=tpu.flops * share,
        hbm=int(tpu.hbm * share),
        hbm_bandwidth=tpu.hbm_bandwidth * share,
        link_bandwidth=tpu.ici_bandwidth / (2 * tpu.dimensions),
        dimensions=tpu.dimensions,
    )


def check_slice(accelerator: str) -> None:
    """Raise UserError for a TPU slice that does not exist.

    Slices of three dimensions may have any number of whole hosts, such as v5p-24, also without a known shape.
    """
    version, number = parse_tpu(accelerator)
    if TPUS[version].dimensions < 3 or number % (2 * HOST_CHIPS):
        topology(accelerator)


def shape_name(chips: int, dimensions: int) -> str:
    """Return the most compact shape of a power of two of chips, the smallest dimension first: 2x4 of 8 in two.

    Four chips in three dimensions are 2x2x1.
    """
    if dimensions == 3 and chips == 4:
        return "2x2x1"
    smallest, larger = divmod(round(math.log2(chips)), dimensions)
    return "x".join(str(2 ** (smallest + (index >= dimensions - larger))) for index in range(dimensions))


def job_name(resources: Mapping, rule: str) -> str:
    """Return the name of a job for its user: `run_key` of its resources, a key of the config, or else its rule."""
    return resources.get("run_key") or f"rule {rule}"


def run_hosts(resources: Mapping) -> int:
    """Return how many hosts the run of a job trains on, even if the job itself, an evaluation, takes one of them."""
    return resources.get("run_hosts") or resources.get("hosts") or 1
