"""Learning-rate schedules, as piecewise-linear knots that can be cut into segments.

A knot is [step, rate]; between two knots the rate is linear in the step. Update number s, counted from 0, uses the rate
at s. A segment of the steps `first` to `last` gets only the knots of that interval, so that it does not change when the
rest of the schedule does. `cosine` is not piecewise linear: its segments have the constants of the curve instead.
"""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def segment_schedule(recipe: dict, steps: int, first: int, last: int) -> dict:
    """Return the schedule of steps `first` to `last`, JSON types only.

    recipe  learning_rate, shape, warmup_steps; decay_steps for `wsd`
            (warm-up, stable, decay: Hu et al. 2024), final_learning_rate for all but `constant`
    """
    peak, warmup = recipe["learning_rate"], recipe["warmup_steps"]
    final = recipe["final_learning_rate"]
    rise = [(0, 0.0), (warmup, peak)] if warmup else [(0, peak)]
    if recipe["shape"] == "cosine" and last > warmup:
        return {"cosine": {"peak": peak, "final": final, "warmup": warmup, "steps": steps}}
    fall = {
        "constant": [(steps, peak)],
        "linear": [(steps, final)],
        "wsd": [(steps - recipe.get("decay_steps", 0), peak), (steps, final)],
        "cosine": [(steps, peak)],  # only the warm-up is read here
    }[recipe["shape"]]
    points = sorted(dict(rise + fall).items())
    inner = [step for step, _ in points if first < step < last]
    corners = [[step, rate_at(points, step)] for step in [first, *inner, last]]
    # A corner that does not bend the line must not change the segment.
    knots = [
        corner
        for before, corner, after in zip([None, *corners], corners, [*corners[1:], None], strict=False)
        if before is None or after is None or corner[1] != rate_at([before, after], corner[0])
    ]
    return {"knots": knots}


def rate_at(knots: list, step: int) -> float:
    """Return the rate at `step` on the polyline `knots`; rounded to 12 digits, so that clipping is exact."""
    for (left, low), (right, high) in zip(knots, knots[1:], strict=False):
        if left <= step <= right:
            if step == left:
                return low
            if step == right:
                return high
            return round(low + (high - low) * (step - left) / (right - left), 12)
    raise ValueError(f"step {step} is outside of the schedule {knots}")


def learning_rates(schedule: dict, first: int, last: int) -> "np.ndarray":
    """Return the rate of each step from `first` up to, not including, `last`: float32 [last - first]."""
    import numpy as np  # not at the top, since each start of Snakemake imports this module

    steps = np.arange(first, last)
    if "knots" in schedule:
        at, rates = np.array(schedule["knots"], np.float64).T
        return np.interp(steps, at, rates).astype(np.float32)
    c = schedule["cosine"]
    progress = (steps - c["warmup"]) / (c["steps"] - c["warmup"])
    fall = c["final"] + (c["peak"] - c["final"]) * 0.5 * (1 + np.cos(math.pi * progress))
    rise = c["peak"] * steps / max(c["warmup"], 1)
    return np.where(steps < c["warmup"], rise, fall).astype(np.float32)
