"""Compute the traffic of collectives between devices: bytes sent, and seconds on a chip's links.

Chips are a mesh of two or three dimensions with a link in each direction. A dimension is a ring only in slices that are
large enough (cloud.google.com/tpu/docs, the page of each version).
"""

import math
import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tpulm.planning.hlo import Computation, Instruction

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
WRAPS = {2: 16, 3: 4}  # smallest size of a dimension that is a ring, by the number of dimensions


@dataclass(frozen=True)
class Transfer:
    """The traffic of a collective.

    kind     one of COLLECTIVES
    sent     bytes that a device sends in a ring algorithm (Thakur, Rabenseifner and Gropp 2005). With n devices in a
             group and S bytes of a whole array: all-reduce 2 S (n-1)/n; all-gather, reduce-scatter and all-to-all
             S (n-1)/n; collective-permute S
    seconds  lower bound for any algorithm: all links of a chip at their peak
    """

    kind: str
    sent: int
    seconds: float


@dataclass(frozen=True)
class Links:
    """The links of a slice.

    coordinates  (x, y, z) of each device's chip, in the order of the program's partitions
    bandwidth    bytes per second of one link in one direction
    dimensions   number of dimensions of the chip mesh
    """

    coordinates: tuple[tuple[int, ...], ...]
    bandwidth: float
    dimensions: int

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of chips along each dimension."""
        return tuple(max(axis) - min(axis) + 1 for axis in zip(*self.coordinates, strict=True))

    @cached_property
    def per_chip(self) -> int:
        """Number of devices on a chip."""
        return len(self.coordinates) // len(set(self.coordinates))

    def along(self, axis: int) -> int:
        """Return the number of links along a dimension of a chip at its end: 1, or 2 in a ring; 0 for size 1."""
        return 0 if self.shape[axis] == 1 else 2 if self.shape[axis] >= WRAPS[self.dimensions] else 1

    def transfer(self, computation: Computation, instruction: Instruction, fused: bool = False) -> Transfer:
        """Return the traffic of a collective; fused  whether a slice of its result makes it a reduce-scatter."""
        kind = instruction.opcode.removesuffix("-start")
        arrays = instruction.arrays
        if instruction.opcode.endswith("-start") and kind != "all-reduce":  # arrays: operands, then results
            sources = sum(len(computation.instructions[name].arrays) for name in instruction.operands)
            arrays = arrays[sources : 2 * sources]
        array_bytes = sum(array.bytes for array in arrays)
        if kind == "collective-permute":
            pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", instruction.attributes)
            device_pairs = re.findall(r"\{(\d+),(\d+)", pairs[0]) if pairs else []
            same_chip = all(self.coordinates[int(a)] == self.coordinates[int(b)] for a, b in device_pairs)
            return Transfer(kind, array_bytes, 0.0 if same_chip else array_bytes / self.bandwidth / self.most)
        groups = groups_of(instruction.attributes, len(self.coordinates))
        count = groups.shape[1]
        array_bytes *= count if kind == "reduce-scatter" else 1
        kind = "reduce-scatter" if fused else kind
        passes = 2 if kind == "all-reduce" else 1
        chips = [self.coordinates[device] for device in groups[0]]
        distinct = len(set(chips))
        # Devices of one chip in different groups share its links.
        link_bytes = (distinct - 1) / distinct * self.per_chip / (count / distinct) * passes * array_bytes
        sent = round(array_bytes * passes * (count - 1) / count)
        return Transfer(kind, sent, link_bytes / self.most / self.bandwidth)

    @cached_property
    def most(self) -> int:
        """Number of links of the chip with the fewest."""
        return sum(self.along(axis) for axis in range(len(self.shape))) or 1


def groups_of(attributes: str, devices: int) -> np.ndarray:
    """Return the devices of each group of a collective, int [groups, devices of each].

    XLA writes groups as [groups, devices of each]<=[dimensions]T(order), as lists of devices, or as axes of a mesh:
    'a':(i)n is n devices along a part of axis a, with i parts outside of it.
    """
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes)
    if iota:
        shape, dimensions = ([int(n) for n in iota[part].split(",")] for part in (1, 2))
        groups = np.arange(math.prod(dimensions)).reshape(dimensions)
        groups = groups.transpose([int(n) for n in iota[3].split(",")]) if iota[3] else groups
        return groups.reshape(shape)
    mesh = re.search(r"replica_groups=mesh\[([^]]*)\]([^{]*)\{([^}]*)\}", attributes)
    if mesh:
        return mesh_groups(*mesh.groups())
    lists = re.search(r"replica_groups=\{(\{[\d,{}]+\})\}", attributes)
    if lists:
        return np.array([[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", lists[1])])
    return np.arange(devices)[None]


def mesh_groups(axes: str, order: str, chosen: str) -> np.ndarray:
    """Return the groups of mesh['a'=2,'b'=4] {'b'}, or with device_ids=([4,2]T(1,0)), or {'a':(1)2}."""
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", axes)}
    parts: dict[str, tuple[int, ...]] = dict.fromkeys(sizes, ())
    chosen_axes = []
    for name, outer_size, size in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", chosen):
        if size:
            outer, inner = int(outer_size), int(size)
            parts[name] = (outer, inner, sizes[name] // outer // inner)
        chosen_axes.append(name)
    ids = re.search(r"device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\)", order)
    devices = np.arange(math.prod(sizes.values()))
    if ids:
        devices = devices.reshape([int(n) for n in ids[1].split(",")])
        devices = devices.transpose([int(n) for n in ids[2].split(",")]) if ids[2] else devices
    shape: list[int] = []
    group_dimensions: list[int] = []
    for name, size in sizes.items():
        if parts[name]:
            group_dimensions += [len(shape) + 1]
            shape += parts[name]
        else:
            group_dimensions += [len(shape)] if name in chosen_axes else []
            shape += [size]
    devices = devices.reshape(shape)
    other_dimensions = [place for place in range(len(shape)) if place not in group_dimensions]
    count = math.prod(shape[place] for place in group_dimensions)
    return devices.transpose(other_dimensions + group_dimensions).reshape(-1, count)
