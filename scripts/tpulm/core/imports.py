"""Imports without what a library takes when it is there, and nothing here uses."""

import contextlib
import sys
from collections.abc import Iterator

# What transformers imports where a model of TensorFlow is built, for scores of GLUE; with SciPy's statistics.
UNUSED_OF_TRANSFORMERS = ("sklearn",)


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """Have the import of these modules fail meanwhile, which a library takes for their absence; not of those imported.

    They can be imported afterwards.
    """
    absent = [name for name in names if name not in sys.modules]
    for name in absent:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
