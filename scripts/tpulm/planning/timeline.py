"""What a device does in a program, in the order in which it does it, and how long that takes.

A core runs its instructions one after another; beside them run copies between HBM and VMEM, and what is sent between
chips. An entry of a timeline is a list, so that JSON can keep it:

["run", compute, memory]        an instruction: seconds at the peaks of arithmetic and of HBM; it takes the longer
["send", seconds, memory]       a collective that the core waits for: seconds at the peak of its links
["start", name, seconds, way]   a collective that runs beside what follows; those that go the same way, one by one
["copy", name, memory]          a copy that runs beside what follows
["wait", name]                  until what has that name is done
["loop", trip_count, entries]        entries, so many times
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tpulm.core.accelerators import Topology
from tpulm.planning.hlo import Computation, Instruction, Module, parse
from tpulm.planning.links import KINDS, Links, Transfer
from tpulm.planning.work import flops, hbm_bytes, uncounted

Timeline = list[list]
Uses = dict[str, tuple[str, str]]
BRANCHES = ("branch_computations", "true_computation", "false_computation")  # attributes that name branches
DIGITS = 4  # of seconds that a timeline keeps


@dataclass
class Totals:
    """What a device does in a program, everything in loops counted as often as it runs.

    flops, bytes  of multiplications of matrices; across HBM
    sent          bytes to other devices by kind of collective
    least         seconds that the links of a chip need for it at least
    """

    flops: float = 0.0
    bytes: float = 0.0
    sent: dict[str, float] = field(default_factory=dict)
    least: float = 0.0


class Reader:
    """Reads the timeline of a program for a slice."""

    def __init__(self, module: Module, slice_: Topology, links: Links, attended: float = 1.0):
        """Remember what a program is for; `attended` as `tpulm.planning.work.flops` has it."""
        self.module, self.slice, self.links, self.attended = module, slice_, links, attended
        self.totals = Totals()
        self.unknown: list[str] = []  # loops that do not say how often they run

    def read(self, computation: Computation | None = None, trip_count: int = 1) -> Timeline:
        """Return the timeline of a computation, by default the entry; add to `totals` what it does, `trip_count` times.

        A loop that does not say how often it runs counts once, and stands in `unknown`.
        """
        computation = computation or self.module.entry
        entries: Timeline = []
        uses = uses_of(self.module, computation)
        for instruction in computation.instructions.values():
            opcode = instruction.opcode
            if opcode == "while":
                known = self.module.trip_count(instruction)
                if known is None:
                    self.unknown.append(instruction.name)
                inside = self.read(self.module.called(instruction, "body"), trip_count * (known or 1))
                entries.append(["loop", known or 1, inside])
            elif opcode == "conditional":
                entries.append(["loop", 1, self.read(self.cheapest(instruction), trip_count)])
            elif opcode == "call":
                entries.append(["loop", 1, self.read(self.module.called(instruction, "to_apply"), trip_count)])
            elif opcode.endswith("-done"):
                entries.append(["wait", instruction.operands[0]])
            else:
                entries += self.work(computation, instruction, trip_count, uses)
        return [entry for entry in entries if entry != ["loop", 1, []] and entry != ["run", 0.0, 0.0]]

    def cheapest(self, conditional: Instruction) -> Computation:
        """Return the branch of a conditional that takes the least time: what it takes at least."""
        names = [name for how, names in conditional.called.items() if how.endswith(BRANCHES) for name in names]
        branches = [self.module.computations[name] for name in names]
        readers = [Reader(self.module, self.slice, self.links, self.attended) for _ in branches]
        times = [seconds(reader.read(branch)) for reader, branch in zip(readers, branches, strict=True)]
        return branches[times.index(min(times))]

    def work(self, computation: Computation, instruction: Instruction, trip_count: int, uses: Uses) -> Timeline:
        """Return the entries of an instruction that is no loop and waits for nothing."""
        done = flops(self.module, computation, instruction, self.attended)
        moved = hbm_bytes(self.module, computation, instruction)
        self.totals.flops += trip_count * done
        self.totals.bytes += trip_count * moved
        compute, memory = significant(done / self.slice.flops), significant(moved / self.slice.hbm_bandwidth)
        kind = instruction.opcode.removesuffix("-start")
        if kind in KINDS:
            transfer = self.links.transfer(computation, instruction)
            sending = self.sent(transfer, trip_count)
            if instruction.opcode.endswith("-start"):
                return [["start", instruction.name, sending, transfer.way]]
            return [["send", sending, memory]]
        if instruction.opcode.endswith("-start"):
            return [["copy", instruction.name, memory]] if moved else []
        entries: Timeline = [["run", compute, memory]]
        for name, inner, collective in collectives_inside(self.module, instruction):
            first, final = uses.get(name, ("", ""))
            transfer = self.links.transfer(inner, collective, inner.name.startswith("all-reduce-scatter"))
            if not name:  # the core waits for it
                sending = self.sent(transfer, trip_count)
                alone = entries == [["run", 0.0, memory]]
                entries = [["send", sending, memory]] if alone else [*entries, ["send", sending, 0.0]]
            if first == instruction.name:
                entries = [["start", name, self.sent(transfer, trip_count), transfer.way], *entries]
            if final == instruction.name:
                entries.append(["wait", name])
        return entries

    def sent(self, transfer: Transfer, trip_count: int) -> float:
        """Add a transfer to the totals, `trip_count` times. Returns its seconds."""
        kinds = self.totals.sent
        kinds[transfer.kind] = kinds.get(transfer.kind, 0) + trip_count * transfer.sent
        self.totals.least += trip_count * transfer.least
        return significant(transfer.seconds)


def significant(value: float) -> float:
    """Return a number with DIGITS digits."""
    return float(f"{value:.{DIGITS}g}")


def collectives_inside(module: Module, instruction: Instruction) -> list[tuple[str, Computation, Instruction]]:
    """Return the collectives in a fusion: a name, where they stand, and each.

    An asynchronous one stands in each of the fusions that it runs beside; channel and chain together name it.
    """
    if instruction.opcode != "fusion":
        return []
    inner = module.called(instruction, "calls")
    found = []
    for inside in inner.instructions.values():
        if inside.opcode in KINDS:
            marks = [
                part for part in inside.attributes.replace('"', "").split(",") if "chan" in part or "chain_id" in part
            ]
            found.append((" ".join(sorted(marks)) if "chain_id" in inside.attributes else "", inner, inside))
        elif inside.opcode == "fusion":
            found += collectives_inside(module, inside)
    return found


def uses_of(module: Module, computation: Computation) -> Uses:
    """Return, by the name of each asynchronous collective inside fusions, the first and the last of those."""
    found: Uses = {}
    for instruction in computation.instructions.values():
        for name, _, _ in collectives_inside(module, instruction):
            if name:
                first, _ = found.get(name, (instruction.name, ""))
                found[name] = (first, instruction.name)
    return found


@dataclass
class Clock:
    """Where a simulation is: seconds of the core, and when links (by way) and copies are free again."""

    now: float = 0.0
    links: dict[str, float] = field(default_factory=dict)
    copies: float = 0.0
    ready: dict[str, float] = field(default_factory=dict)


def seconds(timeline: Timeline, compute: float = 1.0, memory: float = 1.0, links: float = 1.0) -> float:
    """Return how long a timeline takes where a device reaches these shares of its peaks."""
    clock = Clock()
    for entry in timeline:
        ACTIONS[entry[0]](clock, entry, (compute, memory, links))
    return max(clock.now, clock.copies, *clock.links.values())


def run(clock: Clock, entry: list, shares: tuple) -> None:
    """An instruction."""
    clock.now += max(entry[1] / shares[0], entry[2] / shares[1])


def send(clock: Clock, entry: list, shares: tuple) -> None:
    """A collective that the core waits for."""
    free = max(clock.now, clock.links.get("", 0.0))
    clock.now = clock.links[""] = free + max(entry[1] / shares[2], entry[2] / shares[1])


def start(clock: Clock, entry: list, shares: tuple) -> None:
    """A collective beside the core, after those that are under way."""
    _, name, sending, way = entry
    clock.ready[name] = clock.links[way] = max(clock.now, clock.links.get(way, 0.0)) + sending / shares[2]


def copy(clock: Clock, entry: list, shares: tuple) -> None:
    """A copy beside the core, after those that are under way."""
    clock.copies = max(clock.now, clock.copies) + entry[2] / shares[1]
    clock.ready[entry[1]] = clock.copies


def wait(clock: Clock, entry: list, shares: tuple) -> None:
    """Until something is done; what another turn of a loop has started is."""
    clock.now = max(clock.now, clock.ready.get(entry[1], 0.0))


def loop(clock: Clock, entry: list, shares: tuple) -> None:
    """All iterations alike; nothing goes on across the ends of an iteration."""
    begin = max(clock.now, clock.copies, *clock.links.values()) if entry[1] > 1 else clock.now
    clock.now = begin + entry[1] * seconds(entry[2], *shares)


ACTIONS: dict[str, Callable[[Clock, list, tuple], None]] = {
    "run": run, "send": send, "start": start, "copy": copy, "wait": wait, "loop": loop,
}  # fmt: skip


def read(text: str, slice_: Topology, coordinates: Iterable[Iterable[int]], attended: float = 1.0) -> dict:
    """Return what a device does in a compiled program for a slice.

    coordinates  of the chip of each device, in the order of the program's partitions
    attended     share of pairs of positions that kernels of attention compute

    flops, bytes      of multiplications of matrices; across HBM
    collective_bytes  sent to other devices, by kind
    link_seconds      the least that the links of a chip need for it
    timeline          see `tpulm.planning.timeline`
    uncounted         kernels whose FLOPs, and loops whose trip_count, nobody knows
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
