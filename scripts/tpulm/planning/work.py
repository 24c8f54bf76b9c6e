"""Compute the work of an instruction of a compiled program: floating-point operations, and bytes across HBM.

An array crosses HBM unless its layout has another memory space. Nothing moves, and nothing is counted, for tuples,
bitcasts, and buffers that are passed through. If a fusion reads or updates only a slice of an array, only the slice is
counted.
"""

import math
import re
from functools import cache

from tpulm.models.attention_cost import cost_of_instruction
from tpulm.planning.hlo import BYTES, Array, Computation, Instruction, Module

# Opcodes that move no data themselves.
FREE = {
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "while", "conditional", "call",
    "partition-id", "replica-id", "optimization-barrier", "opt-barrier", "add-dependency", "domain",
}  # fmt: skip
FREE_CALLS = ("AllocateBuffer", "ConcatBitcast", "Sharding", "AsyncCollectiveStart", "AsyncCollectiveDone")
SLICES = ("dynamic-slice", "slice", "gather")
# Matrix multiplications in the Pallas kernels of jax/experimental/pallas/ops/tpu/splash_attention, by the beginning of
# their names.
KERNELS = {"splash_mha_fwd": 2, "splash_mqa_fwd": 2, "splash_mha_dkv": 4, "splash_mqa_dkv": 4}
KERNELS |= {"splash_mha_dq": 3, "splash_mqa_dq": 3}


def flops(module: Module, computation: Computation, instruction: Instruction, attended: float = 1.0) -> float:
    """Return the floating-point operations of an instruction's matrix multiplications.

    attended  share of pairs of positions that attention kernels compute, because they skip masked blocks; for kernels
              whose scope does not say it
    """
    if instruction.opcode == "convolution":
        return convolution_flops(computation, instruction)
    if instruction.opcode == "dot":
        left = computation.instructions[instruction.operands[0]].arrays[0].dimensions
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
        sizes = [left[int(place)] for place in contracted[1].split(",") if place] if contracted else []
        return 2.0 * math.prod(instruction.arrays[0].dimensions) * math.prod(sizes)
    if instruction.opcode == "custom-call":
        known_cost = attention(computation, instruction)
        return known_cost[0] if known_cost else kernel_flops(computation, instruction) * attended
    if instruction.opcode in ("fusion", "call", "async-start"):
        return sum(
            flops(module, inner, inner_instruction, attended)
            for inner in (module.called(instruction, how) for how in ("calls", "to_apply") if how in instruction.called)
            for inner_instruction in inner.instructions.values()
        )
    return 0.0


def attention(computation: Computation, instruction: Instruction) -> tuple[float, float] | None:
    """Return FLOPs and HBM bytes of a kernel of `tpulm.models.attention`; None for any other instruction."""
    arrays = (a for name in instruction.operands for a in computation.instructions[name].arrays)
    shapes = [a for a in arrays if len(a.dimensions) == 4][:2]
    if len(shapes) < 2:
        return None
    query, key = (a.dimensions for a in shapes)
    return cost_of_instruction(instruction.scope, query, key, BYTES[shapes[0].dtype])


def kernel_flops(computation: Computation, instruction: Instruction) -> float:
    """Return the FLOPs of a Pallas kernel by its own cost estimate or KERNELS; 0 for an unknown kernel."""
    estimate = re.search(r'cost_estimate":\{"flops":"?(\d+)', instruction.attributes)
    if estimate:
        return float(estimate[1])
    products = next((n for name, n in KERNELS.items() if instruction.name.startswith(name)), 0)
    if not products:
        return 0.0
    arrays = (a for name in instruction.operands for a in computation.instructions[name].arrays)
    query, key = [a for a in arrays if a.dtype in ("bf16", "f32") and len(a.dimensions) >= 3][:2]
    return products * 2.0 * math.prod(query.dimensions) * key.dimensions[-2]


def uncounted(module: Module) -> list[str]:
    """Return the sorted names of instructions with unknown FLOPs or bytes.

    They are Pallas kernels, convolutions without dim_labels, and instructions with arrays of an unknown type.
    """
    return sorted(
        instruction.name
        for computation in module.computations.values()
        for instruction in computation.instructions.values()
        if unknown_flops(computation, instruction)
        or any(array.dimensions and array.dtype not in BYTES for array in instruction.arrays)
    )


def unknown_flops(computation: Computation, instruction: Instruction) -> bool:
    """Return whether the FLOPs of a kernel or convolution are unknown."""
    if 'custom_call_target="tpu_custom_call"' in instruction.attributes:
        return not (attention(computation, instruction) or kernel_flops(computation, instruction))
    return instruction.opcode == "convolution" and "dim_labels=" not in instruction.attributes


def convolution_flops(computation: Computation, instruction: Instruction) -> float:
    """Return the FLOPs of a convolution, the form of all matrix products on a TPU.

    Factors of one byte cost half, because newer chips multiply them at twice the rate of bfloat16. Padding costs
    nothing, as in XLA's HloCostAnalysis: batch dimensions are padded spatial dimensions here.
    """
    factors = [computation.instructions[name].arrays[0] for name in instruction.operands[:2]]
    left, right = (array.dimensions for array in factors)
    flops_per_product = 1.0 if all(BYTES.get(array.dtype) == 1 for array in factors) else 2.0
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    if labels is None:
        return 0.0
    batch, inputs = left[labels[1].index("b")], right[labels[2].index("i")]
    outputs = instruction.arrays[0].dimensions[labels[3].index("f")]
    groups = re.search(r"batch_group_count=(\d+)", instruction.attributes)
    window = dict(
        re.findall(r"(\w+)=([\dx_-]+)", (re.search(r"window=\{([^}]*)\}", instruction.attributes) or [""])[0])
    )
    pairs = 1
    for place in range(len(labels[1]) - 2):
        sizes = [left[labels[1].index(str(place))], instruction.arrays[0].dimensions[labels[3].index(str(place))]]
        axis_window = {key: value.split("x")[place] for key, value in window.items()}
        size, stride, spread, dilation = (
            int(axis_window.get(key, 1)) for key in ("size", "stride", "lhs_dilate", "rhs_dilate")
        )
        low = int(axis_window.get("pad", "0_0").split("_")[0])
        pairs *= valid_pairs(sizes[0], sizes[1], size, stride, spread, dilation, low)
    return flops_per_product * (batch // int(groups[1]) if groups else batch) * inputs * outputs * pairs


@cache
def valid_pairs(inputs: int, outputs: int, size: int, stride: int, spread: int, dilation: int, low: int) -> int:
    """Return the number of pairs of an output and a window position that lie on an element of the input."""
    if size == 1 and stride == 1 and spread == 1 and low == 0:
        return min(inputs, outputs)
    count = 0
    for place in range(size):
        for output in range(outputs):
            position = output * stride + place * dilation - low
            count += position % spread == 0 and 0 <= position // spread < inputs
    return count


def hbm_bytes(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Return a lower bound of the bytes that an instruction reads from HBM and writes to it."""
    opcode = instruction.opcode
    if opcode in FREE or opcode.endswith("-done"):
        return 0
    if opcode == "custom-call" and any(f'"{target}"' in instruction.attributes for target in FREE_CALLS):
        return 0
    if opcode == "custom-call" and (known_cost := attention(computation, instruction)):
        return int(known_cost[1])
    if opcode.endswith("-start"):
        return copied(computation, instruction)
    sources = [computation.instructions[name] for name in instruction.operands if name in computation.instructions]
    if opcode == "fusion":
        inner = module.called(instruction, "calls")
        reads: dict[str, int] = {}  # an operand that is passed twice is read once
        for parameter, source in zip(inner.parameters, sources, strict=False):
            reads[source.name] = max(reads.get(source.name, 0), read_of(module, inner, parameter.name, source.arrays))
        return sum(reads.values()) + written_by(module, inner, instruction.arrays)
    if opcode in SLICES:
        moved = instruction.arrays[0].bytes
        return sum(moved for a in (*sources[0].arrays[:1], *instruction.arrays[:1]) if a.hbm)
    if opcode == "dynamic-update-slice":
        update = sources[1].arrays[0]
        return sum(update.bytes for a in (update, instruction.arrays[0]) if a.hbm)
    unique = {source.name: source.arrays for source in sources}
    return sum(a.hbm for arrays in (*unique.values(), instruction.arrays) for a in arrays)


def copied(computation: Computation, instruction: Instruction) -> int:
    """Return the HBM bytes of an asynchronous copy or slice: its size for each end in HBM."""
    sources = [computation.instructions[name].arrays[0] for name in instruction.operands]
    if not sources or instruction.opcode not in ("copy-start", "slice-start", "dynamic-slice-start", "async-start"):
        return 0
    target_index = 0 if instruction.opcode == "copy-start" else len(sources)
    target = instruction.arrays[target_index] if target_index < len(instruction.arrays) else sources[0]
    moved = min(target.bytes, max(a.bytes for a in sources))
    return moved * (bool(sources[0].hbm) + bool(target.hbm))


def read_of(module: Module, computation: Computation, name: str, arrays: tuple[Array, ...]) -> int:
    """Return the HBM bytes that a fused computation reads of its parameter `name`, at most those of `arrays`."""
    full = sum(a.hbm for a in arrays)
    if not full:
        return 0
    return min(full, part_read(module, computation, name, full))


def part_read(module: Module, computation: Computation, name: str, full: int) -> int:
    """Return the bytes that the users of a name in a fusion read of an array of `full` bytes, which may be slices."""
    total = full if computation.instructions[name] is computation.root else 0
    for user in computation.users[name]:
        if user.opcode in SLICES and user.operands[0] == name:
            total += user.arrays[0].bytes
        elif (user.opcode == "dynamic-update-slice" and user.operands[0] == name) or user.opcode == "tuple":
            continue
        elif user.opcode == "bitcast":
            total += part_read(module, computation, user.name, full)
        elif user.opcode == "fusion":
            inner = module.called(user, "calls")
            for index in (index for index, operand in enumerate(user.operands) if operand == name):
                parameter = inner.parameters[index].name
                # A fusion that returns the parameter as it is reads nothing; its users do.
                renamed = renames(inner, parameter)
                total += part_read(module, computation, user.name, full) if renamed else 0
                total += 0 if renamed else part_read(module, inner, parameter, full)
        else:
            return full
    return total


def renames(computation: Computation, name: str) -> bool:
    """Return whether a fused computation returns its parameter `name` unchanged."""
    instruction = computation.root
    while instruction is not None and instruction.opcode == "bitcast":
        instruction = computation.instructions[instruction.operands[0]]
    return instruction is not None and instruction.name == name


def written_by(module: Module, computation: Computation, arrays: tuple[Array, ...]) -> int:
    """Return the bytes that a fused computation writes to HBM; an update in place counts only the update."""
    root = computation.root
    if root is None:
        return sum(a.hbm for a in arrays)
    names = root.operands if root.opcode == "tuple" else (root.name,)
    if len(names) != len(arrays):
        return sum(a.hbm for a in arrays)
    return sum(
        bytes_written(module, computation, name, array) for name, array in zip(names, arrays, strict=True) if array.hbm
    )


def bytes_written(module: Module, computation: Computation, name: str, array: Array) -> int:
    """Return the bytes that a fused computation writes for its result `name`."""
    instruction = computation.instructions[name]
    while instruction.opcode == "bitcast":
        instruction = computation.instructions[instruction.operands[0]]
    if instruction.opcode == "parameter":
        return 0
    if instruction.opcode == "dynamic-update-slice":
        return min(array.bytes, computation.instructions[instruction.operands[1]].arrays[0].bytes)
    if instruction.opcode == "fusion" and len(instruction.arrays) == 1:
        inner = module.called(instruction, "calls")
        return min(array.bytes, written_by(module, inner, (array,)))
    return array.bytes
