"""Open a tuning run: its devices, its base model, what of it is tuned. Needs lib.keras_jax.start first."""

import keras

from lib import sharding
from lib.arrays import load_arrays
from lib.causal_model import assign, backbone_class, load_preset, prepare_tuning


def open_run(base: str, recipe: dict, run: str, best: str | None = None) -> tuple[keras.Model, sharding.Sharded]:
    """Return the base model of run `run`, prepared for tuning, and how it is spread over the devices.

    base    preset folder
    recipe  mesh, method, rank, seed
    best    file of the tuned variables to load into it; without one it behaves as the base does
    Raises UserError when the mesh does not fit, or a variable does not lie as the layout map says.
    """
    distribution = sharding.set_up(backbone_class(base), recipe["mesh"], f"lora.runs.{run}.mesh")
    model = load_preset(base)
    prepare_tuning(model, recipe)
    sharding.check(model.variables, distribution)
    if best:
        assign(model.trainable_variables, load_arrays(best), best)
    return model, distribution
