"""What the config allows of a mesh: checked before any job, and of what a plan suggests."""

import math

from lib.errors import UserError


def check_mesh(where: str, recipe: dict) -> None:
    """Check a mesh against the virtual devices and the batch. Raises UserError."""
    mesh, devices = recipe["mesh"], recipe["cpu_devices"]
    if any(size < 1 and size != -1 for size in mesh) or mesh == [-1, -1]:
        raise UserError(f"{where}.mesh is {mesh}; allowed: two sizes of 1 or more, one of which may be -1.")
    known = math.prod(size for size in mesh if size != -1)
    if devices % known or (-1 not in mesh and known != devices):
        raise UserError(f"{where}.mesh is {mesh}, which does not fit cpu_devices, {devices}.")
    hosts = recipe["resources"]["hosts"]
    if devices % hosts:
        raise UserError(f"{where}.resources.hosts is {hosts}; allowed: what cpu_devices, {devices}, can be divided by.")
    batch_axis = devices // known if mesh[0] == -1 else mesh[0]
    accumulate = recipe["accumulate"]
    if recipe["batch_size"] % (batch_axis * accumulate):
        parts = f" times accumulate, {accumulate}" if accumulate > 1 else ""
        raise UserError(
            f"{where}.batch_size is {recipe['batch_size']}; "
            f"allowed: a multiple of the batch axis of mesh, {batch_axis}{parts}."
        )
    if recipe["checkpoint_every"] % recipe["steps_per_dispatch"]:
        raise UserError(
            f"{where}.checkpoint_every is {recipe['checkpoint_every']}; "
            f"allowed: a multiple of steps_per_dispatch, {recipe['steps_per_dispatch']}."
        )
