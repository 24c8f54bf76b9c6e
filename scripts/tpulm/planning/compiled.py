"""Properties of a program compiled for a TPU: memory, FLOPs, bytes moved and sent.

Needs tpulm.training.runtime.start first.
"""

import contextlib
import hashlib
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import jax

from tpulm.core.accelerators import Topology
from tpulm.core.compile_cache import cache_folder
from tpulm.core.files import read_json, sha256, write_json
from tpulm.planning.hlo import collective_bytes

# What is wanted, and what the compiler leaves to a program on this chip.
EXHAUSTED = re.compile(
    r"(?:HLO temporaries \(|Used )([\d.]+)([KMGT])(?:\) exceeds available HBM \(| of )([\d.]+)([KMGT])"
)
# To count FLOPs and bytes: no loops of the compiler's own making. Memory is always that of the program as it runs.
UNROLLED = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def compiled(lowered: jax.stages.Lowered, slice_: Topology, devices: int, turns: Sequence[int] = ()) -> dict:
    """Return what the compiler says of a program, per device: bytes of memory, FLOPs, bytes moved and sent.

    turns  see `collective_bytes`; FLOPs and bytes moved are counted once in all loops

    The same program for the same slice and compiler is compiled once in a folder. Where it does not fit, the
    compiler stops and says only how much it needs in all, and how much is usable: then arguments is None; where it
    does, usable is.
    """
    text = lowered.as_text()
    readers = [Path(__file__), Path(__file__).with_name("hlo.py")]  # of what the compiler says
    words = [version("libtpu"), version("jax"), slice_.compiler_name, text, str([*turns]), *map(sha256, readers)]
    key = hashlib.sha256(" ".join(words).encode()).hexdigest()
    kept = Path(cache_folder("plans")) / f"{key}.json"
    if kept.is_file():
        return read_json(kept)
    found = compile_and_read(lowered, devices, turns)
    write_json(kept, found)
    return found


def compile_and_read(lowered: jax.stages.Lowered, devices: int, turns: Sequence[int]) -> dict:
    """Return what `compiled` does, asked of the compiler."""
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        wanted = EXHAUSTED.search(str(error))
        if not wanted:
            raise
        # The message says temporaries, but counts the arguments among them.
        found: dict = {"arguments": None, "temporaries": None, "program": None}
        found["total"], found["usable"] = (
            round(float(number) * UNITS[unit]) for number, unit in (wanted.group(1, 2), wanted.group(3, 4))
        )
        found |= {"flops": 0.0, "bytes": 0.0, "collective_bytes": {}}
    else:
        memory = program.memory_analysis()
        if loops(program.as_text()) > lowered.as_text().count("stablehlo.while"):
            # Multiplications that wait for parts of their operands, piece by piece: counted once, like all loops.
            # Without them a program that fits may not: then the count stays too low.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                program = lowered.compile(compiler_options=UNROLLED)
        cost, sent = program.cost_analysis(), collective_bytes(program.as_text(), devices, turns)
        total = (
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes
            + memory.temp_size_in_bytes
            + memory.generated_code_size_in_bytes
        )
        found = {
            "arguments": memory.argument_size_in_bytes,
            "temporaries": memory.temp_size_in_bytes,
            "program": memory.generated_code_size_in_bytes,
            "total": total,
            "usable": None,
            "flops": float(cost["flops"]),
            "bytes": float(cost["bytes accessed"]),
            "collective_bytes": sent,
        }
    return found


def loops(text: str) -> int:
    """Return the number of loops in a compiled program."""
    return text.count(" while(")
