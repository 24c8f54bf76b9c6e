"""The devices of this machine."""

from __future__ import annotations

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
