"""TensorFlow where it is installed and not wanted."""

import sys

MODULES = ("tensorflow", "tensorflow_text")


def keep_out() -> None:
    """Have imports of TensorFlow fail in this process, as where it is not installed.

    Why: keras-hub imports it for its tf.data pipelines when it can. Nothing here uses them, and TensorFlow would take
    the memory of the GPUs that JAX trains on.
    Until: keras-hub imports it where a pipeline is made.
    """
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
