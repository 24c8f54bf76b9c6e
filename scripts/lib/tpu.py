"""TPU slices by the names that Google sells them under, and what their chips can do at most.

A device is what JAX calls one: a core of v2 and v3, a chip of all later versions (on v4 and v5p its two cores work as
one, "megacore"). Figures of a chip are Google's (cloud.google.com/tpu/docs, the page of each version): peak bfloat16
FLOPs, HBM capacity and bandwidth, bandwidth of the links between chips, all directions together, one way.
"""

import math
import re
from dataclasses import dataclass

from lib.errors import UserError

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """Published peaks of one chip."""

    flops: float  # per second, bfloat16; TPUs multiply float32 matrices that way too, unless asked otherwise
    hbm: int  # bytes
    hbm_bandwidth: float  # bytes per second
    ici_bandwidth: float  # bytes per second
    devices: int  # in the eyes of JAX
    counted_by: str  # what the number in a slice's name counts: cores or chips
    dimensions: int  # of the mesh of chips


CHIPS = {
    "v2": Chip(45e12, 16 * GIB, 700e9, 248e9, 2, "cores", 2),
    "v3": Chip(123e12, 32 * GIB, 900e9, 328e9, 2, "cores", 2),
    "v4": Chip(275e12, 32 * GIB, 1200e9, 300e9, 1, "cores", 3),
    "v5e": Chip(197e12, 16 * GIB, 819e9, 200e9, 1, "chips", 2),
    "v5p": Chip(459e12, 95 * GIB, 2765e9, 600e9, 1, "cores", 3),
    "v6e": Chip(918e12, 32 * GIB, 1640e9, 448e9, 1, "chips", 2),
}
LARGEST = {2: 256, 3: 4096}  # chips of a slice that has a compact shape here


@dataclass(frozen=True)
class Topology:
    """A slice: what it is called here and by the compiler, and the peaks of one of its devices."""

    name: str
    compiler_name: str
    compiler_options: dict
    chips: int
    devices: int
    flops: float
    hbm: int
    hbm_bandwidth: float
    ici_bandwidth: float


def topology(name: str) -> Topology:
    """Return the slice of a name such as v3-8 or v5e-256. Raises UserError for names that there are not."""
    found = re.fullmatch(r"(v\d[ep]?)-(\d{1,5})", name)
    chip = CHIPS.get(found[1]) if found else None
    if chip is None:
        versions = ", ".join(CHIPS)
        raise UserError(f'"{name}" is no TPU slice; allowed: one of {versions}, and a size, such as v5e-8.')
    number = int(found[2])
    chips = number // 2 if chip.counted_by == "cores" else number
    cores = chip.counted_by == "cores"
    odd, few = cores and number % 2, chips < 4 and (cores or chips != 1)  # what counts chips is sold singly too
    if odd or few or chips > LARGEST[chip.dimensions] or chips & (chips - 1):
        sizes = "8, 16, 32, 64, 128" if cores else "1, 4, 8, 16, 32, 64"
        raise UserError(f'"{name}" is no TPU slice that can be planned; allowed for {found[1]}: {sizes}, ...')
    share = 1 / chip.devices
    return Topology(
        name=name,
        compiler_name=f"{found[1]}:{'x'.join(map(str, shape(chips, chip.dimensions)))}",
        compiler_options={"chip_config_name": "megacore"} if found[1] == "v4" else {},
        chips=chips,
        devices=chips * chip.devices,
        flops=chip.flops * share,
        hbm=int(chip.hbm * share),
        hbm_bandwidth=chip.hbm_bandwidth * share,
        ici_bandwidth=chip.ici_bandwidth * share,
    )


def shape(chips: int, dimensions: int) -> list[int]:
    """Return the most compact shape of a power of two of chips, the smallest dimension first; 4 in 3-D is 2x2x1."""
    if dimensions == 3 and chips == 4:
        return [2, 2, 1]
    exponents = [round(math.log2(chips)) // dimensions] * dimensions
    for index in range(round(math.log2(chips)) % dimensions):
        exponents[-1 - index] += 1
    return [2**exponent for exponent in exponents]
