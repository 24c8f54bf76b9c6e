"""Sum up the work of a device in a compiled program: arithmetic, HBM traffic and collectives, loops unrolled."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tpulm.core.accelerators import Topology
from tpulm.planning.hlo import Computation, Instruction, Module, parse
from tpulm.planning.links import COLLECTIVES, Links, Transfer
from tpulm.planning.work import flops, hbm_bytes, uncounted

BRANCHES = ("branch_computations", "true_computation", "false_computation")  # attributes that name branches


@dataclass
class Totals:
    """The work of a device, with loops counted as often as they run.

    flops    of matrix multiplications
    bytes    across HBM
    sent     bytes to other devices, by kind of collective
    seconds  lower bound of the time of a chip's links
    """

    flops: float = 0.0
    bytes: float = 0.0
    sent: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class WorkCounter:
    """Adds up the work of a device of a slice in a program."""

    def __init__(self, module: Module, slice_: Topology, links: Links, attended: float = 1.0):
        """Take a program, its slice and links; attended  see `tpulm.planning.work.flops`."""
        self.module, self.slice, self.links, self.attended = module, slice_, links, attended
        self.totals = Totals()
        self.unknown: list[str] = []  # loops with an unknown trip count

    def add(self, computation: Computation, trip_count: int = 1) -> None:
        """Add the work of a computation, `trip_count` times, to `totals`.

        A loop with an unknown trip count counts once, and is added to `unknown`.
        """
        counted: set[str] = set()  # asynchronous collectives, which appear in each fusion that they run alongside
        for instruction in computation.instructions.values():
            opcode = instruction.opcode
            if opcode == "while":
                known_trip_count = self.module.trip_count(instruction)
                if known_trip_count is None:
                    self.unknown.append(instruction.name)
                self.add(self.module.called(instruction, "body"), trip_count * (known_trip_count or 1))
            elif opcode == "conditional":
                self.add(self.cheapest(instruction), trip_count)
            elif opcode in ("call", "call-start"):  # on TPU7x, collectives of the SparseCores
                self.add(self.module.called(instruction, "to_apply"), trip_count)
            elif not opcode.endswith("-done"):
                self.work(computation, instruction, trip_count, counted)

    def cheapest(self, conditional: Instruction) -> Computation:
        """Return the branch of a conditional with the least time at the peaks of the chip."""

        def seconds(branch: Computation) -> float:
            counter = WorkCounter(self.module, self.slice, self.links, self.attended)
            counter.add(branch)
            totals = counter.totals
            return totals.flops / self.slice.flops + totals.bytes / self.slice.hbm_bandwidth + totals.seconds

        names = [name for how, names in conditional.called.items() if how.endswith(BRANCHES) for name in names]
        return min((self.module.computations[name] for name in names), key=seconds)

    def work(self, computation: Computation, instruction: Instruction, trip_count: int, counted: set[str]) -> None:
        """Add the work of an instruction to `totals`, and its asynchronous collectives to `counted`."""
        self.totals.flops += trip_count * flops(self.module, computation, instruction, self.attended)
        self.totals.bytes += trip_count * hbm_bytes(self.module, computation, instruction)
        if instruction.opcode.removesuffix("-start") in COLLECTIVES:
            self.send(self.links.transfer(computation, instruction), trip_count)
        for name, inner, collective in collectives_inside(self.module, instruction):
            if name not in counted:
                fused = inner.name.startswith("all-reduce-scatter")
                self.send(self.links.transfer(inner, collective, fused), trip_count)
            counted |= {name} - {""}

    def send(self, transfer: Transfer, trip_count: int) -> None:
        """Add a transfer to the totals, `trip_count` times."""
        kinds = self.totals.sent
        kinds[transfer.kind] = kinds.get(transfer.kind, 0) + trip_count * transfer.sent
        self.totals.seconds += trip_count * transfer.seconds


def collectives_inside(module: Module, instruction: Instruction) -> list[tuple[str, Computation, Instruction]]:
    """Return (name, computation, instruction) for each collective in a fusion.

    An asynchronous collective appears in each fusion that it runs alongside; its name is channel and chain. The name of
    a synchronous one is empty.
    """
    if instruction.opcode != "fusion":
        return []
    inner = module.called(instruction, "calls")
    collectives = []
    for inside in inner.instructions.values():
        if inside.opcode in COLLECTIVES:
            marks = [
                part for part in inside.attributes.replace('"', "").split(",") if "chan" in part or "chain_id" in part
            ]
            collectives.append((" ".join(sorted(marks)) if "chain_id" in inside.attributes else "", inner, inside))
        elif inside.opcode == "fusion":
            collectives += collectives_inside(module, inside)
    return collectives


def total_work(text: str, slice_: Topology, coordinates: Iterable[Iterable[int]], attended: float = 1.0) -> dict:
    """Return the work of a device in the text of a program that is compiled for a slice.

    coordinates  of each device's chip, in the order of the program's partitions
    attended     share of pairs of positions that attention kernels compute

    flops, bytes      of matrix multiplications; across HBM
    collective_bytes  sent to other devices, by kind
    link_seconds      lower bound of the time of a chip's links
    uncounted         names of kernels with unknown FLOPs, and of loops with an unknown trip count
    """
    module = parse(text)
    links = Links(tuple(map(tuple, coordinates)), slice_.link_bandwidth, slice_.dimensions)
    counter = WorkCounter(module, slice_, links, attended)
    counter.add(module.entry)
    totals = counter.totals
    return {
        "flops": totals.flops,
        "bytes": totals.bytes,
        "collective_bytes": totals.sent,
        "link_seconds": totals.seconds,
        "uncounted": sorted({*uncounted(module), *counter.unknown}),
    }
