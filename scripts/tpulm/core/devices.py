"""The devices of this machine, and the cache of the programs compiled for them."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

IN_USE: dict[str, int] = {}  # those that this process computes on, by their kind; empty where it has not said
GOOGLE = "0x1ae0"  # PCI vendor, of network adapters, too
TPUS = {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}  # PCI devices: v2 and v3, ..., v7


def tpu_here() -> bool:
    """Return whether this machine has a TPU: a PCI device that JAX, too, takes for one."""
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        device = vendor.with_name("device")
        if vendor.read_text().strip() == GOOGLE and device.read_text().strip() in TPUS:
            return True
    return False


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
