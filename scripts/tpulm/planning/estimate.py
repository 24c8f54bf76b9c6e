"""Estimate the time of a training step, and its lower bound.

The lower bound is the roofline of the step (Williams, Waterman and Patterson 2009): the longest of arithmetic, HBM
traffic and traffic between chips at the chip's published peaks, as if they overlapped entirely. The estimate is at the
shares of the peaks in FACTORS: HBM traffic overlaps with the others, traffic between chips does not overlap with
arithmetic. Neither includes input, dispatch and Python.

benchmarks/plan_table.py fits FACTORS, the same for all chips, to published training steps, compares the estimates with
others (benchmarks/measured_steps.yaml, benchmarks/results/plan_table.md) and writes the numbers below. A test fits them
again.
"""

from tpulm.core.accelerators import Topology, parse_tpu

# Shares of peaks that are reached.
COMPUTE = 0.82  # arithmetic of matrix multiplications
MEMORY = 0.45  # bandwidth of HBM
LINKS = 1.0  # bandwidth of the links between chips
FACTORS = (COMPUTE, MEMORY, LINKS)

# Largest excess of a measured step over its estimate, as a share, with factors fitted without that step. By TPU version
# for those with five steps or more; "all" for the others.
ERRORS = {"all": 0.43, "v5p": 0.13}

# Number of measured steps by TPU version: of other programs, to which FACTORS are fitted; of others that are held out;
# of this workflow.
MEASURED = {
    "tpu7x": (0, 2, 0),
    "v2": (1, 0, 0),
    "v3": (4, 0, 0),
    "v4": (1, 0, 0),
    "v5e": (3, 1, 0),
    "v5p": (5, 3, 0),
    "v6e": (0, 1, 0),
}


def basis_of(version: str) -> str:
    """Return in words on which measured steps the estimates for a TPU version rest."""
    fitted, compared, own = MEASURED.get(version, (0, 0, 0))
    steps = "step" if fitted == 1 else "steps"
    others = f"calibrated by {fitted or 'no'} measured {steps} of other programs on {version}"
    others += f", compared with {compared} more" if compared else ""
    return f"ms / step on {version}: {others}; {own or 'none'} of this workflow."


def of_roofs(roofs: dict[str, float], factors: tuple[float, ...] = FACTORS) -> dict:
    """Return bound_by, lower_bound_seconds and estimated_seconds of a step, see `step_estimate`.

    roofs  seconds at the peaks of compute, memory and interconnect, in the order of `factors`
    """
    compute, memory, links = (roof / share for roof, share in zip(roofs.values(), factors, strict=True))
    others = "compute" if compute >= links else "interconnect"
    return {
        "bound_by": "memory" if memory > compute + links else others,
        "lower_bound_seconds": max(roofs.values()),
        "estimated_seconds": max(compute + links, memory),
    }


def step_estimate(program: dict, slice_: Topology, steps: int = 1, factors: tuple[float, ...] = FACTORS) -> dict:
    """Return cost, seconds, bounds and estimate of one step on a device; all None for a program that does not fit.

    program  from `compiled`
    steps    of the program; results are the share of one
    factors  reached shares of the peaks of arithmetic, HBM and links

    cost                 flops, bytes, collective_bytes; uncounted, names of kernels whose FLOPs are unknown
    seconds              compute, memory, interconnect, each at its peak
    bound_by             memory, or the longer of the other two, whichever the estimate is made of
    lower_bound_seconds  longest of `seconds`
    estimated_seconds    memory, or the sum of the other two, at the reached shares
    estimate_error       possible excess over the estimate, as a share
    basis                on which measured steps the estimate rests, in words
    """
    names = ("cost", "seconds", "bound_by", "lower_bound_seconds", "estimated_seconds", "estimate_error", "basis")
    if program["flops"] is None:
        return dict.fromkeys(names)
    cost = {name: program[name] / steps for name in ("flops", "bytes")}
    cost |= {"collective_bytes": {kind: size / steps for kind, size in program["collective_bytes"].items()}}
    roofs = {
        "compute": cost["flops"] / slice_.flops,
        "memory": cost["bytes"] / slice_.hbm_bandwidth,
        "interconnect": program["link_seconds"] / steps,
    }
    version, _ = parse_tpu(slice_.name)
    return {
        "cost": cost | {"uncounted": program["uncounted"]},
        "seconds": roofs,
        **of_roofs(roofs, factors),
        "estimate_error": ERRORS.get(version, ERRORS["all"]),
        "basis": basis_of(version),
    }
