"""What a plan keeps of a compiled program: totals of a device, and the timeline from which its time is estimated."""

from collections.abc import Iterable

from tpulm.core.accelerators import Topology
from tpulm.planning.hlo import parse
from tpulm.planning.links import Links
from tpulm.planning.timeline import Reader
from tpulm.planning.work import uncounted


def read(text: str, slice_: Topology, coordinates: Iterable[Iterable[int]], attended: float = 1.0) -> dict:
    """Return what a device does in a compiled program for a slice.

    coordinates  of the chip of each device, in the order of the program's partitions
    attended     share of pairs of positions that kernels of attention compute

    flops, bytes      of multiplications of matrices; across HBM
    collective_bytes  sent to other devices, by kind
    link_seconds      the least that the links of a chip need for it
    timeline          see `tpulm.planning.timeline`
    uncounted         kernels whose FLOPs, and loops whose turns, nobody knows
    """
    module = parse(text)
    links = Links(tuple(map(tuple, coordinates)), slice_.link_bandwidth, slice_.dimensions)
    reader = Reader(module, slice_, links, attended)
    timeline = reader.read()
    totals = reader.totals
    return {
        "flops": totals.flops,
        "bytes": totals.bytes,
        "collective_bytes": totals.sent,
        "link_seconds": totals.least,
        "timeline": timeline,
        "uncounted": sorted({*uncounted(module), *reader.unknown}),
    }
