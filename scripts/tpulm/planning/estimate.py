"""The time of a training step: a lower bound that no run can be faster than, and an estimate.

Three factors, the same for all chips, fitted by benchmarks/plan_table.py to training steps that others have measured
and published (benchmarks/measured_steps.yaml has the sources, benchmarks/results/plan_table.md the comparison). A test
fits them again.

The lower bound is the roofline of the whole step (Williams, Waterman and Patterson 2009): the longest of its
arithmetic, its traffic with HBM and its traffic between chips, each at the chip's published peak, as if they overlapped
entirely. The estimate is the sum of the three, as if nothing overlapped, where peaks are reached to the shares in
FACTORS. Neither has input, dispatch and Python in it.
"""

from tpulm.core.accelerators import Topology, parse_tpu

COMPUTE = 1.0  # of the peak of arithmetic, in multiplications of matrices
MEMORY = 0.87  # of the peak bandwidth of HBM
LINKS = 0.68  # of the peak bandwidth of the links between chips
FACTORS = (COMPUTE, MEMORY, LINKS)

# How much longer than its estimate a step may take: the largest excess among those rows, each estimated with factors
# that were fitted without it. By TPU version, of those with five rows or more; "all" for the others.
ERRORS = {"all": 0.32}


def of_roofs(roofs: dict[str, float], factors: tuple[float, ...] = FACTORS) -> dict:
    """Return bound_by, lower_bound_seconds and estimated_seconds of a step, see `times`; roofs  its seconds."""
    reached = {name: roof / share for (name, roof), share in zip(roofs.items(), factors, strict=True)}
    return {
        "bound_by": max(reached, key=reached.__getitem__),
        "lower_bound_seconds": max(roofs.values()),
        "estimated_seconds": sum(reached.values()),
    }


def times(found: dict, slice_: Topology, steps: int = 1, factors: tuple[float, ...] = FACTORS) -> dict:
    """Return the work of a device in one step, and its time; of a program with several steps, one's share.

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
    if found["flops"] is None:
        return dict.fromkeys(names)
    cost = {name: found[name] / steps for name in ("flops", "bytes")}
    cost |= {"collective_bytes": {kind: size / steps for kind, size in found["collective_bytes"].items()}}
    roofs = {
        "compute": cost["flops"] / slice_.flops,
        "memory": cost["bytes"] / slice_.hbm_bandwidth,
        "interconnect": found["link_seconds"] / steps,
    }
    return {
        "cost": cost | {"uncounted": found["uncounted"]},
        "seconds": roofs,
        **of_roofs(roofs, factors),
        "estimate_error": ERRORS.get(parse_tpu(slice_.name)[0], ERRORS["all"]),
    }
