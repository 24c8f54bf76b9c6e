"""Traffic between devices: which chips take part in a collective, and over how many of a chip's links.

Chips are a mesh of two or three dimensions, with a link in each direction of each; around the ends only in slices
that are large enough (cloud.google.com/tpu/docs, the page of each version).
"""

import math
import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tpulm.planning.hlo import Computation, Instruction

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
WRAPS = {2: 16, 3: 4}  # the size of a dimension from which on it is a ring, by the number of dimensions


@dataclass(frozen=True)
class Transfer:
    """What a collective sends, of a chip.

    kind     one of KINDS
    sent     bytes that a device sends by a ring algorithm (Thakur, Rabenseifner and Gropp 2005): with n devices in a
             group and S bytes of a whole array, all-reduce 2 S (n-1)/n, all-gather, reduce-scatter and all-to-all
             S (n-1)/n, collective-permute S
    seconds  over all links that a chip of the slice has, each at its peak: no algorithm takes less
    """

    kind: str
    sent: int
    seconds: float


@dataclass(frozen=True)
class Links:
    """The links of a slice.

    coordinates  of the chip of each device (x, y, z), in the order of the program's partitions
    bandwidth    bytes per second of one link, in one direction
    dimensions   of the mesh of chips
    """

    coordinates: tuple[tuple[int, ...], ...]
    bandwidth: float
    dimensions: int

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Chips along each dimension."""
        return tuple(max(axis) - min(axis) + 1 for axis in zip(*self.coordinates, strict=True))

    @cached_property
    def per_chip(self) -> int:
        """Devices of a chip."""
        return len(self.coordinates) // len(set(self.coordinates))

    def along(self, axis: int) -> int:
        """Return how many links a chip at the end of a dimension has along it: one, or two of a ring."""
        return 0 if self.shape[axis] == 1 else 2 if self.shape[axis] >= WRAPS[self.dimensions] else 1

    def transfer(self, computation: Computation, instruction: Instruction, fused: bool = False) -> Transfer:
        """Return the bytes that a collective sends; `fused` with a slice of what it reduces: a reduce-scatter."""
        kind = instruction.opcode.removesuffix("-start")
        arrays = instruction.arrays
        if instruction.opcode.endswith("-start") and kind != "all-reduce":  # operands, then results
            sources = sum(len(computation.instructions[name].arrays) for name in instruction.operands)
            arrays = arrays[sources : 2 * sources]
        whole = sum(array.bytes for array in arrays)
        if kind == "collective-permute":
            pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", instruction.attributes)
            ends = re.findall(r"\{(\d+),(\d+)", pairs[0]) if pairs else []
            within = all(self.coordinates[int(a)] == self.coordinates[int(b)] for a, b in ends)
            return Transfer(kind, whole, 0.0 if within else whole / self.bandwidth / self.most)
        groups = groups_of(instruction.attributes, len(self.coordinates))
        count = groups.shape[1]
        whole *= count if kind == "reduce-scatter" else 1
        kind = "reduce-scatter" if fused else kind
        twice = 2 if kind == "all-reduce" else 1
        chips = [self.coordinates[device] for device in groups[0]]
        distinct = len(set(chips))
        # Devices of a chip that are in different groups share its links.
        share = (distinct - 1) / distinct * self.per_chip / (count / distinct) * twice * whole
        sent = round(whole * twice * (count - 1) / count)
        return Transfer(kind, sent, share / self.most / self.bandwidth)

    @cached_property
    def most(self) -> int:
        """Links of the chip that has the fewest."""
        return sum(self.along(axis) for axis in range(len(self.shape))) or 1


def groups_of(attributes: str, devices: int) -> np.ndarray:
    """Return the devices of each group of a collective, int [groups, devices of each].

    XLA writes groups as [groups, devices of each]<=[dimensions]T(order), as lists of devices, or as a mesh's axes,
    'a':(i)n being n devices along a part of axis a, i parts further out.
    """
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes)
    if iota:
        shape, dimensions = ([int(n) for n in iota[place].split(",")] for place in (1, 2))
        found = np.arange(math.prod(dimensions)).reshape(dimensions)
        found = found.transpose([int(n) for n in iota[3].split(",")]) if iota[3] else found
        return found.reshape(shape)
    mesh = re.search(r"replica_groups=mesh\[([^]]*)\]([^{]*)\{([^}]*)\}", attributes)
    if mesh:
        return mesh_groups(*mesh.groups())
    listed = re.search(r"replica_groups=\{(\{[\d,{}]+\})\}", attributes)
    if listed:
        return np.array([[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", listed[1])])
    return np.arange(devices)[None]


def mesh_groups(axes: str, order: str, chosen: str) -> np.ndarray:
    """Return the groups of mesh['a'=2,'b'=4] {'b'}, or with device_ids=([4,2]T(1,0)), or {'a':(1)2}."""
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", axes)}
    parts: dict[str, tuple[int, ...]] = dict.fromkeys(sizes, ())
    wanted = []
    for name, before, size in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", chosen):
        if size:
            outer, inner = int(before), int(size)
            parts[name] = (outer, inner, sizes[name] // outer // inner)
        wanted.append(name)
    ids = re.search(r"device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\)", order)
    found = np.arange(math.prod(sizes.values()))
    if ids:
        found = found.reshape([int(n) for n in ids[1].split(",")])
        found = found.transpose([int(n) for n in ids[2].split(",")]) if ids[2] else found
    shape: list[int] = []
    inside: list[int] = []
    for name, size in sizes.items():
        if parts[name]:
            inside += [len(shape) + 1]
            shape += parts[name]
        else:
            inside += [len(shape)] if name in wanted else []
            shape += [size]
    found = found.reshape(shape)
    outside = [place for place in range(len(shape)) if place not in inside]
    count = math.prod(shape[place] for place in inside)
    return found.transpose(outside + inside).reshape(-1, count)
