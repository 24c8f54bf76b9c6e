"""Checks of device mesh and batch size on JAX, applied to the config before any job and to the advice of a plan."""

import math

from tpulm.core.errors import UserError

# host_device_count at the most, as in the schema, which planners cannot read: a test compares the two.
MOST_HOST_DEVICES = 512


def check_mesh(where: str, recipe: dict) -> None:
    """Check a run's mesh, batch and steps per execution against each other. Raises UserError, naming the key `where`.

    recipe  mesh, host_device_count, batch_size, microbatches, checkpoint_every, steps_per_execution, resources
    """
    mesh, devices = recipe["mesh"], recipe["host_device_count"]
    if any(size < 1 and size != -1 for size in mesh) or mesh == [-1, -1]:
        raise UserError(f"{where}.mesh is {mesh}; allowed: two sizes of 1 or more, one of which may be -1.")
    known = math.prod(size for size in mesh if size != -1)
    if devices % known or (-1 not in mesh and known != devices):
        raise UserError(f"{where}.mesh is {mesh}, which does not fit host_device_count, {devices}.")
    hosts = recipe["resources"]["hosts"]
    if devices % hosts:
        raise UserError(
            f"{where}.resources.hosts is {hosts}; allowed: what host_device_count, {devices}, can be divided by."
        )
    batch_axis = devices // known if mesh[0] == -1 else mesh[0]
    check_batch_size(where, recipe["batch_size"], batch_axis, recipe["microbatches"])
    if recipe["checkpoint_every"] % recipe["steps_per_execution"]:
        raise UserError(
            f"{where}.checkpoint_every is {recipe['checkpoint_every']}; "
            f"allowed: a multiple of steps_per_execution, {recipe['steps_per_execution']}."
        )


def check_batch_size(where: str, batch_size: int, batch_axis: int, microbatches: int) -> None:
    """Check that each microbatch of a global batch can be divided over the batch axis of a mesh. Raises UserError.

    batch_axis  devices along that axis, -1 resolved
    """
    if batch_size % (batch_axis * microbatches):
        parts = f" times microbatches, {microbatches}" if microbatches > 1 else ""
        raise UserError(
            f"{where}.batch_size is {batch_size}; allowed: a multiple of the batch axis of mesh, {batch_axis}{parts}."
        )
