"""What is used of Keras 3.15 beyond its documented interface. Needs tpulm.training.runtime.start first."""

from collections.abc import Callable
from typing import Any

import keras


def flat_layers(model: keras.Model, include_self: bool = True) -> list[keras.layers.Layer]:
    """Return the layers of a model at every depth, each once, in the order in which they are made.

    Why: `model.layers` does not list the layers inside of layers.
    Until: Keras lists them.
    """
    return list(model._flatten_layers(include_self=include_self))


def replace_call(layer: keras.layers.Layer, wrap: Callable[[Callable], Callable]) -> None:
    """Replace what one layer computes by `wrap` of it.

    Why: remat of keras-hub's blocks, which keeps the activations of one block in memory in place of those of all.
    `keras.RematScope` turns a block's flags, such as `training`, into traced arrays, and the random states that dropout
    moves on inside a block do not come out of it.
    Until: RematScope leaves flags as they are and returns random states.
    """
    layer.call = wrap(layer.call)


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
