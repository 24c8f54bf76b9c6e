"""What of a compiled program its plan needs, and which groups of its instructions take the time of a step."""

import re
from collections import defaultdict

import plan_table  # noqa: F401, it finds the package
from tpulm.core.accelerators import Topology
from tpulm.planning import estimate
from tpulm.planning.estimate import times
from tpulm.planning.hlo import Computation, Instruction, parse
from tpulm.planning.links import Links
from tpulm.planning.totals import Counter, read

COSTLIEST = 5  # groups that are shown
WRAPPERS = re.compile(r"jit\(\w+\)/|checkpoint/|rematted_computation/|vmap\(|shard_map/|while/body/|closed_call/|\)")


class Costs(Counter):
    """Counts what a device does, and notes what each group of instructions takes."""

    def work(self, computation: Computation, instruction: Instruction, trip_count: int, counted: set[str]) -> None:
        """Count an instruction, and add its seconds to its group."""
        if not hasattr(self, "groups"):
            self.groups: dict[str, float] = defaultdict(float)
        before = self.seconds()
        super().work(computation, instruction, trip_count, counted)
        self.groups[group_of(instruction)] += self.seconds() - before

    def seconds(self) -> float:
        """Return the estimate of all that was counted so far."""
        compute, memory, links = estimate.FACTORS
        done = self.totals
        arithmetic, traffic = done.flops / self.slice.flops / compute, done.bytes / self.slice.hbm_bandwidth / memory
        return arithmetic + traffic + done.seconds / links


def group_of(instruction: Instruction) -> str:
    """Return which group an instruction belongs to: its scope without the numbers of layers, or its operation."""
    if not instruction.scope:
        return instruction.opcode
    scope = WRAPPERS.sub("", instruction.scope.replace("transpose(jvp(", "backward ").replace("jvp(", "forward "))
    scope = re.sub(r"_?\d+(?=[/_]|$)", "", scope)
    kernel = re.search(r"splash_m[hq]a_(fwd|dq|dkv)", scope)
    return f"kernel of attention, {kernel[1]}" if kernel else scope


def found_in(text: str, coordinates: list, known: dict, slice_: Topology) -> dict:
    """Return what is kept of a program."""
    found = read(text, slice_, coordinates)
    time = times(found, slice_)
    costs = Costs(parse(text), slice_, Links(tuple(map(tuple, coordinates)), slice_.link_bandwidth, slice_.dimensions))
    costs.add(costs.module.entry)
    groups = sorted(costs.groups.items(), key=lambda item: -item[1])[: 4 * COSTLIEST]
    kept = {name: time[name] for name in ("estimated_seconds", "lower_bound_seconds", "bound_by", "seconds")}
    return known | kept | {"devices": len(coordinates), "groups": dict(groups)}
