"""Which units of a model's feed-forward layers are dead: they answer to no text, and learn nothing more.

Needs tpulm.training.runtime.start first.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import keras
import numpy as np

from tpulm.compat.keras import flat_layers, replace_call

OUTPUTS = ("ffw_linear", "feedforward_output_dense")  # the layers that read the units
# What never reaches this share of the 99th percentile of the units of its layer is dead. One unit may be far larger.
SILENT, LARGE = 1e-3, 0.99


class UnitActivity:
    """Notes how large each unit of a model becomes, wherever the model is called while it is traced."""

    def __init__(self, model: keras.Model):
        """Let the layers that read the units note them."""
        self.noted: list[jax.Array] = []
        for layer in flat_layers(model):
            if layer.name in OUTPUTS:
                replace_call(layer, lambda call: partial(self.note, call))

    def note(self, call: Callable, inputs: jax.Array, **arguments: object) -> jax.Array:
        """Return what a layer computes; note of its inputs, float [..., units], the largest magnitude of each unit."""
        self.noted.append(jnp.abs(inputs).max(range(inputs.ndim - 1)).astype("float32"))
        return call(inputs, **arguments)

    def take(self) -> list[jax.Array]:
        """Return what was noted since: float32 [units] for each layer, in order."""
        noted, self.noted = self.noted, []
        return noted


def dead_share(largest: Sequence[np.ndarray]) -> float:
    """Return the share of dead units; largest  for each layer the largest magnitude of each unit, float32 [units]."""
    dead = [int((units <= SILENT * np.quantile(units, LARGE)).sum()) for units in largest]
    return sum(dead) / sum(map(len, largest))
