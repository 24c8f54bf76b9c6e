"""Seeded random streams: random numbers depend on a key, never on the clock or global state."""

import hashlib

import numpy as np

Key = tuple[str, *tuple[int, ...]]  # arguments of `generator`


def generator(purpose: str, *key: int) -> np.random.Generator:
    """Return the random generator of a purpose and a key: the same numbers on every machine.

    purpose  use of the numbers, such as "masking": streams of two purposes are unrelated, whatever their keys
    key      integers from 0 to 2**32 - 1

    Philox (Salmon et al. 2011) is counter-based; SeedSequence hashes its input, so that neighbouring keys give
    unrelated streams. It pads short keys with zeros; with the length of the key in front, (7, 1) is not (7, 1, 0).
    """
    word = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:4], "little")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([word, len(key), *key])))
