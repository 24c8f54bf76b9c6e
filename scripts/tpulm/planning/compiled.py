"""Compile a program for a TPU, and read its memory, FLOPs, and bytes moved and sent."""

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

# The compiler's error: needed memory, and memory that is usable by a program on this chip.
EXHAUSTED = re.compile(
    r"(?:HLO temporaries \(|Used )([\d.]+)([KMGT])(?:\) exceeds available HBM \(| of )([\d.]+)([KMGT])"
)
# What decides how a compiled program is read.
READER = "scripts/tpulm/planning/compiled.py"
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def program_sha256(lowered: jax.stages.Lowered) -> str:
    """Return the SHA-256 of a lowered program's text."""
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()


def analyze_program(lowered: jax.stages.Lowered, slice_: Topology, devices: list, attended: float = 1.0) -> dict:
    """Compile a program, and return its memory, FLOPs and traffic per device; cached by program, slice and compiler.

    Keys: arguments, temporaries, program, total, usable (bytes of memory), program_sha256, those of `total_work`. For a
    program that does not fit, the compiler reports only total and usable: arguments, temporaries, program and flops are
    None, and the other keys of `total_work` are absent. For one that fits, usable is None. A program larger than
    the HBM does not fit, even if the compiler takes it.

    devices   of a topology description, in the order of the program's partitions
    attended  see `tpulm.planning.totals.total_work`
    """
    program_digest = program_sha256(lowered)
    coordinates = [list(device.coords) for device in devices]
    words = [version("libtpu"), version("jax"), slice_.compiler_name, program_digest, str(coordinates), str(attended)]
    words += [code_of(READER, "plan").param()]
    key = hashlib.sha256(" ".join(words).encode()).hexdigest()
    cached = Path(cache_folder("plans")) / f"{key}.json"
    if not cached.is_file():
        write_json(cached, compile_and_read(lowered, slice_, coordinates, attended))
    return read_json(cached) | {"program_sha256": program_digest}


def compile_and_read(lowered: jax.stages.Lowered, slice_: Topology, coordinates: list, attended: float) -> dict:
    """Return the result of `analyze_program` without program_sha256, uncached."""
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        exhausted = EXHAUSTED.search(str(error))
        if not exhausted:
            raise
        # The temporaries of the message include the arguments.
        total, usable = (
            round(float(number) * UNITS[unit]) for number, unit in (exhausted.group(1, 2), exhausted.group(3, 4))
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
    } | total_work(program.as_text(), slice_, coordinates, attended)


def too_large(total: int, usable: int) -> dict:
    """Return the result of `analyze_program` for a program that does not fit."""
    return dict.fromkeys(("arguments", "temporaries", "program", "flops")) | {"total": total, "usable": usable}
