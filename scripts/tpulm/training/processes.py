"""How the processes that train together on JAX agree about pauses.

Needs tpulm.training.runtime.start first.
"""

import jax
import numpy as np
from jax.experimental import multihost_utils

from tpulm.core.stopping import StopRequest
from tpulm.training.pauses import Alone


class Processes(Alone):
    """All processes of the run; of one, it is `Alone`.

    SIGTERM at any of them reaches all through JAX's preemption service, which takes the signal from Python.
    """

    def first(self, values: list[int]) -> list[int]:
        """Return the values of the first process."""
        return multihost_utils.broadcast_one_to_all(np.array(values, np.int32)).tolist()

    def gather(self, digest: str) -> list[str]:
        """Return the SHA-256 of every process, after waiting for all of them."""
        words = np.frombuffer(bytes.fromhex(digest), np.uint8)
        rows = np.atleast_2d(multihost_utils.process_allgather(words))
        return [row.astype(np.uint8).tobytes().hex() for row in rows]

    def stops(self, request: StopRequest, moment: int) -> bool:
        """Return whether all stop at this moment."""
        if jax.process_count() == 1:
            return super().stops(request, moment)
        return multihost_utils.reached_preemption_sync_point(moment)
