"""The time of a training step: a lower bound that no run can be faster than, and an estimate.

The lower bound is the roofline of the whole step (Williams, Waterman and Patterson 2009): the longest of its
arithmetic, its traffic with HBM and its traffic between chips, each at the chip's published peak, as if they overlapped
entirely. The estimate goes through the instructions in the order of the program (`tpulm.planning.timeline`): each takes
the longer of arithmetic and HBM, collectives and copies run beside it where the compiler has scheduled them so, and
peaks are reached to the shares of `tpulm.planning.efficiency`. Neither has input, dispatch and Python in it.
"""

from tpulm.core.accelerators import Topology
from tpulm.planning import efficiency
from tpulm.planning.timeline import seconds


def times(found: dict, slice_: Topology, steps: int = 1, factors: tuple[float, ...] = efficiency.FACTORS) -> dict:
    """Return what a device does in a step, and how long it takes: of a program that runs several steps, one's share.

    found    as `compiled` returns it
    factors  shares of the peaks of arithmetic, HBM and links that are reached

    cost                 flops, bytes, collective_bytes; and names of kernels whose FLOPs nobody knows
    seconds              of the roofs: compute, memory, interconnect, each at its peak
    bound_by             the longest of them, at the shares of the peaks that are reached
    lower_bound_seconds  no run is faster
    estimated_seconds    what to expect
    estimate_error       how much longer it may take, as a share

    Where the program does not fit, all of it is None.
    """
    names = ("cost", "seconds", "bound_by", "lower_bound_seconds", "estimated_seconds", "estimate_error")
    if found["timeline"] is None:
        return dict.fromkeys(names)
    cost = {name: found[name] / steps for name in ("flops", "bytes")}
    cost |= {"collective_bytes": {kind: size / steps for kind, size in found["collective_bytes"].items()}}
    roofs = {
        "compute": cost["flops"] / slice_.flops,
        "memory": cost["bytes"] / slice_.hbm_bandwidth,
        "interconnect": found["link_seconds"] / steps,
    }
    reached = {name: roof / share for (name, roof), share in zip(roofs.items(), factors, strict=True)}
    estimate = max(seconds(found["timeline"], *factors) / steps, *reached.values())
    return {
        "cost": cost | {"uncounted": found["uncounted"]},
        "seconds": roofs,
        "bound_by": max(reached, key=reached.__getitem__),
        "lower_bound_seconds": max(roofs.values()),
        "estimated_seconds": estimate,
        "estimate_error": efficiency.ERROR,
    }
