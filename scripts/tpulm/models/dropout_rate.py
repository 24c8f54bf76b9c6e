"""The rate of dropout as both backends draw it: from 16 random bits for an element."""

LEVELS = 2**16  # a rate is rounded to a multiple of 1 / LEVELS


def dropped_levels(rate: float) -> int:
    """Return how many of LEVELS are dropped at a rate between 0 and 1, both excluded: never none, and never all."""
    return min(max(round(rate * LEVELS), 1), LEVELS - 1)
