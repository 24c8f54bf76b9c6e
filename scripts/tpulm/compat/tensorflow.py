"""Prevent imports of TensorFlow, where it is installed and not wanted."""

import sys

MODULES = ("tensorflow", "tensorflow_text")


def keep_out() -> None:
    """Let imports of TensorFlow fail in this process, as if it were not installed.

    Why: keras-hub imports it for its tf.data pipelines if it can. Nothing here uses them, and TensorFlow would take the
    memory of the GPUs that JAX trains on.
    Until: keras-hub imports it when a pipeline is created.
    """
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
