"""Make the Keras optimizer that a run's config names."""

from collections.abc import Mapping
from typing import Any

import keras

from tpulm.compat.keras import layout_of
from tpulm.models.muon import Muon, matrices_of_blocks


class TransientValue:
    """A value within one update, in place of a variable: Keras's Adafactor assigns it before it reads it."""

    def assign(self, value: Any) -> None:
        """Keep an array until it is read."""
        self.value = value

    def __jax_array__(self) -> Any:
        """Return the array, to JAX's functions."""
        return self.value


class Adafactor(keras.optimizers.Adafactor):
    """Keras's Adafactor (Shazeer and Stern 2018) with no more state than the algorithm has.

    Keras also keeps the second moments that it computes anew from rows and columns in each step, as large as the
    weights; and it gives the rows and columns of all variables the same path.
    """

    def build(self, var_list: list[keras.Variable]) -> None:
        """Make the state: for a matrix the second moments' means over rows and columns, else the second moments."""
        if self.built:
            return
        keras.Optimizer.build(self, var_list)
        self._r, self._c, self._v = [], [], []
        for variable in var_list:
            factored = len(variable.shape) >= 2
            self._r.append(self.factor(variable, -1, "row") if factored else None)
            self._c.append(self.factor(variable, -2, "column") if factored else None)
            self._v.append(TransientValue() if factored else self.add_variable_from_reference(variable, "velocity"))

    def factor(self, variable: keras.Variable, dropped: int, name: str) -> keras.Variable:
        """Return a variable of the shape and layout of another without its axis `dropped`."""
        shape, layout = list(variable.shape), layout_of(variable)
        del shape[dropped]
        if layout is not None:
            axes = list(layout.axes)
            del axes[dropped]
            layout = keras.distribution.TensorLayout(tuple(axes), layout.device_mesh)
        path = variable.path.replace("/", "_")  # as Keras names what it makes from another variable
        return self.add_variable(tuple(shape), dtype=variable.dtype, layout=layout, name=f"{path}_{name}")


CLASSES = {"adamw": keras.optimizers.AdamW, "adafactor": Adafactor, "lion": keras.optimizers.Lion, "muon": Muon}


def make_optimizer(recipe: Mapping) -> keras.Optimizer:
    """Return the optimizer of a recipe, not yet built, without weight decay on biases and on the scales of norms.

    recipe  name (adamw by default: Loshchilov and Hutter 2019; lion: Chen et al. 2023; adafactor; muon) and the
            arguments of the class

    The learning rate is an argument of each step, and the one here is never used. A segment has the knots of its own
    steps (`specs.schedule`) instead of the LearningRateSchedule of a run, so that a run that is extended, or decays
    later, keeps its checkpoints up to the first step with another rate.
    """
    arguments = dict(recipe)
    name = arguments.pop("name", "adamw")
    optimizer = CLASSES[name](learning_rate=0.0, name=name, **arguments)
    optimizer.exclude_from_weight_decay(var_names=["bias", "scale", "gamma", "beta"])
    return optimizer


def build_optimizer(optimizer: keras.Optimizer, model: keras.Model) -> None:
    """Make the state of an optimizer for the trainable variables of a model."""
    if isinstance(optimizer, Muon):
        optimizer.matrices = matrices_of_blocks(model)
    optimizer.build(model.trainable_variables)
