"""Checkpoints: named arrays as safetensors, and what else the next segment needs as JSON.

weights.safetensors    the model's variables
optimizer.safetensors  the optimizer's variables
best.safetensors       the model's variables at the step with the lowest held-out loss so far
state.json             step, evaluation at this step, best (step and evaluation)

The data position and the random numbers need no state: both are functions of the step.
"""

import math
import shutil

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from lib.errors import UserError
from lib.files import read_json, whole, write_json

PARTS = ("weights", "optimizer", "best", "state")


def save_arrays(path: str, arrays: dict[str, np.ndarray]) -> None:
    """Write named arrays as one safetensors file, whole or not at all."""
    with whole(path) as partial:
        save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, partial)


def load_arrays(path: str) -> dict[str, np.ndarray]:
    """Read a safetensors file. Raises UserError when it is not whole."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path} is not a whole safetensors file ({error}); delete it and run again.") from None


def save(outputs: dict[str, str], step: int, weights: dict, optimizer: dict, evaluation: dict, previous: dict | None):
    """Write one checkpoint. `outputs` and `previous` map weights, optimizer, best and state to paths.

    evaluation  the held-out figures at `step`, with `loss` among them; lower is better
    previous    the checkpoint before, or None for the first
    """
    best = read_json(previous["state"])["best"] if previous else {"step": 0, "evaluation": {"loss": math.inf}}
    save_arrays(outputs["weights"], weights)
    save_arrays(outputs["optimizer"], optimizer)
    improved = evaluation["loss"] < best["evaluation"]["loss"]
    if improved:
        best = {"step": step, "evaluation": evaluation}
    with whole(outputs["best"]) as partial:
        shutil.copyfile(outputs["weights"] if improved else previous["best"], partial)
    write_json(outputs["state"], {"step": step, "evaluation": evaluation, "best": best})
