"""What is used of Keras 3.15 beyond its documented interface. Needs tpulm.training.runtime.start first."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras

RANDOM = ("RandomNormal", "RandomUniform", "TruncatedNormal", "VarianceScaling")  # others are subclasses


def flat_layers(model: keras.Model, include_self: bool = True) -> list[keras.layers.Layer]:
    """Return the layers of a model at every depth, each once, in the order in which they are made.

    Why: `model.layers` does not list the layers inside of layers.
    Until: Keras lists them.
    """
    return list(model._flatten_layers(include_self=include_self))


@contextlib.contextmanager
def skip_initialization() -> Iterator[None]:
    """Have random initializers give zeros; also a decorator. The seeds that they are made with stay the same.

    Why: weights that are loaded afterwards would be drawn first. On a host's CPUs that takes four times the bytes of
    the largest of them (2.96 GiB for a table of 0.73), and minutes for billions.
    Until: `from_preset` makes variables of what it loads.
    """

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


def replace_call(layer: keras.layers.Layer, wrap: Callable[[Callable], Callable]) -> None:
    """Replace what one layer computes by `wrap` of it.

    Why: remat of keras-hub's blocks, which keeps the activations of one block in memory in place of those of all:
    `keras.RematScope` turns a block's flags, such as `training`, into traced arrays, and the random states that dropout
    moves on inside a block do not come out of it. The dropout of its models, see tpulm.models.dropout. And layers with
    LoRA, see `tpulm.models.causal.with_adapter`.
    Until: RematScope leaves flags as they are and returns random states; keras-hub takes a layer for dropout; Keras
    applies adapters to the inputs of a layer.
    """
    layer.call = wrap(layer.call)


def kernel_alone(layer: keras.layers.Dense | keras.layers.EinsumDense) -> keras.Variable:
    """Return the kernel of a layer with LoRA without what its adapter adds.

    Why: `layer.kernel` is the sum of both.
    Until: as of `replace_call`.
    """
    return layer._kernel


def layout_of(variable: keras.Variable) -> Any:
    """Return the layout that a variable has got; None where it has none yet.

    Why, until: as of `set_layout`.
    """
    return getattr(variable, "_layout", None)


def set_layout(variable: keras.Variable, layout: Any) -> None:
    """Give a variable without a value the layout that it would get with one.

    Why: Keras sets the layout with the value; a plan has no values, and is to be sharded as what trains.
    Until: variables of a StatelessScope have a layout.
    """
    variable._layout = layout


def round_weights_only(layer: keras.layers.Layer) -> None:
    """Let an int8 layer take its inputs as they are.

    Why: a layer that is built from a dtype policy rounds its inputs, too: other numbers than those of a layer that is
    quantized with `Int8QuantizationConfig(activation_quantizer=None)`.
    Until: a dtype policy takes such a config.
    """
    layer.inputs_quantizer = None


def scale_in_kernel(layer: keras.layers.EinsumDense, scale: Any) -> Any:
    """Return the scales of an int8 kernel in the shape in which the kernel is divided by them.

    Why: EinsumDense keeps its scales in the axes of its outputs; adapters are merged into what the kernel stands for.
    Until: layers return their kernels dequantized.
    """
    return layer._adjust_scale_for_dequant(scale)
