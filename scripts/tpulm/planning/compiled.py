"""Properties of a program compiled for a TPU: memory, FLOPs, bytes moved and sent.

Needs tpulm.training.runtime.start first.
"""

import hashlib
import re
from importlib.metadata import version
from pathlib import Path

import jax

from tpulm.core.accelerators import Topology
from tpulm.core.code_digest import code_of
from tpulm.core.devices import cache_folder
from tpulm.core.files import read_json, write_json
from tpulm.planning.totals import total_work

# What is wanted, and what the compiler leaves to a program on this chip.
EXHAUSTED = re.compile(
    r"(?:HLO temporaries \(|Used )([\d.]+)([KMGT])(?:\) exceeds available HBM \(| of )([\d.]+)([KMGT])"
)
# What decides how a compiled program is read.
READER = "scripts/tpulm/planning/compiled.py"
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def program_sha256(lowered: jax.stages.Lowered) -> str:
    """Return the SHA-256 of a program before it is compiled"""
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()


def compiled(lowered: jax.stages.Lowered, slice_: Topology, devices: list, attended: float = 1.0) -> dict:
    """Return what the compiler says of a program, per device: bytes of memory, what `totals.total_work` returns, and
    the program's SHA-256.

    devices   of a topology description, in the order of the program's partitions
    attended  see `tpulm.planning.totals.total_work`

    The same program for the same slice and compiler is compiled once in a folder. Where it does not fit, the
    compiler stops and says only how much it needs in all, and how much is usable: then arguments and flops are
    None; where it does, usable is. A program that the compiler takes, although it counts more than the HBM, does not
    fit.
    """
    same = program_sha256(lowered)
    places = [list(device.coords) for device in devices]
    words = [version("libtpu"), version("jax"), slice_.compiler_name, same, str(places), str(attended)]
    words += [code_of(READER, "plan").param()]
    key = hashlib.sha256(" ".join(words).encode()).hexdigest()
    kept = Path(cache_folder("plans")) / f"{key}.json"
    if not kept.is_file():
        write_json(kept, compile_and_read(lowered, slice_, places, attended))
    return read_json(kept) | {"program_sha256": same}


def compile_and_read(lowered: jax.stages.Lowered, slice_: Topology, places: list, attended: float) -> dict:
    """Return the facts of `compiled`, from the compiler."""
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        wanted = EXHAUSTED.search(str(error))
        if not wanted:
            raise
        # The message says temporaries, but counts the arguments among them.
        total, usable = (
            round(float(number) * UNITS[unit]) for number, unit in (wanted.group(1, 2), wanted.group(3, 4))
        )
        return too_large(total, usable)
    memory = program.memory_analysis()
    total = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    )
    if total > slice_.hbm:
        return too_large(total, slice_.hbm)
    return {
        "arguments": memory.argument_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "program": memory.generated_code_size_in_bytes,
        "total": total,
        "usable": None,
    } | total_work(program.as_text(), slice_, places, attended)


def too_large(total: int, usable: int) -> dict:
    """Return the facts of `compiled` for a program that does not fit."""
    return dict.fromkeys(("arguments", "temporaries", "program", "flops")) | {"total": total, "usable": usable}
