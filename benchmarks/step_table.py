"""The table of training steps of steps.py."""

import statistics

PUBLISHED, OURS = "published", {"tensorflow": 1.8, "jax": 1.3}  # and their aims


def ratios(seconds: dict[str, list[float]], way: str) -> list[float]:
    """Return how much faster than the published way this one is, round by round: of measurements next to each other."""
    return [other / own for other, own in zip(seconds[PUBLISHED], seconds[way], strict=True)]


def named(way: str) -> str:
    """Return how a way is called in tables."""
    return "the published `fit`" if way == PUBLISHED else f"`backend: {way}`"


def step_rows(seconds: dict, losses: dict, profiles: dict, tokens: int) -> list[str]:
    """Return the table of the ways, medians with the lowest and the highest, and what takes time where one misses."""
    rows = [
        "| trained by | ms a step | tokens/s | ratio to the published | aim | held-out loss, three seeds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for way, taken in seconds.items():
        middle = statistics.median(taken)
        found = ratios(seconds, way)
        ratio = f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
        cells = [
            named(way),
            f"{middle * 1e3:.0f} ({min(taken) * 1e3:.0f} to {max(taken) * 1e3:.0f})",
            f"{tokens / middle:,.0f}",
            "1" if way == PUBLISHED else ratio,
            "" if way == PUBLISHED else f"{OURS[way]}",
            " ".join(f"{loss:.3f}" for loss in losses[way]),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    for way, operations in profiles.items():
        shares = ", ".join(f"`{name}` {share:.0%}" for name, share in operations)
        rows += ["", f"`backend: {way}` misses its aim; what takes the time of its operations: {shares}."]
    return rows
