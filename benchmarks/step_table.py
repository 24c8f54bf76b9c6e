"""The table of training steps of steps.py."""

import statistics

PUBLISHED, OURS = "published", {"tensorflow": 1.8, "jax": 1.3}  # and their aims
FIRST = {"tensorflow": 7.7, "jax": 3.3}  # seconds from the start of the process to the end of its first step: aims


def ratios(seconds: dict[str, list[float]], way: str) -> list[float]:
    """Return how much faster than the published way this one is, round by round: of measurements next to each other."""
    return [other / own for other, own in zip(seconds[PUBLISHED], seconds[way], strict=True)]


def step_rows(seconds: dict, first: dict, losses: dict, profiles: dict, tokens: int) -> list[str]:
    """Return the table of the ways, medians with the lowest and the highest, and what takes time where one misses."""
    rows = [
        "| trained by | ms a step | tokens/s | ratio to the published | aim | held-out loss, three seeds | first step; "
        "with programs compiled before |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for way, taken in seconds.items():
        middle = statistics.median(taken)
        found = ratios(seconds, way)
        ratio = f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
        name = "the published `fit`" if way == PUBLISHED else f"`backend: {way}`"
        cells = [
            name,
            f"{middle * 1e3:.0f} ({min(taken) * 1e3:.0f} to {max(taken) * 1e3:.0f})",
            f"{tokens / middle:,.0f}",
            "1" if way == PUBLISHED else ratio,
            "" if way == PUBLISHED else f"{OURS[way]}",
            " ".join(f"{loss:.3f}" for loss in losses[way]),
            "; ".join(f"{sum(phases.values()):.1f} s" for phases in first[way]),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    for way, operations in profiles.items():
        shares = ", ".join(f"`{name}` {share:.0%}" for name, share in operations)
        rows += ["", f"`backend: {way}` misses its aim; what takes the time of its operations: {shares}."]
    return rows + first_rows(first)


def first_rows(first: dict) -> list[str]:
    """Return what the first steps were to take, and where the time of those that take longer goes."""
    aims = " and ".join(f"{aim} s on {way}" for way, aim in FIRST.items())
    rows = ["", f"The first step was to take {aims}: a third of the first version's, where that was measured."]
    for way, aim in FIRST.items():
        if any(sum(phases.values()) > aim for phases in first[way]):
            told = (", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.items()) for phases in first[way])
            rows.append(f"`backend: {way}` misses it: {'; with programs compiled before '.join(told)}.")
    return rows
