"""The devices of this machine, and the cache of the programs compiled for them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

IN_USE: dict[str, int] = {}  # number of devices that this process computes on, by kind; empty if not known
GOOGLE = "0x1ae0"  # PCI vendor, of network adapters, too
# TPU versions by the PCI devices that JAX takes for TPUs; empty if no config can name them.
TPUS: dict[str, tuple[str, ...]] = {
    "0x0027": ("v2", "v3"), "0x0056": (), "0x005e": ("v4",), "0x0062": ("v5p",), "0x0063": ("v5e",),
    "0x006f": ("v6e",), "0x0076": ("tpu7x",),
}  # fmt: skip


def devices_in_words(devices: Mapping[str, int] | str) -> str:
    """Return numbers of devices by kind, or a cell of timings.csv, in words, such as 8 x TPU v3."""
    if isinstance(devices, str):  # until 0.4.0: a cell of 0.2.0 is words already
        return devices_in_words(json.loads(devices)) if devices.startswith("{") else devices
    return ", ".join(f"{number} x {kind}" for kind, number in devices.items())


def tpu_here() -> bool:
    """Return whether this machine has a TPU."""
    return tpu_versions() is not None


def tpu_versions(machine: Path = Path("/sys/bus/pci/devices")) -> tuple[str, ...] | None:
    """Return the possible versions of this machine's TPU, by its PCI device; None without a TPU."""
    for vendor in sorted(machine.glob("*/vendor")):
        device = vendor.with_name("device").read_text().strip()
        if vendor.read_text().strip() == GOOGLE and device in TPUS:
            return TPUS[device]
    return None


def gpu_here() -> bool:
    """Return whether this machine has a GPU with NVIDIA's driver."""
    return Path("/dev/nvidiactl").exists()


def accelerator_here() -> bool:
    """Return whether this machine has an accelerator, which only one process at a time can use."""
    return tpu_here() or gpu_here()


# Variables of the environment that change numbers. XLA_FLAGS and LIBTPU_INIT_ARGS of a user are kept; OMP_NUM_THREADS
# and its like are those that Snakemake sets for each job, by `threads`.
NUMERIC = re.compile(
    r"JAX_(ENABLE_(X64|CUSTOM_PRNG)|NUM_CPU_DEVICES|DEFAULT_|NUMPY_|RANDOM_|THREEFRY_|LEGACY_|DISABLE_|DEBUG_|EAGER_"
    r"|SOFTMAX_)|KERAS_(?!HOME)|TF_(ENABLE|DISABLE|DETERMINISTIC|CUDNN|FP16|USE)_|NVIDIA_TF32_OVERRIDE|DNNL_|ONEDNN_"
    r"|NPY_"
)


def ignore_settings() -> None:
    """Remove the variables that change numbers, so that results follow from the config alone.

    Call it before JAX or TensorFlow is imported.
    """
    for name in filter(NUMERIC.match, list(os.environ)):
        del os.environ[name]


def keep_to_cpu() -> None:
    """Restrict JAX and TensorFlow to the CPU. Call it before either is imported."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1", "TPU_LOAD_LIBRARY": "0"}


def cache_folder(library: str) -> str:
    """Create and return the folder for programs that a library compiles on this kind of machine.

    Programs for a CPU may use any of its instructions, so that each kind of machine has its own folder.
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
    """Return a value of TF_XLA_FLAGS with TensorFlow's cache of XLA programs switched on."""
    if "persistent_cache_directory" in flags:
        return flags
    return f"{flags} --tf_xla_persistent_cache_directory={cache_folder('tensorflow')}".strip()
