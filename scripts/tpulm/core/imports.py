"""Imports of large libraries: without what nothing here uses, and without looking for garbage."""

import contextlib
import gc
import sys
from collections.abc import Iterator

# What transformers imports where a model of TensorFlow is built, for scores of GLUE; with SciPy's statistics.
UNUSED_OF_TRANSFORMERS = ("sklearn",)


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """Have the import of these modules fail meanwhile, which a library takes for their absence; not of those imported.

    They can be imported afterwards. No cycles are collected meanwhile, see `uncollected`.
    """
    absent = [name for name in names if name not in sys.modules]
    for name in absent:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        with uncollected():
            yield
    finally:
        for name in absent:
            del sys.modules[name]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Import without Python's collector of cycles, which takes a fifth of the time and finds next to nothing.

    What there is afterwards stays to the end, as modules do, and is never looked through again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
