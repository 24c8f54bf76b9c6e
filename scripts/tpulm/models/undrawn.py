"""Models without weights: those that Keras would draw are zeros, as each is drawn by tpulm, or loaded, afterwards.

A random initializer is a program of its own for each shape, half a second to compile.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

RANDOM = ("RandomNormal", "RandomUniform", "TruncatedNormal", "VarianceScaling")  # others are subclasses


@contextlib.contextmanager
def undrawn() -> Iterator[None]:
    """Have Keras' random initializers give zeros; also a decorator. The seeds that they are made with stay the same."""

    def zeros(self: keras.Initializer, shape: tuple, dtype: Any = None, **names: Any) -> Any:
        return keras.ops.zeros(shape, dtype or keras.config.floatx())

    kinds = [getattr(keras.initializers, name) for name in RANDOM]
    kept = [kind.__call__ for kind in kinds]
    for kind in kinds:
        kind.__call__ = zeros
    try:
        yield
    finally:
        for kind, method in zip(kinds, kept, strict=True):
            kind.__call__ = method
