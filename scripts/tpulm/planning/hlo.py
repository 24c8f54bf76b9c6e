"""Parse the text of compiled HLO into computations, instructions, and arrays with their memory spaces.

XLA prints the text after optimisation and scheduling: a TPU core runs the instructions of a computation in their order.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

BYTES = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8,
    "u64": 8, "f64": 8, "f8e4m3fn": 1, "f8e5m2": 1,
}  # fmt: skip
HBM = 0  # memory space of an array whose layout has no S(n)
COMPUTATION = re.compile(r"(ENTRY )?%([\w.-]+) \(.*\{$")
INSTRUCTION = re.compile(r"\s+(ROOT )?%([\w.-]+) = (.*)")
OPCODE = re.compile(r" ([a-z][\w-]*)\(")
SHAPE = re.compile(r"([a-z]+\d*\w*)\[([\d,]*)\](?:\{[^{}]*?(?:S\((\d+)\))?\})?")
CALL = re.compile(r"\b(calls|to_apply|body|condition|\w+_computations?)=\{?(%[\w.-]+(?:, %[\w.-]+)*)")


@dataclass(frozen=True)
class Array:
    """An array of a program: element type, dimensions, and memory space of its layout (`HBM`, or 1 for VMEM)."""

    dtype: str
    dimensions: tuple[int, ...]
    space: int = HBM

    @property
    def bytes(self) -> int:
        """Bytes without padding; 0 for an unknown element type."""
        return math.prod(self.dimensions) * BYTES.get(self.dtype, 0)

    @property
    def hbm(self) -> int:
        """Bytes in HBM; 0 for other memory spaces, and for scalars, which are in the memory of the scalar unit."""
        return self.bytes if self.space == HBM and self.dimensions else 0


@dataclass(frozen=True)
class Instruction:
    """An instruction.

    arrays      arrays of the result, in the order of a tuple
    operands    names of the operands; the text of a parameter or constant
    attributes  text after the operands, without metadata
    called      names of computations by attribute, such as calls, body, condition
    scope       op_name of the metadata: JAX's scopes and operation
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    called: dict[str, tuple[str, ...]]
    scope: str = ""


@dataclass
class Computation:
    """Instructions by name, in the order in which they run."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)
    root: Instruction | None = None

    @cached_property
    def parameters(self) -> list[Instruction]:
        """Parameters in the order of the operands of a call."""
        parameters = [i for i in self.instructions.values() if i.opcode == "parameter"]
        return sorted(parameters, key=lambda i: int(i.operands[0]))

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Instructions that use a name as operand, by that name."""
        users: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                if operand in users:
                    users[operand].append(instruction)
        return users


@dataclass
class Module:
    """A compiled program."""

    computations: dict[str, Computation]
    entry: Computation

    def called(self, instruction: Instruction, attribute: str) -> Computation:
        """Return the first computation that an attribute of an instruction names."""
        return self.computations[instruction.called[attribute][0]]

    def trip_count(self, loop: Instruction) -> int | None:
        """Return how often the body of a `while` runs; None if the text does not say it.

        It is in backend_config, or follows from a counter in the loop's tuple with constant start, step and limit.
        """
        known_count = re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes)
        if known_count:
            return int(known_count[1])
        condition, body = self.called(loop, "condition"), self.called(loop, "body")
        counter = counter_and_limit(self, condition)
        if counter is None or body.root is None or body.root.opcode != "tuple":
            return None
        index, limit = counter
        counters = {name: 0 for name, instruction in body.instructions.items() if element(instruction) == index}
        step = addend(self, body, body.root.operands[index], counters)
        caller = next(c for c in self.computations.values() if c.instructions.get(loop.name) is loop)
        start = constant(caller.instructions.get(loop.operands[0]), caller, index)
        return -(-(limit - start) // step) if step and start is not None else None


def counter_and_limit(module: Module, condition: Computation) -> tuple[int, int] | None:
    """Return the index of a loop's counter in its tuple, and its constant upper limit; None for other conditions."""
    root, names = condition.root, {}
    inner = condition
    if root is not None and root.opcode == "fusion":  # map its parameters to the operands
        inner = module.called(root, "calls")
        names = {p.name: operand for p, operand in zip(inner.parameters, root.operands, strict=True)}
        root = inner.root
    if root is None or root.opcode != "compare" or "direction=LT" not in root.attributes:
        return None
    ends = [inner.instructions[name] for name in root.operands]
    counter, limit = (condition.instructions[names[i.name]] if i.name in names else i for i in ends)
    index = element(counter)
    return None if index is None or limit.opcode != "constant" else (index, int(limit.operands[0]))


def element(instruction: Instruction) -> int | None:
    """Return which element of a tuple an instruction reads; None for another instruction."""
    index = re.search(r"index=(\d+)", instruction.attributes)
    return int(index[1]) if index and instruction.opcode == "get-tuple-element" else None


def addend(
    module: Module, computation: Computation, name: str, known_additions: Mapping[str, int | None]
) -> int | None:
    """Return the constant that a name adds to a counter; None for anything but additions of constants.

    known_additions  results by name: 0 for the counter itself; those of the parameters of a fusion
    """
    if name in known_additions:
        return known_additions[name]
    instruction = computation.instructions[name]
    if instruction.opcode in ("copy", "bitcast"):
        return addend(module, computation, instruction.operands[0], known_additions)
    if instruction.opcode == "fusion":
        inner = module.called(instruction, "calls")
        if inner.root is None:
            return None
        inner_additions = {
            parameter.name: addend(module, computation, operand, known_additions)
            for parameter, operand in zip(inner.parameters, instruction.operands, strict=True)
        }
        return addend(module, inner, inner.root.name, inner_additions)
    if instruction.opcode != "add":
        return None
    before = addend(module, computation, instruction.operands[0], known_additions)
    step = constant(computation.instructions.get(instruction.operands[1]), computation)
    return None if before is None or step is None else before + step


def constant(instruction: Instruction | None, computation: Computation, place: int | None = None) -> int | None:
    """Return the integer of a constant, or of element `place` of a tuple; None for anything else."""
    while instruction is not None and instruction.opcode in ("tuple", "copy", "bitcast"):
        name = instruction.operands[place or 0] if instruction.opcode == "tuple" else instruction.operands[0]
        instruction = computation.instructions.get(name)
    if instruction is None or instruction.opcode != "constant" or not re.fullmatch(r"-?\d+", instruction.operands[0]):
        return None
    return int(instruction.operands[0])


def parse(text: str) -> Module:
    """Return the program of an HLO text. Raises ValueError without an entry computation."""
    computations: dict[str, Computation] = {}
    entry = current = None
    for line in text.splitlines():
        head = COMPUTATION.match(line)
        if head:
            current = computations[head[2]] = Computation(head[2])
            entry = current if head[1] else entry
        elif current is not None and (match := INSTRUCTION.match(line)):
            instruction = instruction_of(match[2], match[3])
            current.instructions[instruction.name] = instruction
            if match[1]:
                current.root = instruction
    if entry is None:
        raise ValueError("a compiled program has no entry computation")
    return Module(computations, entry)


def instruction_of(name: str, text: str) -> Instruction:
    """Return the instruction of a line; text  the part after the name and `=`."""
    opcode = OPCODE.search(text, opcode_start(text))
    if opcode is None:
        raise ValueError(f"not an HLO instruction: {text[:80]}")
    result, rest = text[: opcode.start()], text[opcode.end() :]
    end = closing_parenthesis(rest)
    operands, attributes = rest[:end], rest[end + 1 :]
    scope = re.search(r'op_name="([^"]*)"', attributes)
    attributes = re.sub(r", metadata=\{[^{}]*\}", "", attributes)
    if opcode[1] in ("parameter", "constant"):
        names: tuple[str, ...] = (operands,)
    else:
        names = tuple(re.findall(r"%([\w.-]+)", operands))
    called = {attribute: tuple(names.replace("%", "").split(", ")) for attribute, names in CALL.findall(attributes)}
    return Instruction(name, opcode[1], arrays_of(result), names, attributes, called, scope[1] if scope else "")


def opcode_start(text: str) -> int:
    """Return the index after a result that is a tuple, whose layouts have parentheses; 0 for other results."""
    if not text.startswith("("):
        return 0
    return closing_parenthesis(text[1:]) + 1


def closing_parenthesis(text: str) -> int:
    """Return the index of the parenthesis that closes one opened before the text; its length without one."""
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place
    return len(text)


def arrays_of(text: str) -> tuple[Array, ...]:
    """Return the arrays in the text of a result, such as (f32[2,3]{1,0:T(8,128)S(1)}, s32[])."""
    return tuple(
        Array(dtype, tuple(map(int, filter(None, dimensions.split(",")))), int(space or HBM))
        for dtype, dimensions, space in SHAPE.findall(text)
    )
