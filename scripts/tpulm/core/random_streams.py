"""Seeded random streams: random numbers come from a key, never from the clock or global state."""

import numpy as np


def generator(*key: int) -> np.random.Generator:
    """Return the random generator that belongs to `key`: the same numbers on every machine.

    Philox (Salmon et al. 2011) is counter-based; SeedSequence hashes the key, so that
    neighbouring keys give unrelated streams.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
