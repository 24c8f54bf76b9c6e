"""Keep from Keras and keras-hub the packages that they import if they are installed, and that nothing here uses."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

TENSORFLOW = ("tensorflow", "tensorflow_text")
TABLES = ("pandas", "sklearn", "nltk")


@contextmanager
def kept_out() -> Iterator[None]:
    """Let imports of TensorFlow fail from here on, and those of TABLES within the block, as if they were not installed.

    Why: keras-hub imports TensorFlow for tf.data, and it would take the memory of the GPUs that JAX trains on. Keras
    imports pandas and scikit-learn for its `fit` and its wrappers, and keras-hub nltk for a metric: 0.8 of the 3.2
    seconds of CPU that a job takes to start. A package that is imported already stays.
    Until: both libraries import them when they are used.
    """
    sys.modules.update(dict.fromkeys(TENSORFLOW))  # type: ignore[arg-type]
    hidden = [name for name in TABLES if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
