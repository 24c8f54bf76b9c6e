"""The cache of compiled programs, kept between jobs so that the next segment need not compile them again."""

import hashlib
import os
import platform
from pathlib import Path


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
