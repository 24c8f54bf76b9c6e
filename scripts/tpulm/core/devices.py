"""The devices of this machine, and the cache of the programs compiled for them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path

IN_USE: dict[str, int] = {}  # those that this process computes on, by their kind; empty where it has not said
GOOGLE = "0x1ae0"  # PCI vendor, of network adapters, too
# TPU versions by PCI device, of those that JAX, too, takes for a TPU; none where no config can name it.
TPUS: dict[str, tuple[str, ...]] = {
    "0x0027": ("v2", "v3"), "0x0056": (), "0x005e": ("v4",), "0x0062": ("v5p",), "0x0063": ("v5e",),
    "0x006f": ("v6e",), "0x0076": (),
}  # fmt: skip


def devices_in_words(devices: Mapping[str, int] | str) -> str:
    """Return devices, how many by their kind, such as 8 x TPU v3; also by a cell of timings.csv.

    A cell of 0.2.0 is words already.
    """
    if isinstance(devices, str):
        return devices_in_words(json.loads(devices)) if devices.startswith("{") else devices
    return ", ".join(f"{number} x {kind}" for kind, number in devices.items())


def tpu_here() -> bool:
    """Return whether this machine has a TPU: a PCI device that JAX, too, takes for one."""
    return tpu_versions() is not None


def tpu_versions(machine: Path = Path("/sys/bus/pci/devices")) -> tuple[str, ...] | None:
    """Return of which version the TPU of this machine can be, by its PCI device; None without a TPU."""
    for vendor in sorted(machine.glob("*/vendor")):
        device = vendor.with_name("device").read_text().strip()
        if vendor.read_text().strip() == GOOGLE and device in TPUS:
            return TPUS[device]
    return None


def gpu_here() -> bool:
    """Return whether this machine has a GPU that JAX uses: NVIDIA's driver is there."""
    return Path("/dev/nvidiactl").exists()


def accelerator_here() -> bool:
    """Return whether this machine has an accelerator, which one process at a time can have."""
    return tpu_here() or gpu_here()


def keep_to_cpu() -> None:
    """Leave the accelerators of this machine to other jobs. Call it before JAX or TensorFlow is imported."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1", "TPU_LOAD_LIBRARY": "0"}


def cache_folder(library: str) -> str:
    """Return the folder for what a library compiles on a machine like this one, and make it.

    Programs for a CPU may use any instruction that it has: another kind of machine gets a folder of its own.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    machine = hashlib.sha256(f"{platform.machine()} {features}".encode()).hexdigest()[:12]
    folder = Path(".snakemake") / "compiled" / f"{library}-{machine}"
    folder.mkdir(parents=True, exist_ok=True)
    return os.path.abspath(folder)


def tensorflow_flags(flags: str) -> str:
    """Return `flags`, a value of TF_XLA_FLAGS, with TensorFlow's cache of XLA programs switched on, if none is."""
    if "persistent_cache_directory" in flags:
        return flags
    return f"{flags} --tf_xla_persistent_cache_directory={cache_folder('tensorflow')}".strip()
