"""What is used of Keras 3.15 beyond its public interface. Call tpulm.training.runtime.start before importing it."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

RANDOM = ("RandomNormal", "RandomUniform", "TruncatedNormal", "VarianceScaling")  # all others are subclasses


def flat_layers(model: keras.Model, include_self: bool = True) -> list[keras.layers.Layer]:
    """Return the layers of a model at every depth, each once, in the order of their creation.

    Why: `model.layers` does not list the layers inside of layers.
    Until: Keras lists them.
    """
    return list(model._flatten_layers(include_self=include_self))


@contextlib.contextmanager
def skip_initialization() -> Iterator[None]:
    """Let random initializers return zeros, in a block or a decorated function; their seeds stay the same.

    Why: weights that are loaded afterwards would be drawn first. On a host's CPUs that takes four times the bytes of
    the largest of them (2.96 GiB for a table of 0.73), and minutes for billions.
    Until: `from_preset` creates variables from the loaded weights.
    """

    def zeros(self: keras.Initializer, shape: tuple, dtype: Any = None, **names: Any) -> Any:
        return keras.ops.zeros(shape, dtype or keras.config.floatx())

    kinds = [getattr(keras.initializers, name) for name in RANDOM]
    methods = [kind.__call__ for kind in kinds]
    for kind in kinds:
        kind.__call__ = zeros
    try:
        yield
    finally:
        for kind, method in zip(kinds, methods, strict=True):
            kind.__call__ = method


def replace_call(layer: keras.layers.Layer, wrap: Callable[[Callable], Callable]) -> None:
    """Replace the `call` of a layer by `wrap(call)`.

    Why: remat of keras-hub's blocks, which keeps the activations of one block in memory instead of all:
    `keras.RematScope` turns a block's flags, such as `training`, into traced arrays, and does not return the random
    states that dropout changes inside a block. Dropout, see tpulm.models.dropout. Layers with LoRA, see
    `tpulm.models.lora.with_adapter`.
    Until: RematScope leaves flags as they are and returns random states; keras-hub takes a layer for dropout; Keras
    applies adapters to the inputs of a layer.
    """
    layer.call = wrap(layer.call)


def kernel_alone(layer: keras.layers.Dense | keras.layers.EinsumDense) -> keras.Variable:
    """Return the kernel of a layer with LoRA without its adapter.

    Why: `layer.kernel` is the sum of both.
    Until: Keras applies adapters to the inputs of a layer.
    """
    return layer._kernel


def layout_of(variable: keras.Variable) -> Any:
    """Return the layout of a variable; None if it has none yet.

    Why, until: see `set_layout`.
    """
    return getattr(variable, "_layout", None)


def set_layout(variable: keras.Variable, layout: Any) -> None:
    """Set the layout of a variable that has no value yet.

    Why: Keras sets the layout with the value; a plan has no values, and must be sharded as in training.
    Until: variables of a StatelessScope have a layout.
    """
    variable._layout = layout


def round_weights_only(layer: keras.layers.Layer) -> None:
    """Quantize only the weights of an int8 layer: it computes with its inputs as they are.

    Why: a layer that is built from a dtype policy also rounds its inputs, unlike one that is quantized with
    `Int8QuantizationConfig(activation_quantizer=None)`.
    Until: a dtype policy takes such a config.
    """
    layer.inputs_quantizer = None


def scale_in_kernel(layer: keras.layers.EinsumDense, scale: Any) -> Any:
    """Return the scales of an int8 kernel in a shape that broadcasts: kernel / scales is the dequantized kernel.

    Why: EinsumDense stores its scales in the axes of its outputs; adapters are merged into dequantized kernels.
    Until: layers return their kernels dequantized.
    """
    return layer._adjust_scale_for_dequant(scale)


class MuonOfMatrices(keras.optimizers.Muon):
    """Muon for the variables whose paths are keys of `matrices`, set before `build`, and AdamW for all others.

    Why: Keras chooses by the number of axes: AdamW for the kernels of attention with an axis of heads, and Muon for
    their biases.
    Until: the optimizer takes a function that chooses.
    """

    matrices: Mapping[str, int | None]

    def _should_use_adamw(self, variable: keras.Variable) -> bool:
        """Return whether a variable is no matrix."""
        return variable.path not in self.matrices
