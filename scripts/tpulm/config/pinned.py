"""What comes from a hub is pinned to a commit, so that it cannot change."""

import os
from collections.abc import Mapping

from tpulm.core.errors import UserError, describe


def check_pinned(where: str, recipe: Mapping, key: str, revision: str = "revision") -> None:
    """Check that what a key of a recipe names, if anything, is a local folder or is pinned. Raises UserError.

    where  key of the recipe; revision  its key that has the commit
    """
    name = recipe.get(key)
    if name is None or revision in recipe or os.path.isdir(name):
        return
    if os.path.isfile(name):
        raise UserError(f"{where}.{key} is {describe(name)}, a file; allowed: the folder that has it.")
    raise UserError(
        f"{where}.{key} is {describe(name)}, which is not a local folder; a name on the hub needs {where}.{revision}, "
        "a commit of 40 hexadecimal digits."
    )
