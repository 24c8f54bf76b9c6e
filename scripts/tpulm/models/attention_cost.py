"""Count FLOPs and bytes of the splash attention kernels, which no compiler counts, by the shapes of a call.

Imports neither JAX nor Keras.
"""

import math
import re

BLOCKS = (512, 256, 128)  # tokens of a block; the largest that divides the sequence length is used
LANES, SUBLANES = 128, 8  # dimensions of a TPU's vector registers
# Matrix multiplications per pair of blocks, by kind of kernel: forward, gradients of queries, gradients of keys and
# values, all gradients at once. Each backward kernel computes the scores again.
MULTIPLICATIONS = {"fwd": 2, "dq": 3, "dkv": 4, "all": 5}
# float32 numbers that a kernel stores or reads per token and head: forward, the logsumexp, once for each lane;
# backward, that and the product of outputs and their gradients.
PER_TOKEN = {"fwd": LANES, "dq": 2, "dkv": 2 * SUBLANES, "all": 2 * SUBLANES}
SCOPE = re.compile(r"attention_(full|causal)(?:_window_(\d+))?")
KERNEL = re.compile(r"splash_m[hq]a_(fwd|dq|dkv)")


def block_size(length: int) -> int | None:
    """Return the tokens of a block of the kernel, None if no block size divides `length`."""
    return next((size for size in BLOCKS if length % size == 0), None)


def gradients_at_once(length: int) -> bool:
    """Return whether one kernel computes all gradients: for one block only, since it stores query gradients of each."""
    return block_size(length) == length


def scope_of(causal: bool, window: int | None) -> str:
    """Return the name of the scope around a call, which the names of the compiled instructions contain."""
    kind = "causal" if causal else "full"
    return f"attention_{kind}" if window is None else f"attention_{kind}_window_{window}"


def block_pairs(length: int, causal: bool, window: int | None) -> int:
    """Return the number of block pairs that the kernel computes per head: those in which some token sees another."""
    size = block_size(length) or length
    blocks = length // size
    if not causal:
        reach = blocks if window is None else math.ceil(window / size)
        return sum(min(row, reach) + 1 + min(blocks - 1 - row, reach) for row in range(blocks))
    # A block sees itself, and those before it that its first token reaches.
    reach = blocks if window is None else math.ceil((window - 1) / size)
    return sum(min(row, reach) + 1 for row in range(blocks))


def call_cost(kind: str, query: tuple, key: tuple, itemsize: int, causal: bool, window: int | None) -> tuple:
    """Return the FLOPs and the HBM bytes of a kernel's call on one device, both float.

    kind        fwd, dq or dkv, see MULTIPLICATIONS; dkv is all where `gradients_at_once`
    query, key  shapes on the device, [records, heads, tokens, head_dim]
    itemsize    bytes of an element of them

    Blocks of keys and values are read for each block of queries that sees them (dkv: the other way round). Heads that
    are narrower than a vector fill one, in memory and in multiplications.
    """
    records, heads, length, narrow = query
    width = -(-narrow // LANES) * LANES
    size = block_size(length) or length
    pairs = records * heads * block_pairs(length, causal, window)
    if kind == "dkv" and gradients_at_once(length):
        kind = "all"
    flops = 2 * MULTIPLICATIONS[kind] * pairs * size * size * width
    query_bytes, key_bytes = (math.prod(shape[:3]) * width * itemsize for shape in (query, key))
    per_token = 4 * PER_TOKEN[kind] * records * heads * length
    streamed = 2 * pairs * size * width * itemsize  # two blocks for each pair
    moved = {
        "fwd": streamed + 2 * query_bytes + per_token,  # queries and outputs
        "dq": streamed + 3 * query_bytes + per_token,  # queries, gradients of outputs, gradients of queries
        "dkv": streamed + 4 * key_bytes + per_token,  # keys, values and their gradients
        "all": streamed + 4 * key_bytes + query_bytes + per_token,  # those, and gradients of queries
    }[kind]
    return float(flops), float(moved)


def cost_of_instruction(op_name: str, query: tuple, key: tuple, itemsize: int) -> tuple | None:
    """Return the `call_cost` of a compiled instruction by its op_name, None if it is no splash kernel.

    query, key  the shapes of its first two operands of four dimensions
    """
    kernel, scope = KERNEL.search(op_name), SCOPE.search(op_name)
    if kernel is None or scope is None:
        return None
    window = None if scope[2] is None else int(scope[2])
    return call_cost(kernel[1], query, key, itemsize, scope[1] == "causal", window)
